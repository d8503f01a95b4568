"""The nodes and pods of a cluster, or of files, read in one pass into a `Capacity`.

An inventory that is kept right by list and watch.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tessera.core.devices.capacity import Capacity, PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_PRODUCT_LABEL, Node
from tessera.core.kubernetes.pod import DEFAULT_SCHEDULERS
from tessera.core.kubernetes.scheduling import EVERYTHING, LabelSelector
from tessera.core.mig.geometry import Product
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.resources import is_any_gpu
from tessera.inventory.dra import DraInventory
from tessera.inventory.known import known_layout
from tessera.inventory.operator import MigManagerFiles, read_mig_manager
from tessera.inventory.rejected_workloads import RejectedFiles, RejectedWorkloads
from tessera.kube.object_files import FileObject, called, objects_in
from tessera.kube.rest.client import Client
from tessera.kube.watch.file_feed import take_files
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import NODES, RESOURCE_SLICES, UNFINISHED_PODS, Key, Resource, Table, TableEntry
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node, node_of
from tessera.protocol.kubernetes.pod import PodIn, decode_pod, pod_use_of
from tessera.protocol.mig.nodes import GpuNode, gpu_node
from tessera.protocol.mig.operator import MigManagerConfig

if TYPE_CHECKING:
    from tessera.kube.watch.listing import Progress


@dataclass(frozen=True, slots=True)
class InventoryNode:
    """A node: what it has, and what is known of its GPUs."""

    node: Node
    gpus: GpuNode


@dataclass(slots=True)
class Inventory:
    """What is asked about, and what was found."""

    keep: Callable[[str], bool]
    selector: LabelSelector = EVERYTHING  # of nodes
    holds: Callable[[PodUse], bool] = lambda _: False  # which pods to keep, beside adding them up
    places: bool = False  # whether to read where these pods may go
    capacity: Capacity = field(default_factory=Capacity)
    gpus: dict[str, GpuNode] = field(default_factory=dict)  # of nodes that say something about them
    pods: list[PodUse] = field(default_factory=list)
    judged_until: str = ""  # the latest creation of a pod that the default scheduler has judged, by the API
    names: frozenset[str] = frozenset()  # of the nodes that count; without any, all do
    with_devices: bool = False  # whether to read which devices pods hold, where their kubelets write it down
    held: dict[str, set[str]] = field(default_factory=dict)  # node → ids of those devices
    dra: DraInventory = field(default_factory=DraInventory)
    with_rejected: bool = False  # whether to read which workloads cannot create their pods
    rejected: RejectedWorkloads = field(default_factory=RejectedWorkloads)
    with_layouts: bool = True  # whether to read mig-manager's configurations, where some node is cut by it
    mig_manager: MigManagerConfig | None = None  # None: there is no such node, or no operator

    # reading one object

    def decode_node(self, raw: bytes) -> InventoryNode:
        return self.node_of(decode_node(raw))

    def node_of(self, node: NodeIn) -> InventoryNode:
        """A node, with the resources that are asked about."""
        return InventoryNode(node_of(node, self.keep), gpu_node(node))

    def decode_pod(self, raw: bytes) -> PodUse:
        return self.use_of(decode_pod(raw))

    def use_of(self, pod: PodIn) -> PodUse:
        """What a pod uses of the resources that are asked about."""
        use = pod_use_of(pod, self.keep, where=self.holds if self.places else None)
        is_default = (pod.spec.scheduler_name or "") in DEFAULT_SCHEDULERS
        if is_default and use.amounts and (use.node or use.judged):
            self.judged_until = max(self.judged_until, pod.metadata.creation_timestamp or "")
        return use

    def put(self, one: InventoryNode) -> None:
        """Take a node in, if it is asked about."""
        if self.names and one.node.name not in self.names:
            return
        self.capacity.put_node(self.with_dra(one.node))
        if one.gpus.label or one.gpus.layout is not None or one.gpus.mapping is not None:
            self.gpus[one.node.name] = one.gpus
        else:
            self.gpus.pop(one.node.name, None)

    def with_dra(self, node: Node) -> Node:
        """A node, with what DRA serves on it of the resources that are asked about."""
        served = {name: number for name, number in self.dra.pools.served(node).items() if self.keep(name)}
        return replace(node, dra=served) if served != node.dra else node

    def refresh_dra(self) -> None:
        """Take in what DRA serves and what claims hold, as it is now."""
        for name in list(self.capacity):
            self.capacity.put_node(self.with_dra(self.capacity[name]))
        self.capacity.claimed = self.dra.held()

    def remove_node(self, name: str) -> None:
        self.capacity.pop(name, None)
        self.gpus.pop(name, None)

    def known(
        self, name: str, product: Product | None = None, cards: int | None = None
    ) -> KnownLayout | UnknownLayout:
        """How a node's cards are cut, or why that is not known; what the caller says about the cards goes before what the node says."""
        gpus, node = self.gpus.get(name), self.capacity.get(name)
        if gpus is None or node is None:
            return UnknownLayout(f"no label {GPU_PRODUCT_LABEL}")
        if self.dra.pools.is_cut_on_demand(node):
            return UnknownLayout("its cards are cut for claims on demand, so they take no layout")
        if product or cards:
            gpus = replace(gpus, product=product or gpus.product, cards=cards or gpus.cards)
        if node.dra and not any(is_any_gpu(name) and amount for name, amount in node.allocatable.items()):
            # DRA offers the devices, and no device plugin does, whatever the kubelet remembers of one
            devices = {resource: number for resource, number in node.dra.items() if is_any_gpu(resource)}
            gpus = replace(gpus, offered=tuple(sorted(devices.items())))
        return known_layout(gpus, self.mig_manager)

    def used(self, name: str) -> dict[str, int]:
        """How many GPUs and MIG devices of a node pods hold."""
        usage = self.capacity.usage(name).items()
        return {resource: int(one.allocated.value) for resource, one in usage if is_any_gpu(resource)}

    def add(self, pod: PodUse) -> None:
        if pod.amounts:
            self.capacity.add(pod)
            if self.holds(pod):
                self.pods.append(pod)

    def add_pod(self, pod: PodIn) -> None:
        """Take a pod in, with the devices that it holds where they are asked for."""
        use = self.use_of(pod)
        self.add(use)
        if self.with_devices and use.node and use.amounts:
            self.held.setdefault(use.node, set()).update(device for _, device in held_by(pod, self.keep))

    # reading everything

    def begin_nodes(self) -> None:
        """Begin a list of nodes, from nothing."""
        self.capacity.clear()
        self.gpus.clear()

    def begin_pods(self) -> None:
        """Begin a list of pods, from nothing."""
        self.capacity.forget_pods()
        self.pods.clear()
        self.held.clear()

    def table(self, *, pods: bool = True) -> Table:
        """How the nodes and pods of a list are taken; of pods nothing is kept that could be removed."""
        table: dict[Resource, TableEntry[Any]] = {
            replace(NODES, labels=self.selector.text): TableEntry(
                self.decode_node,
                self.put,
                lambda key: self.remove_node(key.name),
                begin=self.begin_nodes,
                key=lambda node: node.node.name,
            )
        }
        if pods:
            table[UNFINISHED_PODS] = TableEntry(
                decode_pod,
                self.add_pod,
                begin=self.begin_pods,
                key=lambda pod: (pod.metadata.namespace, pod.metadata.name),
            )
        return table

    async def read_cluster(
        self, client: "Client", *, pods: bool = True, progress: "Progress | None" = None
    ) -> None:
        """Ask an API server; nothing that it sends is kept longer than one object takes to be read."""
        from tessera.kube.watch.listing import list_once

        await list_once(client, self.table(pods=pods), progress=progress)
        await self.dra.read(client)
        self.refresh_dra()
        if self.with_rejected:
            await self.rejected.read(client)
        await self.read_mig_manager(client)

    async def read_mig_manager(self, client: "Client") -> None:
        """Ask for mig-manager's configurations, unless they are known or concern no node."""
        concerned = self.with_layouts and self.mig_manager is None
        if concerned and any(gpus.by_mig_manager for gpus in self.gpus.values()):
            self.mig_manager = await read_mig_manager(client)

    def read_files(self, paths: Sequence[str]) -> None:
        """Read files with objects, as kubectl writes them."""
        if not self.take(objects_in(paths)):
            raise InvalidInput(f"{called(*paths)}: no nodes and no pods")

    def take(self, found: Iterable[FileObject]) -> set[str]:
        """Take nodes and pods, each once, and objects of DRA; which kinds of the first two there were."""
        mig_manager, rejected = MigManagerFiles(), RejectedFiles()
        table = {**self.table(), **self.dra.table(), **mig_manager.table()}
        kinds = take_files(found, {**table, **rejected.table()} if self.with_rejected else table)
        self.refresh_dra()
        self.rejected.found += rejected.rejected()
        self.mig_manager = self.mig_manager or mig_manager.config()
        return kinds & {"Node", "Pod"}


