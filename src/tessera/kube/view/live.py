"""The cluster as decisions see it, kept right by list and watch.

Reflectors change the view between two decisions, on the same thread: a decision sees one consistent state, and no
admission calls the API server. Updates that change nothing a decision reads, such as the heartbeats of nodes, leave
the view's version alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.offers import Offers
from tessera.core.dra.slices import Spots
from tessera.core.kubernetes.node import Node
from tessera.core.resources import is_any_gpu
from tessera.kube.rest.client import Client
from tessera.kube.view.dra import DraObjects
from tessera.kube.view.grace import NodesWithGrace, mentions_gpus, missing_devices
from tessera.kube.watch.follow import Follower, check_readable, while_running
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.table import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Key,
    Resource,
    Table,
    TableEntry,
    entry_by_key,
    entry_by_name,
)
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.nodes import (
    NodeIn,
    decode_node,
    decode_quota,
    namespace_of,
    node_of,
    quota_of,
)

if TYPE_CHECKING:
    from tessera.kube.view.pods import PodFollower

Keep = Callable[[str], bool]

_TICK: Final = 1.0  # seconds between two checks of what is kept for a while


class LiveView:
    """Nodes, namespaces, their quotas, and what DRA serves, as the API server has them."""

    def __init__(
        self,
        client: Client,
        *,
        keep: Keep | None = is_any_gpu,
        first_sight: bool = True,
        follower: Follower | None = None,
    ) -> None:
        """Follow a cluster; `keep` says by which resources a node matters (None: all do).

        `first_sight`: what a node's labels or layout say, when it is first seen, counts for the grace. `follower`: the
        process has one for all who follow the cluster, and runs it.
        """
        self._client = client
        self._runs_follower = follower is None
        self.follower = Follower(client) if follower is None else follower
        self.offers = offers = Offers()
        self._keep = keep
        self._first_sight = first_sight
        self.dra = dra = DraObjects(self._dra_changed, self._read_slices)
        self._nodes = nodes = NodesWithGrace(offers, client.clock, dra.pools)
        self._classes: Table = {DEVICE_CLASSES: dra.classes()}
        self._others: Table = {
            NODES: TableEntry(self._read_node, nodes.put, nodes.delete, replace=nodes.replace),
            **spaces_table(offers),
        }
        self._slices: Table = {}  # while there is no class, slices say nothing
        self.pods: PodFollower | None = None  # None: what is free is not asked for
        self._pods_followed = asyncio.Event()
        self._reading = asyncio.Event()  # set when anything but classes is being read
        self._complete = False
        self.follower.add(self._classes)

    @asynccontextmanager
    async def following(self, *, complete: bool = True) -> AsyncIterator[Self]:
        """Follow: complete when this begins, unless the caller waits itself, and right until it ends."""
        if complete:
            await check_readable(self._client, (NODES, NAMESPACES))
        async with while_running(self.run()):
            if complete:
                await self.synced()
            yield self

    async def run(self) -> None:
        """Follow the cluster until cancelled: first the classes, by which nodes and slices are read."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._expire_pods())
            if self._runs_follower:
                tasks.create_task(self.follower.run())
            await self.follower.synced(self._classes)
            if not self._reading.is_set():
                self.follower.add(self._others)
                self._reading.set()

    @property
    def table(self) -> Table:
        """All that it follows now, or will when the classes are there."""
        pods = {} if self.pods is None else self.pods.table
        return {**self._others, **self._classes, **pods, **self._slices}

    @property
    def reflectors(self) -> list[Reflector]:
        """What it reads."""
        every = self.follower.reflectors
        return [one for resource in self.table for one in every if one.follows(resource)]

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        await self._reading.wait()
        await self.follower.synced(self.table)

    def missing(self) -> str | None:
        """What keeps the view from being complete; once it is, the first class that comes later does not make it less."""
        if self._complete:
            return None
        waiting = [] if self._reading.is_set() else [f"{one.name} not listed yet" for one in self._others]
        problems = [*waiting, self.follower.missing(self.table)]
        problem = "; ".join(filter(None, problems)) or None
        self._complete = problem is None
        return problem

    def follow_pods(self, transient: tuple[str, ...] | None = ()) -> None:
        """Know what is free from now on, once the pods are listed; or no longer (None).

        `transient` are taints that pass, beside those of Kubernetes and autoscalers.
        """
        if self.pods is not None and transient is not None:
            self.pods.use_transient(transient)
        elif self.pods is not None:
            self.pods.stop()
            self.pods = None
            self._pods_followed.clear()
        elif transient is not None:
            from tessera.kube.view.pods import PodFollower  # by few: others do not pay for it

            self.pods = PodFollower(self.follower, self.offers, self._client.clock, transient)
            self._pods_followed.set()

    @property
    def follows_pods(self) -> bool:
        return self.pods is not None

    async def _expire_pods(self) -> NoReturn:
        while True:
            await self._pods_followed.wait()
            await self._client.clock.sleep(_TICK)
            if self.pods is not None:
                self.pods.expire()

    def configure(self, policy: FallbackPolicy) -> None:
        """Keep what is gone from a node for as long as the operator says; follow pods where it matters what is free."""
        self._nodes.grace = policy.grace
        self.follow_pods(policy.transient_taints if policy.full_enabled else None)

    def _read_node(self, raw: bytes) -> Node:
        """A node; once there are classes, DRA may serve anything on any node, so all of them matter."""
        keep = None if self._slices else self._keep
        return read_node(raw, keep, self.offers.nodes if self._first_sight else None)

    def _read_slices(self) -> None:
        """Classes read more than the slices were read for; with the first class, slices are followed."""
        if self._slices:
            self.follower.relist(RESOURCE_SLICES, self._slices)
            return
        self._slices = {RESOURCE_SLICES: self.dra.slices()}
        self.follower.add(self._slices)
        if self._keep is not None and self._reading.is_set():  # of some nodes the name alone was read
            self.follower.relist(NODES, self._others)

    def _dra_changed(self, concerned: Spots) -> None:
        if None in concerned:  # classes, too
            self.offers.put_classes(self.dra.pools.serving, self.dra.pools.classes)
        self._nodes.refresh(concerned)


