"""Mode Auto, without I/O: which nodes are left alone, what is decided, what is begun, and what the status says of it.

The status is what survives a restart: a re-cut stands there, with the slot of its node, before the node is cordoned.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from tessera.controller.layouts import decisions as told_by
from tessera.controller.layouts.decisions import Rollouts
from tessera.controller.layouts.plan import LayoutPlan, SeenNode, State, owners
from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.values import CardSupply, Cut, Past, Proposal, Recut, Want
from tessera.core.errors import InvalidInput
from tessera.core.mig.profile import MigProfile
from tessera.inventory.demand.wants import Situation
from tessera.protocol.mig.autopilot import AutopilotStatus, HistoryRow, read_past, write_past
from tessera.protocol.mig.documents import CONFIG_STATE
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import Phase, Result

REST_FAILED: Final = 3600.0  # seconds in which a node is left alone that did not take a layout
REST: Final = 60.0  # the same of a node that was in use, dead, or changed by hand
_NUMBERS: Final = 30.0  # seconds between two writes of a status in which only numbers differ
_ANYTHING: Final = 300.0  # the same where only what is remembered differs
_NO_SLOT: Final = "other nodes are being changed (rollout.maxUnavailable)"


@dataclass(slots=True)
class Look:
    """What was decided for one MigLayout at one moment."""

    generation: int
    cuts: tuple[Cut, ...]  # what the status had of earlier re-cuts
    proposal: Proposal
    unknown: Mapping[str, str]  # nodes whose layout is not known, and why
    unseen: str = ""  # what could not be read
    begun: set[str] = field(default_factory=set)  # nodes that were begun by it: the next look decides again

    def is_of(self, layout: MigLayout, past: Past) -> bool:
        """Whether a MigLayout is still as it was looked at."""
        return (self.generation, self.cuts) == (layout.metadata.generation, past.cuts)


def standing(
    node: SeenNode, uid: str, now: float, told: Mapping[str, str], unknown: str = "", put_off: str = ""
) -> tuple[State, str]:
    """How a node stands to its MigLayout: current where the autopilot may cut it anew; else why it is left alone."""
    record, end = node.record, node.end
    if node.unreadable:
        return State.FAILED, f"{node.unreadable}; remove the annotation, and uncordon the node yourself"
    if record is not None:
        if record.owner.uid == uid:
            return State.UPDATING, told.get(node.name, str(record.phase))
        return State.PENDING, f"{record.owner} is changing it"
    if end is not None and end.owner.uid == uid:
        if end.result is Result.FAILED and now < end.at + REST_FAILED:
            return State.FAILED, f"{end.reason}; left alone for {REST_FAILED / 60:g} minutes"
        if end.result is not Result.NOT_BEGUN and now < end.at + REST:
            return State.PENDING, f"{end.result}: {end.reason}; left alone for {REST:g} s"
    if not node.node.status.ready:
        return State.PENDING, "the node is not ready"
    if node.node.spec.unschedulable:
        return State.PENDING, "it is cordoned"
    state = (node.node.metadata.labels or {}).get(CONFIG_STATE, "success")
    if state != "success":
        return State.PENDING, f"the layout that it was given is not there: state {state}"
    if why := put_off or (f"its layout is not known: {unknown}" if unknown else ""):
        return State.PENDING, why
    return State.CURRENT, ""


def coming(nodes: Iterable[SeenNode]) -> dict[str, Mapping[str, int]]:
    """What nodes whose layout is being changed will have of GPUs, as far as it is known."""
    found: dict[str, Mapping[str, int]] = {}
    for node in nodes:
        if (record := node.record) is not None:
            then = record.offered if record.phase is Phase.PUTTING_BACK else record.expected
            if then is not None:
                found[node.name] = then
    return found


def closed(nodes: Iterable[SeenNode]) -> dict[str, str]:
    """Nodes that take no pods now, and will not when a rollout is over."""
    found = {}
    for node in nodes:
        if not node.node.status.ready:
            found[node.name] = "the node is not ready"
        elif node.node.spec.unschedulable and (node.record is None or node.record.cordoned):
            found[node.name] = "it is cordoned"
    return found


class Autopilot:
    """What was decided last for each MigLayout in mode Auto, and what is remembered."""

    def __init__(self) -> None:
        self.looks: dict[str, Look] = {}  # by the MigLayout's UID
        self.missing = ""  # why it is not known what pods wait for
        self._past: dict[str, Past] = {}
        self._written: dict[str, float] = {}  # when the status was written

    def reset(self) -> None:
        """Forget everything: another process may have led since. What counts is in the status."""
        self.looks.clear()
        self._past.clear()
        self._written.clear()

    def knows(self, layouts: Iterable[MigLayout]) -> bool:
        """Whether these were looked at as they are."""
        return all(
            (look := self.looks.get(one.uid)) is not None and look.generation == one.metadata.generation
            for one in layouts
        )

    def wanted(self) -> dict[tuple[str, str], int]:
        """Devices that are wanted and not there, by kind and profile."""
        found = Counter[tuple[str, str]]()
        for look in self.looks.values():
            for profile, one in look.proposal.demand.items():
                for kind in ("waiting", "fell_back", "rejected"):
                    found[kind, profile.label] += getattr(one, kind)
        return +found

    def refused(self) -> dict[tuple[str], int]:
        """Devices that no room is made for, by why."""
        found = Counter[tuple[str]]()
        for look in self.looks.values():
            for one in look.proposal.refusals:
                found[(str(one.why),)] += one.number
        return found

    def proposed(self) -> int:
        """Cards that would be cut anew."""
        return sum(one.node not in look.begun for look in self.looks.values() for one in look.proposal.recuts)

    def left(
        self,
        nodes: Iterable[SeenNode],
        now: float,
        put_off: Callable[[str], str],
    ) -> dict[str, str]:
        """Nodes that are left as they are, and why."""
        found = {}
        for node in nodes:
            uid = node.end.owner.uid if node.end is not None else ""  # whichever MigLayout's it was
            state, why = standing(node, uid, now, {}, put_off=put_off(node.name))
            if state is not State.CURRENT:
                found[node.name] = why
        return found

    def look(
        self,
        layouts: Iterable[MigLayout],
        every: Collection[MigLayout],
        nodes: Mapping[str, SeenNode],
        seen: Situation,
        now: float,
    ) -> None:
        """Decide for these of all MigLayouts, the oldest first: what it serves, the next ones need not."""
        cards: dict[str, list[CardSupply]] = {}
        for name, some in owners(every, nodes.values()).items():
            cards.setdefault(some[0].uid, []).extend(seen.cards.get(name, ()))
        wants, self.looks = list(seen.wants), {}
        for layout in sorted(layouts, key=lambda one: one.age):
            try:
                limits = layout.spec.autopilot.limits
            except InvalidInput:
                continue  # the plan says it
            past = self._remembered(layout)
            supply = cards.get(layout.uid, [])
            queues = frozenset[int]().union(*{one.queues for one in supply})
            mine = [one for one in wants if one.queue in queues]
            proposal = propose(mine, supply, past, limits, now)
            self._past[layout.uid] = proposal.past
            generation = layout.metadata.generation
            self.looks[layout.uid] = Look(generation, past.cuts, proposal, seen.unknown, seen.unseen)
            if not layout.spec.autopilot.dry_run:
                wants = list(_less(wants, queues, proposal.recuts))

    def _remembered(self, layout: MigLayout) -> Past:
        """What is remembered: of re-cuts, only what the status has; every write to it has the version of what was read."""
        stored = read_past(layout.autopilot.past)
        mine = self._past.get(layout.uid)
        return stored if mine is None else replace(mine, cuts=stored.cuts)

    def plan(
        self,
        plan: LayoutPlan,
        kept: Sequence[SeenNode],
        now: float,
        told: Mapping[str, str],
        put_off: Callable[[str], str],
    ) -> list[str]:
        """Say how each node stands; the nodes that may be cut anew, in order."""
        layout, look = plan.layout, self.looks.get(plan.layout.uid)
        unknown = look.unknown if look else {}
        for node in kept:
            off = put_off(node.name)
            plan.states[node.name] = standing(node, layout.uid, now, told, unknown.get(node.name, ""), off)
        try:
            _ = layout.spec.autopilot.limits
        except InvalidInput as error:
            plan.error = plan.error or f"spec.autopilot: {error}"
        plan.stopped = plan.error or (
            "paused" if layout.spec.paused else "dry run" if layout.spec.autopilot.dry_run else ""
        )
        if plan.stopped or look is None or look.begun or not look.is_of(layout, self._remembered(layout)):
            return []
        for one in look.proposal.recuts:
            if plan.is_current(one.node):
                plan.recuts.setdefault(one.node, []).append(one)
        return list(plan.recuts)

    def status(
        self,
        plan: LayoutPlan,
        nodes: Mapping[str, SeenNode],
        released: Collection[str],
        rollouts: Rollouts,
        now: float,
    ) -> AutopilotStatus:
        """What the status says: re-cuts that begin with it are in the history, and count from then on."""
        layout, before = plan.layout, plan.layout.autopilot
        slots = {*layout.updating, *plan.begin} - {*released}
        history = told_by.ended_rows(before.history, nodes, layout.uid, slots, rollouts)
        begun = [one for name in plan.begin for one in plan.recuts[name]]
        past = _without(self._remembered(layout), zip(before.history, history, strict=True)).after(begun, now)
        look, dry_run = self.looks.get(layout.uid), layout.spec.autopilot.dry_run
        if look is None:
            text = f"What pods wait for is not known: {self.missing}."
            return structs.replace(
                before, dry_run=dry_run, summary=text, history=history, past=write_past(past)
            )
        proposal = look.proposal
        left = [
            one
            for one in proposal.recuts
            if one.node not in look.begun and one.node not in plan.begin and plan.is_current(one.node)
        ]
        if dry_run and not plan.error:
            history = told_by.dry_rows(history, left, now)
        return AutopilotStatus(
            dry_run,
            told_by.summary(proposal, left, begun, plan.stopped),
            told_by.demand_rows(proposal),
            told_by.recut_rows(left, plan.stopped or _NO_SLOT),
            told_by.refusal_rows(proposal),
            told_by.begun_rows(history, begun, now),
            write_past(past),
        )

    def worth_writing(self, layout: MigLayout, new: AutopilotStatus, now: float) -> bool:
        """Whether a status is worth a write: a decision at once, mere numbers now and then."""
        old, last = layout.autopilot, self._written.setdefault(layout.uid, now)
        return (
            told_by.decisions(old) != told_by.decisions(new)
            or (now >= last + _NUMBERS and told_by.numbers(old) != told_by.numbers(new))
            or (now >= last + _ANYTHING and old != new)
        )

    def written(self, plan: LayoutPlan, now: float) -> None:
        """A status was written: what begins with it is begun, and the next look decides about the rest."""
        uid = plan.layout.uid
        self._written[uid] = now
        if (look := self.looks.get(uid)) is not None and plan.begin:
            look.begun.update(plan.begin)


def _less(wants: Iterable[Want], queues: Collection[int], recuts: Iterable[Recut]) -> Iterable[Want]:
    """The wants that re-cuts leave."""
    served = Counter[MigProfile]()
    for one in recuts:
        served.update(one.serves)
    for want in wants:
        taken = min(want.number, served[want.profile]) if want.queue in queues else 0
        served[want.profile] -= taken
        if taken < want.number:
            yield replace(want, number=want.number - taken)


def _without(past: Past, rows: Iterable[tuple[HistoryRow, HistoryRow]]) -> Past:
    """What is remembered, without the last re-cut of cards whose nodes were not even cordoned."""
    for before, after in rows:
        if before.result != after.result == Result.NOT_BEGUN:
            cuts = list(past.cuts)
            of = [one for one in cuts if (one.node, one.number) == (after.node, after.card)]
            if of:
                cuts.remove(max(of, key=lambda one: one.at))
            past = replace(past, cuts=tuple(cuts))
    return past
