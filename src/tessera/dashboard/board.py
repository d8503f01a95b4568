"""What the dashboard shows, kept as parts that each have a name: a part that changed is sent again, and no other.

Parts are `node/<name>` (a summary), `totals`, `history/<resource>`, `demand`, `demand/<resource>`, `pending`, `admissions`, `layouts`, `miglayouts`,
`rollouts` and `about`. A change in the cluster only marks parts; they are made again when the server asks what is new. A node's mosaic is no part: it
is made when a browser asks for it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.core.admission.fallback.found import wanted_in
from tessera.core.resources import is_whole_or_mig
from tessera.dashboard.history import Admission, AdmissionLog, LayoutHistory, admission_of
from tessera.dashboard.layouts_part import layouts_part, rollouts_part
from tessera.dashboard.mosaics import mosaic_of
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.dashboard.pending_pods import Alike, longest, pending_part
from tessera.dashboard.seen import SeenCluster
from tessera.dashboard.totals import History, bounded, resource_rows, summary_of
from tessera.dashboard.usage import demand_part
from tessera.kube.watch.table import Key
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import SeenRollout
from tessera.serving.metrics import Family

_DEMAND_SECONDS: Final = 60.0  # after which sums over time are shown anew: they always grow
_KEPT: Final = ("miglayouts", "rollouts")  # what MigLayouts are seen in

Parts = Mapping[str, bytes]  # name → JSON


class Board(SeenCluster):
    def __init__(
        self,
        about: str,
        *,
        all_admissions: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`all_admissions`: the caller reports every admission (`admitted`), so that none is read from pods."""
        super().__init__(clock, monotonic)
        self.version = 0
        self._about = about
        self._all_admissions = all_admissions
        self._clock = clock
        self._history = History()
        self._demand = History()  # of what is asked for, given as asked and missing
        self._demand_until = 0.0
        self._reasons: Mapping[Alike, str] = {}  # why groups of pods wait, where the diagnosis was asked
        self._admissions = AdmissionLog()
        self._layouts = LayoutHistory(clock)
        self._mig_layouts: dict[str, MigLayout] = {}
        self._mig_layouts_unseen = ""
        self._rollouts: dict[str, SeenRollout] = {}  # by node
        self._error = ""
        self._marked: set[str] = {"about", "totals", "demand", "pending", "admissions", "layouts", *_KEPT}
        self._parts: dict[str, bytes] = {}
        self._new: set[str] = set()  # parts that changed, or went, since `changes` was asked

    # what changes

    def put_node(self, one: DashboardNode) -> DashboardNode | None:
        before = super().put_node(one)
        if before is not None and self._layouts.see(before, one):
            self._mark("layouts")
        self._put_rollout(one.node.name, one.rollout)
        return before

    def remove_node(self, name: str) -> None:
        super().remove_node(name)
        self._put_rollout(name, None)

    def _put_rollout(self, node: str, rollout: SeenRollout | None) -> None:
        if self._rollouts.get(node) == rollout:
            return
        if rollout is None:
            del self._rollouts[node]
        else:
            self._rollouts[node] = rollout
        self._mark("rollouts")

    def put_mig_layout(self, one: MigLayout) -> None:
        if self._mig_layouts.get(one.name) != one:
            self._mig_layouts[one.name] = one
            self._mark(*_KEPT)

    def remove_mig_layout(self, name: str) -> None:
        if self._mig_layouts.pop(name, None) is not None:
            self._mark(*_KEPT)

    @property
    def mig_layouts(self) -> Iterable[str]:
        return tuple(self._mig_layouts)

    def set_mig_layouts_unseen(self, text: str) -> None:
        """Why MigLayouts cannot be read; empty: they can, or there are none."""
        if text != self._mig_layouts_unseen:
            self._mig_layouts_unseen = text
            self._mark(*_KEPT)

    def put_pod(self, one: DashboardPod) -> bool:
        before = self._pods.get(Key(one.use.namespace, one.use.name))
        news = super().put_pod(one)
        if news and self._is_news(before, one) and self._admissions.takes(one.use.created):
            self.admitted(admission_of(one))
        return news

    def dra_changed(self) -> None:
        super().dra_changed()
        self.version += 1

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

    def _mark(self, *parts: str) -> None:
        self._marked.update(parts)
        self.version += 1

    def _changed(self, node: str) -> None:
        self._mark(f"node/{node}" if node else "pending", "totals")

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
                asked = bounded(self._capacity.asked, self._known.__contains__)
                return resource_rows(self._counted().sums, asked)
            case "demand":
                return self._demand.of(of) if of else demand_part(self.usage)
            case "pending":
                return pending_part(self._on.get("", {}).values(), self._reasons)
            case "admissions":
                return self._admissions.shown()
            case "miglayouts":
                return layouts_part(self._mig_layouts.values(), self._mig_layouts_unseen)
            case "rollouts":
                return rollouts_part(self._rollouts, self._mig_layouts.values())
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
