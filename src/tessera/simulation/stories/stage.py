"""Where stories are played: a cluster, seen through its API, and what its API does not tell.

The API is enough for nodes, pods and events; `Backstage` is for the rest: making nodes, and looking into containers.
The embedded cluster has one, a real cluster that stories are to be played on needs another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tessera.core.admission.view.offers import Offers
from tessera.core.devices.capacity import Capacity
from tessera.core.dra.slices import API_VERSION
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, CLAIM
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.view.dra import put_served
from tessera.protocol.dra.objects import read_class
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.dra import decode_claim
from tessera.protocol.kubernetes.pod_use import decode_pod_use
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.scenes import annotations_of, claimed_counts
from tessera.simulation.stories.story import Counts, Use

T = TypeVar("T")

TIMEOUT: Final = 15.0  # seconds that anything may take to come about
_POLL_SECONDS: Final = 0.02


class Backstage(Protocol):
    """What the API does not tell."""

    async def have(self, nodes: Mapping[str, Counts]) -> None:
        """Have exactly these nodes of `nodes.yaml`, as they are described there; this is what they are to offer."""
        ...

    async def settled(self) -> None:
        """Return when the webhook knows what the API says now."""
        ...

    async def seen(self, namespace: str, pod: str) -> Mapping[str, Sequence[str]]:
        """What each container of a running pod sees of its devices, in lines."""
        ...

    def reason(self, namespace: str, pod: str) -> str:
        """Why the pod was admitted as it was; empty when that is not known."""
        ...


class Stage:
    """A cluster to play on.

    `timeout` is how long anything may take to come about, in seconds. Without `kubelets`, nodes are objects and pods that
    are bound count as running. `adapt` makes a pod of a story one that this cluster can run.
    """

    def __init__(
        self,
        client: Client,
        backstage: Backstage,
        *,
        namespace: str = "default",
        timeout: float | None = None,
        kubelets: bool = True,
        adapt: Callable[[Document], Document] = lambda pod: pod,
    ) -> None:
        self.backstage = backstage
        self.namespace = namespace
        self.kubelets = kubelets
        self._adapt = adapt
        self._client = client
        self._timeout = TIMEOUT if timeout is None else timeout
        self.made: dict[str, Document] = {}  # pods as they were written
        self._annotated: set[str] = set()  # annotations of the namespace

    async def until(self, look: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
        """Look until it is good, or until the timeout; what was seen last."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        while not good(found := await look()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        return found

    # pods

    async def create(self, pod: Document) -> tuple[str, ...]:
        """Create a pod; the warnings. ApiError when it is refused."""
        path = path_of("v1", "pods", namespace=self.namespace)
        async with self._client.stream("POST", path, body=self._adapt(pod)) as answer:
            warning = answer.headers.get("warning", "")
            await answer.read_all()
        self.made[pod["metadata"]["name"]] = pod
        return (_unquoted(warning),) if warning else ()

    async def pod(self, name: str) -> Document:
        """A pod as it is now."""
        return _decoded(await self._client.get(path_of("v1", "pods", namespace=self.namespace, name=name)))

    async def delete(self, name: str) -> None:
        """Delete a pod, and wait until it is gone."""
        path = path_of("v1", "pods", namespace=self.namespace, name=name)

        async def gone() -> bool:
            try:
                await self._client.get(path)
            except ApiError as error:
                if error.is_not_found:
                    return True
                raise
            return False

        try:
            await self._client.delete(path, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if not error.is_not_found:
                raise
        await self.until(gone, bool)
        self.made.pop(name, None)

    async def clear(self) -> None:
        """Delete every pod that was made here, and leave the namespace as it was."""
        for name in tuple(self.made):
            await self.delete(name)
        for key in tuple(self._annotated):
            await self.annotate_namespace(key, None)

    async def annotate_namespace(self, key: str, value: str | None) -> None:
        """Write an annotation of the pods' namespace, or take it away."""
        path = path_of("v1", "namespaces", name=self.namespace)
        await self._client.patch(path, {"metadata": {"annotations": {key: value}}})
        (self._annotated.discard if value is None else self._annotated.add)(key)

    async def claimed(self, pod: Document) -> dict[str, dict[str, int]]:
        """What the claim that the webhook gave a pod was allocated: container → resource; nothing before that, and without one."""
        if ALTERNATIVES_ANNOTATION not in annotations_of(pod):
            return {}
        path = path_of(API_VERSION, "resourceclaims", namespace=self.namespace)
        claims = [decode_claim(msgspec.json.encode(one)) for one in await self._items(path)]
        own = [one for one in claims if one.pod_uid == pod["metadata"]["uid"] and one.pod_claim == CLAIM]
        return claimed_counts(pod, own[0].results) if own and own[0].results else {}

    # nodes

    async def offers(self, nodes: Iterable[str], others: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """What nodes have of GPUs, from device plugins (zeros too) and from DRA, and of other resources that matter."""
        every = {node["metadata"]["name"]: node for node in await self._list("nodes")}
        served = await self._served(every.values())
        matter = set(others)
        return {
            name: {
                resource: int(Quantity.parse(amount).value)
                for resource, amount in every[name]["status"].get("allocatable", {}).items()
                if is_whole_or_mig(resource) or resource in matter
            }
            | served.get(name, {})
            for name in nodes
            if name in every
        }

    async def _served(self, nodes: Iterable[Document]) -> dict[str, dict[str, int]]:
        """What DRA serves on these nodes, of what has a name of its own as an extended resource."""
        classes = await self._items(path_of(API_VERSION, "deviceclasses"))
        if not classes:
            return {}
        slices = await self._items(path_of(API_VERSION, "resourceslices"))
        offers = Offers()
        for node in nodes:
            offers.put(objects.node_of(objects.decode_node(msgspec.json.encode(node))))
        put_served(
            offers,
            [read_class(msgspec.json.encode(one)) for one in classes],
            map(msgspec.json.encode, slices),
        )
        return {
            name: {resource: count for resource, count in node.dra.items() if is_whole_or_mig(resource)}
            for name, node in offers.nodes.items()
        }

    async def node(self, name: str) -> Document:
        """A node as it is now."""
        return _decoded(await self._client.get(path_of("v1", "nodes", name=name)))

    async def annotate(self, node: str, key: str, value: str) -> None:
        """Write an annotation of a node."""
        await self._client.patch(
            path_of("v1", "nodes", name=node), {"metadata": {"annotations": {key: value}}}
        )

    async def uses(self, nodes: Iterable[str], resources: Iterable[str]) -> dict[str, dict[str, Use]]:
        """Allocatable and allocated, by node and resource."""
        wanted = set(resources)
        capacity = Capacity()
        for node in await self._list("nodes"):
            decoded = objects.decode_node(msgspec.json.encode(node))
            capacity.put_node(objects.node_of(decoded, wanted.__contains__))
        for pod in await self._list("pods"):
            capacity.add(decode_pod_use(msgspec.json.encode(pod), wanted.__contains__))
        return {
            node: {
                resource: Use(int(usage.allocatable.value), int(usage.allocated.value))
                for resource, usage in capacity.usage(node).items()
                if usage
            }
            for node in nodes
        }

    async def _list(self, plural: str) -> list[Document]:
        return await self._items(path_of("v1", plural))

    async def _items(self, path: str) -> list[Document]:
        return list(_decoded(await self._client.get(path))["items"])


def _decoded(body: bytes) -> dict[str, Any]:
    document = msgspec.json.decode(body)
    if not isinstance(document, dict):
        raise InvalidInput("the API server sent no object")
    return document


def _unquoted(warning: str) -> str:
    """The text of a Warning header: `299 - "text"`."""
    return warning.partition('"')[2].removesuffix('"').replace('\\"', '"').replace("\\\\", "\\")
