"""What the dashboard has seen of a cluster: nodes, pods and what DRA has, counted as they come and go."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tessera.core.mig.geometry import is_known
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.resources import MIG_PREFIX, is_extended
from tessera.dashboard.mosaics import Claimed, layout_of
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.dashboard.totals import Totals
from tessera.dashboard.usage import NamespaceUse
from tessera.inventory.inventory import Inventory
from tessera.inventory.known import NO_CONFIGURATIONS
from tessera.inventory.report import held_amounts
from tessera.kube.watch.table import Key
from tessera.protocol.mig.operator import MigManagerConfig


class SeenCluster(ABC):
    def __init__(
        self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.revision = 0  # of nodes, pods and what DRA has
        self._nodes: dict[str, DashboardNode] = {}
        self._pods: dict[Key, DashboardPod] = {}
        self._on: dict[str, dict[Key, DashboardPod]] = {}  # pods by node; empty: without one
        self._inventory = Inventory(is_extended)
        self._capacity, self.dra = self._inventory.capacity, self._inventory.dra
        self._dra_is_old = False
        self._claimed: Mapping[str, Claimed] = {}  # node → its devices that claims hold
        self._by_claims: Mapping[Key, Mapping[str, int]] = {}  # pod → devices that its claims hold
        self._totals = Totals()
        self._uncounted: set[str] = set()  # nodes whose numbers may have changed since they were added up
        self._known = frozenset[str]()  # resources that some node has
        self.usage = NamespaceUse(monotonic, clock(), self._counts)

    @abstractmethod
    def _changed(self, node: str) -> None:
        """A node changed, or the pods on it; empty: pods that no node has."""

    def _mark_node(self, name: str) -> None:
        self.revision += 1
        if name:
            self._uncounted.add(name)
        self._changed(name)

    # nodes

    def put_node(self, one: DashboardNode) -> DashboardNode | None:
        """Take a node; what it was before, where it was there and was another."""
        name = one.node.name
        before = self._nodes.get(name)
        if before == one:
            return None
        self._nodes[name] = one
        self._inventory.put(one)
        self._mark_node(name)
        return before

    def remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._inventory.remove_node(name)
            self._mark_node(name)

    @property
    def nodes(self) -> Iterable[str]:
        return tuple(self._nodes)

    @property
    def has_mig_manager(self) -> bool:
        """Whether mig-manager cuts the cards of some node."""
        return any(one.gpus.by_mig_manager for one in self._nodes.values())

    def put_mig_manager(self, config: MigManagerConfig | None) -> None:
        """What the configurations make that mig-manager has."""
        if config != self._inventory.mig_manager:
            self._inventory.mig_manager = config
            for name, one in self._nodes.items():
                if one.gpus.by_mig_manager:
                    self._mark_node(name)

    def _layout(self, one: DashboardNode) -> KnownLayout | UnknownLayout:
        """How a node's cards are cut."""
        claimed, on_demand = self._claimed.get(one.node.name, {}), self.dra.pools.is_cut_on_demand(one.node)
        known, manager = self._inventory.known(one.node.name), self._inventory.mig_manager
        if isinstance(known, UnknownLayout) and manager and known.reason.endswith(NO_CONFIGURATIONS):
            known = UnknownLayout(f"{known.reason}: {manager.error}")
        return layout_of(one, known, claimed, on_demand=on_demand)

    # pods

    def put_pod(self, one: DashboardPod) -> bool:
        """Take a pod; whether it is one with devices, and news."""
        key = Key(one.use.namespace, one.use.name)
        before = self._pods.get(key)
        if before == one or (before is None and not one.use.amounts):
            return False
        self.remove_pod(key)
        if not one.use.amounts:
            return False
        self._pods[key] = one
        self._on.setdefault(one.use.node, {})[key] = one
        self._capacity.add(one.use)
        self._count(key, one)
        self._mark_node(one.use.node)
        return True

    def _count(self, key: Key, one: DashboardPod) -> None:
        """Count what a pod asked for and got. What it has by claims is what they hold, whatever its annotations call it."""
        use, held = one.use, held_amounts(one.use, self._by_claims.get(key))
        got = replace(use, asked=use.asked or use.amounts, amounts=held)
        self.usage.put(key, got, runs=one.phase == "Running")

    def remove_pod(self, key: Key) -> None:
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        there = self._on[pod.use.node]
        del there[key]
        if not there:
            del self._on[pod.use.node]
        self._capacity.remove(pod.use)
        self.usage.remove(key)
        self._mark_node(pod.use.node)

    @property
    def pods(self) -> Iterable[Key]:
        return tuple(self._pods)

    # what DRA has

    def dra_changed(self) -> None:
        """What DRA serves is different, or what claims hold; it concerns many nodes, and is worked out when it is shown."""
        self._dra_is_old = True
        self.revision += 1

    def _take_dra(self) -> None:
        if not self._dra_is_old:
            return
        self._dra_is_old = False
        before, self._claimed = self._claimed, self.dra.holders()
        self._capacity.claimed = self.dra.held()
        for name, one in self._nodes.items():
            node = self._inventory.with_dra(one.node)
            if node.dra != self._capacity[name].dra or before.get(name) != self._claimed.get(name):
                self._capacity.put_node(node)
                self._mark_node(name)
        held, self._by_claims = self._by_claims, self.dra.held_by_pods()
        for key in held.keys() | self._by_claims.keys():
            if key in self._pods and held.get(key) != self._by_claims.get(key):
                self._count(key, self._pods[key])

    # sums

    def _counted(self) -> Totals:
        for name in self._uncounted:
            self._totals.put(name, self._capacity.usage(name) if name in self._nodes else None)
        if self._uncounted:
            self._uncounted.clear()
            self._learn(self._totals.known)
        return self._totals

    def _counts(self, resource: str) -> bool:
        """Whether what namespaces use of a resource is counted: some node has it, or a real card could."""
        return resource in self._known or is_known(resource.removeprefix(MIG_PREFIX))

    def _learn(self, known: frozenset[str]) -> None:
        """Count the pods again whose resources some node has now, or no node has any more."""
        changed, self._known = known ^ self._known, known
        for key, one in self._pods.items() if changed else ():
            if not changed.isdisjoint({*one.use.amounts, *one.use.asked, *self._by_claims.get(key, ())}):
                self._count(key, one)