Held = tuple[tuple[str, str], ...]  # resource, device id


def held_by(pod: PodIn, keep: Callable[[str], bool]) -> Held:
    """The devices that a pod holds, by their ids; those that it has by claims are in the claims.

    Kubelets write the ids into the status of containers (`allocatedResourcesStatus`, on by default from Kubernetes 1.36). Elsewhere
    the API has only numbers, and this is empty.
    """
    return tuple(
        (allocated.name, device.id)
        for container in pod.status.container_statuses or ()
        for allocated in container.allocated_resources_status or ()
        if keep(allocated.name) and not allocated.by_claim
        for device in allocated.resources or ()
    )


@asynccontextmanager
async def following(client: Client, inventory: Inventory) -> AsyncIterator["FollowedInventory"]:
    """Follow a cluster: the inventory is complete when this begins, and right until it ends."""
    followed = FollowedInventory(client, inventory)
    async with followed.follower.following():
        await inventory.read_mig_manager(client)
        yield followed


class FollowedInventory:
    """An inventory as it changes."""

    def __init__(
        self,
        client: Client,
        inventory: Inventory,
        follower: Follower | None = None,
        wrap: Callable[[TableEntry[Any]], TableEntry[Any]] = lambda entry: entry,
        *,
        nodes: bool = True,
    ) -> None:
        """Follow a cluster; `follower`, where others follow it, too; `wrap` puts something around each entry of the table.

        Without `nodes` the caller puts the nodes into the inventory.
        """
        self.changed = asyncio.Event()
        self.inventory = inventory
        self._dra_is_old = False
        # by namespace and name: those that use something that is asked about
        self._pods: dict[str, dict[str, PodUse]] = {}
        self._later: list[Callable[[], object]] | None = None  # what waits while the inventory stands still
        self.table = {
            resource: wrap(entry.through(self._in_time)) for resource, entry in self._entries(nodes).items()
        }
        self.follower = Follower(client) if follower is None else follower
        self.follower.add(self.table)
        # when classes read more than the slices were read for, slices are read again
        inventory.dra.follow(self._dra_changed, partial(self.follower.relist, RESOURCE_SLICES, self.table))

    @property
    def error(self) -> str:
        """Why the inventory may be out of date; empty: it is not."""
        return self.follower.stale(self.table)

    def pause(self) -> None:
        """Let nothing change the inventory, for who reads it in another thread: what the watches bring waits until `catch_up`."""
        self._later = []

    def catch_up(self) -> None:
        """Take what the watches brought meanwhile. Where that raises, the inventory is not complete any more."""
        later, self._later = self._later or (), None
        for take in later:
            take()

    def _entries(self, nodes: bool) -> Table:
        """The inventory's table, except that pods are kept by their names."""
        pods = TableEntry(
            self.inventory.decode_pod, self._put_pod, self._remove_pod, begin=self._begin_pods
        ).bounded(lambda use: Key(use.namespace, use.name), attrgetter("size"), PodUse.without_place)
        inventory, dra = self.inventory.table(pods=False) if nodes else {}, self.inventory.dra.table()
        changing = {resource: entry.reporting(self.changed.set) for resource, entry in inventory.items()}
        return {**changing, UNFINISHED_PODS: pods, **dra}

    def _in_time(self, take: Callable[..., object]) -> Callable[..., object]:
        """The same, which waits while the inventory is paused."""

        def when_it_may(*given: Any) -> None:
            if self._later is None:
                take(*given)
            else:
                self._later.append(partial(take, *given))

        return when_it_may

    def now(self) -> None:
        """Bring the inventory's list of pods, and what DRA serves, up to date; its sums always are."""
        if self._dra_is_old:
            self._dra_is_old = False
            self.inventory.refresh_dra()
        pods = chain.from_iterable(by_name.values() for by_name in self._pods.values())
        self.inventory.pods[:] = filter(self.inventory.holds, pods)

    def _dra_changed(self) -> None:
        self._dra_is_old = True  # it concerns many nodes: worked out when it is needed
        self.changed.set()

    def _begin_pods(self) -> None:
        self.inventory.begin_pods()
        self._pods.clear()
        self.changed.set()

    def _put_pod(self, one: PodUse) -> None:
        if self._pods.get(one.namespace, {}).get(one.name) == one:
            return
        self._remove_pod(Key(one.namespace, one.name))
        if one.amounts:
            self._pods.setdefault(one.namespace, {})[one.name] = one
            self.inventory.capacity.add(one)
            self.changed.set()

    def _remove_pod(self, key: Key) -> None:
        by_name = self._pods.get(key.namespace, {})
        if (known := by_name.pop(key.name, None)) is not None:
            if not by_name:
                del self._pods[key.namespace]
            self.inventory.capacity.remove(known)
            self.changed.set()
