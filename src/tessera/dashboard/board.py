"""What the dashboard shows, kept as parts that each have a name: a part that changed is sent again, and no other.

Parts are `node/<name>` (a summary), `totals`, `history/<resource>`, `demand`, `demand/<resource>`, `pending`, `admissions`, `layouts` and
`about`. A change in the cluster only marks parts; they are made again when the server asks what is new. A node's mosaic is no part: it
is made when a browser asks for it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.core.admission.fallback.found import wanted_in
from tessera.core.kubernetes.resources import is_extended, is_whole_or_mig
from tessera.core.mig.geometry import is_known
from tessera.core.mig.known import UnknownLayout
from tessera.core.mig.profile import MIG_PREFIX
from tessera.dashboard.history import Admission, AdmissionLog, LayoutHistory, admission_of, moment
from tessera.dashboard.mosaic import Claimed, SeenLayout, layout_of, mosaic_of
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.dashboard.pending import Alike, longest, pending_part
from tessera.dashboard.totals import History, Totals, bounded, resource_rows, summary_of
from tessera.dashboard.usage import NamespaceUse, demand_part
from tessera.inventory.inventory import Inventory
from tessera.inventory.known import NO_CONFIGURATIONS
from tessera.inventory.report import held_amounts
from tessera.kube.watch.resource import Key
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.serving.metrics import Family

_DEMAND_SECONDS: Final = 60.0  # after which sums over time are shown anew: they always grow

Parts = Mapping[str, bytes]  # name → JSON


class Board:
    def __init__(
        self,
        about: str,
        *,
        all_admissions: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`all_admissions`: the caller reports every admission (`admitted`), so that none is read from pods."""
        self.version = 0
        self.revision = 0  # of nodes, pods and what DRA has
        self._about = about
        self._all_admissions = all_admissions
        self._clock = clock
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
        self._history = History()
        self._demand = History()  # of what is asked for, given as asked and missing
        self._demand_until = 0.0
        self._known = frozenset[str]()  # resources that some node has
        self.usage = NamespaceUse(monotonic, clock(), self._counts)
        self._reasons: Mapping[Alike, str] = {}  # why groups of pods wait, where the diagnosis was asked
        self._admissions = AdmissionLog()
        self._layouts = LayoutHistory(clock)
        self._error = ""
        self._marked: set[str] = {"about", "totals", "demand", "pending", "admissions", "layouts"}
        self._parts: dict[str, bytes] = {}
        self._new: set[str] = set()  # parts that changed, or went, since `changes` was asked

    # what changes

    def put_node(self, one: DashboardNode) -> None:
        name = one.node.name
        before = self._nodes.get(name)
        if before == one:
            return
        self._nodes[name] = one
        self._inventory.put(one)
        if before is not None and self._layouts.see(before, one):
            self._mark("layouts")
        self._mark_node(name)

    def remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._inventory.remove_node(name)
            self._mark_node(name)

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

    def dra_changed(self) -> None:
        """What DRA serves is different, or what claims hold; it concerns many nodes, and is worked out when it is shown."""
        self._dra_is_old = True
        self.version += 1
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

    def put_pod(self, one: DashboardPod) -> None:
        key = Key(one.use.namespace, one.use.name)
        before = self._pods.get(key)
        if before == one or (before is None and not one.use.amounts):
            return
        self.remove_pod(key)
        if not one.use.amounts:
            return
        self._pods[key] = one
        self._on.setdefault(one.use.node, {})[key] = one
        self._capacity.add(one.use)
        self._count(key, one)
        if self._is_news(before, one) and self._admissions.takes(one.use.created):
            self.admitted(admission_of(one))
        self._mark_node(one.use.node)

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

    def waiting(self, most: int) -> dict[Alike, Key]:
        """The groups of pods that wait longest, each with one of its pods."""
        found = longest(self._on.get("", {}).values(), most)
        return {alike: Key(one.use.namespace, one.use.name) for alike, one in found.items()}

    def explain(self, reasons: Mapping[Alike, str]) -> None:
        """Show these in place of the scheduler's words."""
        self._reasons = reasons
        self._mark("pending")

    def admitted(self, admission: Admission) -> None:
        if admission.decision == "rejected":
            self.usage.reject(admission.namespace, wanted_in(admission.reason))
            self._mark("demand")
        if self._admissions.add(admission):
            self._mark("admissions")

    def _is_news(self, before: DashboardPod | None, one: DashboardPod) -> bool:
        """Whether a pod with GPUs shows an admission: that it was admitted, or later what its claim got instead."""
        if not any(map(is_whole_or_mig, one.use.amounts)):
            return False
        if before is None:
            return not self._all_admissions
        return bool(one.use.claim) and one.use.record != before.use.record

    def denied(self, event: str, admission: Admission) -> None:
        if self._admissions.is_new(event):
            self.admitted(admission)

    def set_error(self, text: str) -> None:
        """Why what is shown may be out of date; empty: it is not."""
        self.usage.watching(now=not text)
        if text != self._error:
            self._error = text
            self._mark("about")

    def sample(self) -> None:
        """Remember the numbers of this moment; called now and then."""
        self._take_dra()
        totals, asked = self._counted(), self._capacity.asked
        numbers = totals.numbers({one: amount for one, amount in asked.items() if one in self._known})
        for resource in self._history.see(int(self._clock()), numbers):
            self._mark(f"history/{resource}")
        changed = self._demand.see(int(self._clock()), self.usage.now())
        if changed or self._clock() >= self._demand_until:
            self._demand_until = self._clock() + _DEMAND_SECONDS
            self._mark("demand", *(f"demand/{resource}" for resource in changed))

    def metrics(self) -> Iterator[Family]:
        self._take_dra()
        self._counted()
        yield from self.usage.metrics()

    @property
    def nodes(self) -> Iterable[str]:
        return tuple(self._nodes)

    @property
    def pods(self) -> Iterable[Key]:
        return tuple(self._pods)

    def _mark(self, *parts: str) -> None:
        self._marked.update(parts)
        self.version += 1

    def _mark_node(self, name: str) -> None:
        """A node changed, or the pods on it; empty: pods that no node has."""
        self.revision += 1
        if not name:
            self._mark("pending", "totals")
        else:
            self._uncounted.add(name)
            self._mark(f"node/{name}", "totals")

    def now(self) -> str:
        return moment(self._clock())

    # what is shown

    def parts(self) -> Parts:
        """All of it, as it is now. What is new stays new: the listeners have not got it."""
        self._make_marked()
        return self._parts

    def changes(self) -> tuple[Parts, list[str]]:
        """What is new since the last time: parts that changed, names of parts that are gone."""
        self._make_marked()
        changed = {name: self._parts[name] for name in sorted(self._new & self._parts.keys())}
        gone = sorted(self._new - self._parts.keys())
        self._new.clear()
        return changed, gone

    def _make_marked(self) -> None:
        self._take_dra()
        for name in self._marked:
            made = self._make(name)
            if made is None:
                if self._parts.pop(name, None) is not None:
                    self._new.add(name)
            elif self._parts.get(name) != (encoded := msgspec.json.encode(made)):
                self._parts[name] = encoded
                self._new.add(name)
        self._marked.clear()

    def mosaics(self, names: Iterable[str]) -> Parts:
        """The cards of some nodes as tiles; a node that is not there is left out."""
        known = (self._nodes[name] for name in names if name in self._nodes)
        return {one.node.name: msgspec.json.encode(self._mosaic(one)) for one in known}

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

    def _make(self, name: str) -> Any:
        kind, _, of = name.partition("/")
        match kind:
            case "node":
                return self._summary(of)
            case "history":
                return self._history.of(of)
            case "about":
                return {"cluster": self._about, "trouble": self._error}
            case "totals":
                return self._counted().rows(bounded(self._capacity.asked, self._known.__contains__))
            case "demand":
                return self._demand.of(of) if of else demand_part(self.usage)
            case "pending":
                return pending_part(self._on.get("", {}).values(), self._reasons)
            case "admissions":
                return self._admissions.shown()
            case _:
                return self._layouts.shown()

    def _summary(self, name: str) -> Any:
        one = self._nodes.get(name)
        if one is None:
            return None
        pods, seen = self._on.get(name, {}).values(), replace(one, node=self._capacity[name])
        return summary_of(seen, self._counted().of(name), pods, self._layout(seen), self.version)

    def _mosaic(self, one: DashboardNode) -> Any:
        name = one.node.name
        pods, seen = self._on.get(name, {}).values(), replace(one, node=self._capacity[name])
        mosaic = mosaic_of(seen, self._layout(seen), pods, self._claimed.get(name, {}))
        rows = resource_rows(self._capacity.usage(name), {})
        return {**msgspec.to_builtins(mosaic), "resources": rows}

    def _layout(self, one: DashboardNode) -> SeenLayout:
        claimed, on_demand = self._claimed.get(one.node.name, {}), self.dra.pools.is_cut_on_demand(one.node)
        known, manager = self._inventory.known(one.node.name), self._inventory.mig_manager
        if isinstance(known, UnknownLayout) and manager and known.reason.endswith(NO_CONFIGURATIONS):
            known = UnknownLayout(f"{known.reason}: {manager.error}")
        return layout_of(one, known, claimed, on_demand=on_demand)