def read_node(raw: bytes, keep: Keep | None = None, known: Container[str] | None = None) -> Node:
    """A node; `keep` says which resources make one matter. Of a node that has none of them the name is enough.

    Devices that labels or layout of a node give it, and that it does not offer, are unavailable where the node is not among the
    `known`: they may be back in a moment.
    """
    one = decode_node(raw)
    if keep is not None and not _has_any(one, keep):
        return Node(one.metadata.name)
    node = node_of(one)
    if known is not None and node.name not in known and (lacking := missing_devices(one, node)):
        return replace(node, unavailable={**lacking, **node.unavailable})
    return node


def _has_any(node: NodeIn, keep: Keep) -> bool:
    """Whether a node has, had, or is labelled to have something that matters."""
    status = node.status
    return mentions_gpus(node) or any(
        keep(resource) for amounts in (status.allocatable, status.capacity) for resource in amounts or ()
    )


def spaces_table(offers: Offers, namespace: str = "") -> dict[Resource, TableEntry[Any]]:
    """How offers take namespaces and their quotas. `namespace` is that of quotas that name none."""
    return {
        NAMESPACES: entry_by_name(
            lambda raw: namespace_of(objects.decode_any(raw)),
            offers.put_namespace,
            offers.remove_namespace,
            key=lambda space: space.name,
            known=lambda: offers.namespaces,
        ),
        RESOURCE_QUOTAS: entry_by_key(
            lambda raw: quota_of(decode_quota(raw), namespace),
            offers.put_quota,
            lambda key: offers.remove_quota(*key),
            key=lambda quota: Key(quota.namespace, quota.name),
            known=lambda: [Key(space, one.name) for space, some in offers.quotas.items() for one in some],
        ),
    }
