"""Where stories are played: a cluster, seen through its API, and a `Backstage` for what the API cannot do.

The backstage makes nodes and looks into containers. The embedded cluster is one; a real cluster needs another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from tessera.core.dra.slices import API_VERSION
from tessera.core.kubernetes.node import Node
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, CLAIM
from tessera.core.resources import is_whole_or_mig
from tessera.inventory.inventory import Inventory
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, path_of
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.table import Resource
from tessera.protocol.kubernetes.dra import decode_claim
from tessera.protocol.mig.miglayout import API_VERSION as MIG_LAYOUT_API
from tessera.protocol.mig.miglayout import PLURAL, MigLayout
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.pods import Counts, annotations_of, claimed_counts

T = TypeVar("T")

TIMEOUT: Final = 15.0  # seconds that anything may take to come about
_POLL_SECONDS: Final = 0.02


class Backstage(Protocol):
    """What the API cannot do or show."""

    async def have(self, nodes: Mapping[str, Counts]) -> None:
        """Have exactly these nodes of `nodes.yaml`, as they are described there, with these devices."""

    async def settled(self) -> None:
        """Return when the webhook knows what the API says now."""

    async def seen(self, namespace: str, pod: str) -> Mapping[str, Sequence[str]]:
        """What each container of a running pod sees of its devices, in lines."""

    def reason(self, namespace: str, pod: str) -> str:
        """Why the pod was admitted as it was; empty when that is not known."""


class Stage:
    """A cluster to play on.

    `timeout` is how many seconds a step may take. Without `kubelets`, nodes are only objects, and a pod that has a node counts as
    running. `adapt` changes a story's pod so that this cluster can run it.
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
        self._layouts: set[str] = set()  # names of MigLayouts

    async def until(self, observe: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
        """Observe until the result is good or the timeout is over; the last result."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        while not good(found := await observe()) and asyncio.get_running_loop().time() < deadline:
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
        body = await self._client.get(path_of("v1", "pods", namespace=self.namespace, name=name))
        return msgspec.json.decode(body, type=Document)

    async def delete(self, name: str) -> None:
        """Delete a pod, and wait until it is gone."""
        path = path_of("v1", "pods", namespace=self.namespace, name=name)

        async def gone() -> bool:
            try:
                await self._client.delete(path, {"gracePeriodSeconds": 0})
            except ApiError as error:
                if error.is_not_found:
                    return True
                raise
            return False

        await self.until(gone, bool)
        self.made.pop(name, None)

    async def clear(self) -> None:
        """Delete every MigLayout and every pod that was made here, and leave the namespace as it was."""
        for name in self._layouts:
            await self._client.delete(_layout_path(name))
        self._layouts.clear()
        for name in tuple(self.made):
            await self.delete(name)
        for key in tuple(self._annotated):
            await self.annotate_namespace(key, None)

    async def annotate_namespace(self, key: str, value: str | None) -> None:
        """Write an annotation of the pods' namespace, or remove it."""
        path = path_of("v1", "namespaces", name=self.namespace)
        await self._client.patch(path, {"metadata": {"annotations": {key: value}}})
        (self._annotated.discard if value is None else self._annotated.add)(key)

    async def claimed(self, pod: Document) -> dict[str, dict[str, int]]:
        """What the scheduler allocated to the claim that the webhook gave a pod: container → resource → devices."""
        if ALTERNATIVES_ANNOTATION not in annotations_of(pod):
            return {}
        path = path_of(API_VERSION, "resourceclaims", namespace=self.namespace)
        claims = await list_all(self._client, Resource("resourceclaims", path), decode_claim)
        own = [one for one in claims if one.pod_uid == pod["metadata"]["uid"] and one.pod_claim == CLAIM]
        return claimed_counts(pod, own[0].results) if own and own[0].results else {}

    # layouts that the controller keeps

    async def keep(self, layout: Document) -> None:
        """Create a MigLayout; it stays until the story is over."""
        await self._client.create(_layout_path(), layout)
        self._layouts.add(layout["metadata"]["name"])

    async def layout(self, name: str) -> MigLayout:
        return MigLayout.read(await self._client.get(_layout_path(name)))

    async def change_layout(self, name: str, spec: Document) -> None:
        await self._client.patch(_layout_path(name), {"spec": spec})

    # nodes

    async def inventory(self, others: Iterable[str] = ()) -> Inventory:
        """The cluster as it is now: its GPUs, and other resources that matter."""
        matter = set(others)
        found = Inventory(lambda resource: is_whole_or_mig(resource) or resource in matter, with_devices=True)
        await found.read_cluster(self._client)
        return found

    async def offers(self, nodes: Iterable[str], others: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """What nodes have of GPUs, and of other resources that matter."""
        capacity = (await self.inventory(others)).capacity
        return {name: offered(capacity[name]) for name in nodes if name in capacity}

    async def annotate(self, node: str, key: str, value: str) -> None:
        await self._client.patch(
            path_of("v1", "nodes", name=node), {"metadata": {"annotations": {key: value}}}
        )


def _layout_path(name: str | None = None) -> str:
    return path_of(MIG_LAYOUT_API, PLURAL, name=name)


def offered(node: Node) -> dict[str, int]:
    """What a node has from device plugins (zeros too) and from DRA."""
    return {name: int(amount.value) for name, amount in node.allocatable.items()} | dict(node.dra)


def _unquoted(warning: str) -> str:
    """The text of a Warning header: `299 - "text"`."""
    return warning.partition('"')[2].removesuffix('"').replace('\\"', '"').replace("\\\\", "\\")
