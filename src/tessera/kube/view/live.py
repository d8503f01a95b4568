"""The cluster as decisions see it, kept right by list and watch.

Reflectors change the view between two decisions, on the same thread: a decision sees one consistent state, and no
admission calls the API server. Updates that change nothing a decision reads, such as the heartbeats of nodes, leave
the view's version alone.
"""

import asyncio
from collections.abc import Callable, Container
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.offers import Offers
from tessera.core.dra.slices import Spots
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.kube.rest.client import Client
from tessera.kube.view.dra import DraObjects
from tessera.kube.view.expected import mentions_gpus, missing_devices
from tessera.kube.view.grace import NodesWithGrace
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    Key,
    Resource,
)
from tessera.kube.watch.table import Table, TableEntry, keyed, named
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


class LiveView(Follower):
    """Nodes, namespaces, their quotas, and what DRA serves, as the API server has them."""

    def __init__(self, client: Client, *, keep: Keep | None = is_any_gpu, first_sight: bool = True) -> None:
        """Follow a cluster; `keep` says by which resources a node matters (None: all do).

        `first_sight`: what a node's labels or layout say, when it is first seen, counts for the grace.
        """
        self.offers = offers = Offers()
        self._keep = keep
        self._first_sight = first_sight
        self.dra = dra = DraObjects(self._dra_changed, self._read_slices)
        self._nodes = nodes = NodesWithGrace(offers, client.clock, dra.pools)
        table: Table = {
            NODES: TableEntry(self._read_node, nodes.put, nodes.delete, replace=nodes.replace),
            **spaces_table(offers),
            DEVICE_CLASSES: dra.classes(),
        }
        super().__init__(client, table)
        *self._others, self._classes = self.reflectors
        self.pods: PodFollower | None = None  # None: what is free is not asked for
        self._pods_switched = asyncio.Event()
        self._slices: Reflector | None = None  # while there is no class, slices say nothing
        self._classes_there = asyncio.Event()
        self._reading = False  # whether anything but classes is being read
        self._complete = False

    async def run(self) -> None:
        """Follow the cluster until cancelled: first the classes, by which nodes and slices are read."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._classes.run())
            tasks.create_task(self._run_pods())
            await self._classes.synced()
            self._reading = True
            for one in self._others:
                tasks.create_task(one.run())
            await self._classes_there.wait()
            if self._slices is not None:
                tasks.create_task(self._slices.run())

    def follow_pods(self, transient: tuple[str, ...] | None = ()) -> None:
        """Know what is free from now on, once the pods are listed; or no longer (None).

        `transient` are taints that pass, beside those of Kubernetes and autoscalers.
        """
        if self.pods is not None and transient is not None:
            self.pods.use_transient(transient)
            return
        if self.pods is not None:
            self.reflectors.remove(self.pods.reflector)
            self.pods.stop()
            self.pods = None
        elif transient is not None:
            from tessera.kube.view.pods import PodFollower  # by few: others do not pay for it

            self.pods = PodFollower(self._client, self.offers, transient)
            self.reflectors.append(self.pods.reflector)
        self._pods_switched.set()

    @property
    def follows_pods(self) -> bool:
        return self.pods is not None

    async def _run_pods(self) -> NoReturn:
        while True:
            self._pods_switched.clear()
            async with asyncio.TaskGroup() as tasks:
                running = None if self.pods is None else tasks.create_task(self.pods.run())
                await self._pods_switched.wait()
                if running is not None:
                    running.cancel()

    def configure(self, policy: FallbackPolicy) -> None:
        """Keep what is gone from a node for as long as the operator says; follow pods where it matters what is free."""
        self._nodes.grace = policy.grace
        self.follow_pods(policy.transient_taints if policy.full_enabled else None)

    def missing(self, only: Table | None = None) -> str | None:
        """What keeps the view from being complete; once it is, the first class that comes later does not make it less."""
        problem = None if self._complete else super().missing(only)
        self._complete = problem is None
        return problem

    def _read_node(self, raw: bytes) -> Node:
        """A node; once there are classes, DRA may serve anything on any node, so all of them matter."""
        keep = None if self._slices is not None else self._keep
        return read_node(raw, keep, self.offers.nodes if self._first_sight else None)

    def _read_slices(self) -> None:
        """Classes read more than the slices were read for; with the first class, slices are followed."""
        if self._slices is not None:
            self._slices.relist()
            return
        self._slices = Reflector(self._client, RESOURCE_SLICES, self.dra.slices())
        self.reflectors.append(self._slices)
        self._classes_there.set()
        if self._keep is not None and self._reading:  # of some nodes the name alone was read
            self.relist(NODES)

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
        NAMESPACES: named(
            lambda raw: namespace_of(objects.decode_any(raw)),
            offers.put_namespace,
            offers.remove_namespace,
            key=lambda space: space.name,
            known=lambda: offers.namespaces,
        ),
        RESOURCE_QUOTAS: keyed(
            lambda raw: quota_of(decode_quota(raw), namespace),
            offers.put_quota,
            lambda key: offers.remove_quota(*key),
            key=lambda quota: Key(quota.namespace, quota.name),
            known=lambda: [Key(space, one.name) for space, some in offers.quotas.items() for one in some],
        ),
    }
