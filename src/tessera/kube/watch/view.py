"""The cluster as decisions see it, kept right by list and watch.

Reflectors change the view between two decisions, on the same thread: a decision sees one consistent state, and no
admission calls the API server. Updates that change nothing a decision reads, such as the heartbeats of nodes, leave
the view's version alone.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tessera.core.admission.offers import Offers
from tessera.core.kubernetes.node import Namespace, Node
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import Key, Pace, Resource
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.pod import decode_pod, pod_of

Keep = Callable[[str], bool]


class LiveView:
    """Nodes, namespaces and, if wanted, the pods that ask for GPUs, as the API server has them."""

    def __init__(
        self,
        client: Client,
        *,
        keep: Keep | None = is_whole_or_mig,
        pods: bool = False,
        pace: Pace = Pace(),  # noqa: B008 # frozen
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Follow a cluster; `keep` says which of a node's resources matter (None: all), and of which pods."""
        self.offers = Offers()
        self.pods: dict[Key, Pod] = {}  # those that have not ended, and ask for something that is kept
        self.reflectors: list[Reflector[Any]] = [
            Reflector(client, nodes_resource(keep), _Nodes(self.offers), pace=pace, clock=clock),
            Reflector(client, _NAMESPACES, _Namespaces(self.offers), pace=pace, clock=clock),
        ]
        if pods:
            resource = pods_resource(keep)
            self.reflectors.append(Reflector(client, resource, _Pods(self.pods), pace=pace, clock=clock))

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self.reflectors:
                group.create_task(reflector.run())

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        for reflector in self.reflectors:
            await reflector.synced()

    def missing(self) -> str | None:
        """What keeps the view from being complete, in a few words; None once it is."""
        waiting = [
            f"{one.resource.name} not listed yet"
            + (f" ({one.status.last_error})" if one.status.last_error else "")
            for one in self.reflectors
            if not one.status.synced
        ]
        return "; ".join(waiting) or None


class FoundPod(NamedTuple):
    """A pod that was read; None when it asks for nothing that matters."""

    key: Key
    pod: Pod | None


def nodes_resource(keep: Keep | None = None) -> Resource[Node]:
    """The nodes; `keep` says which of their resources matter. Of a node that has none of them the name is enough."""

    def decode(raw: bytes) -> Node:
        node = objects.node_of(objects.decode_node(raw), keep)
        return node if keep is None or node.allocatable else Node(node.name)

    return Resource("nodes", path_of("v1", "nodes"), decode)


def pods_resource(keep: Keep | None = None) -> Resource[FoundPod]:
    """The pods that have not ended and ask for something that matters."""

    def decode(raw: bytes) -> FoundPod:
        one = decode_pod(raw)
        pod, name = pod_of(one), (one.metadata.name if one.metadata else None) or ""
        asks = keep is None or any(keep(name) for each in pod.all_containers() for name in each.resources())
        return FoundPod(Key(pod.namespace, name), pod if asks else None)

    unfinished = "status.phase!=Succeeded,status.phase!=Failed"  # what the scheduler does not count either
    return Resource("pods", path_of("v1", "pods"), decode, {"fieldSelector": unfinished})


_NAMESPACES = Resource(
    "namespaces",
    path_of("v1", "namespaces"),
    lambda raw: objects.namespace_of(objects.decode_namespace(raw)),
)


class _Nodes:
    """Nodes go into the offers."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers

    def replace(self, objects: Iterable[Node]) -> None:
        self._offers.replace(objects)

    def upsert(self, one: Node) -> None:
        self._offers.put(one)

    def delete(self, key: Key) -> None:
        self._offers.remove(key.name)


class _Namespaces:
    """Namespaces too."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers

    def replace(self, objects: Iterable[Namespace]) -> None:
        replace_namespaces(self._offers, objects)

    def upsert(self, one: Namespace) -> None:
        self._offers.put_namespace(one)

    def delete(self, key: Key) -> None:
        self._offers.remove_namespace(key.name)


def replace_namespaces(offers: Offers, namespaces: Iterable[Namespace]) -> None:
    """Take a whole new list of namespaces: what is not in it is gone."""
    fresh = {one.name: one for one in namespaces}
    for name in [name for name in offers.namespaces if name not in fresh]:
        offers.remove_namespace(name)
    for one in fresh.values():
        offers.put_namespace(one)


class _Pods:
    """Pods are kept by name."""

    def __init__(self, pods: dict[Key, Pod]) -> None:
        self._pods = pods

    def replace(self, objects: Iterable[FoundPod]) -> None:
        self._pods.clear()
        for one in objects:
            self.upsert(one)

    def upsert(self, one: FoundPod) -> None:
        if one.pod is not None:
            self._pods[one.key] = one.pod
        else:
            self._pods.pop(one.key, None)

    def delete(self, key: Key) -> None:
        self._pods.pop(key, None)
