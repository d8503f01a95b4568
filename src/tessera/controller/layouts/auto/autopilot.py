"""Mode Auto, without I/O: what is decided, what is begun, and what the status says of it.

The status is what survives a restart: a re-cut stands there, with the slot of its node, before the node is cordoned.

How nodes stand to a MigLayout in mode Auto: which may be re-cut, which are left alone, and what those being changed will have. Pure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from tessera.controller.layouts.auto import decisions as told_by
from tessera.controller.layouts.auto.deciding import Look, Question, Undecided, rollouts_of
from tessera.controller.layouts.auto.decisions import Rollouts
from tessera.controller.layouts.auto.memory import MOST_CUTS, Memory, lately, note_ends, note_ends_in
from tessera.controller.layouts.plan import LayoutPlan, SeenNode, State
from tessera.core.autopilot.shares import Taker, settle
from tessera.core.autopilot.values import Charge, Past, Use
from tessera.core.errors import InvalidInput
from tessera.inventory.wants import Situation
from tessera.kube.clock import SYSTEM_CLOCK, Retries
from tessera.protocol.mig.documents import CONFIG_STATE
from tessera.protocol.mig.miglayout import AutopilotStatus, HistoryRow, MigLayout, read_past, write_past
from tessera.protocol.mig.rollouts import Phase, Result

REST_FAILED: Final = 3600.0  # seconds in which a node is left alone that did not take a layout
# the same of a node that was in use, dead, or changed by another client; twice as long each time in a row
REST: Final = 60.0
_LONGEST_REST: Final = 3600.0
_TO_NOTHING: Final = (Result.IN_USE, Result.NOT_READY, Result.OVERTAKEN)
_MOST_NAMESPACES: Final = 20  # that a metric names; the others are counted together


def standing(
    node: SeenNode,
    uid: str,
    now: float,
    told: Mapping[str, str],
    unknown: str = "",
    put_off: str = "",
    rests: str = "",
) -> tuple[State, str]:
    """How a node stands to its MigLayout: current where the autopilot may re-cut it; else why it is left alone.

    `rests`: why it is left alone for longer than after one re-cut that came to nothing.
    """
    record, end = node.record, node.end
    if node.unreadable:
        return State.FAILED, f"{node.unreadable}; remove the annotation, and uncordon the node yourself"
    if record is not None:
        if record.owner.uid == uid:
            return State.UPDATING, told.get(node.name, str(record.phase))
        return State.PENDING, record.say_whose()
    if end is not None:  # whichever MigLayout's it was: the node is the same
        if end.result is Result.FAILED and end.is_within(REST_FAILED, now):
            return State.FAILED, f"{end.reason}; left alone for {REST_FAILED / 60:g} minutes"
        if rests:
            return State.PENDING, rests
        if end.result is not Result.NOT_BEGUN and end.is_within(REST, now):
            return State.PENDING, f"{end.result}: {end.reason}; left alone for {REST:g} s"
    if not node.node.status.ready:
        return State.PENDING, "the node is not ready"
    if node.node.spec.unschedulable:
        return State.PENDING, "it is cordoned"
    state = (node.node.metadata.labels or {}).get(CONFIG_STATE, "success")
    if state != "success":
        return State.PENDING, f"the layout that it was given is not there: state {state}"
    if why := rests or put_off or (f"its layout is not known: {unknown}" if unknown else ""):
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
        elif node.node.spec.unschedulable and (node.record is None or not node.record.uncordons):
            found[node.name] = "it is cordoned"
    return found


_NO_SLOT: Final = "other nodes are being changed (rollout.maxUnavailable)"


class Autopilot:
    """What was decided last for each MigLayout in mode Auto, and what is remembered."""

    def __init__(
        self,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
        takers: Callable[[str], Sequence[Taker]] = lambda _: (),
    ) -> None:
        """`now`: a clock that never jumps; `takers`: by node, the pods that hold its devices."""
        self.looks: dict[str, Look] = {}  # by the MigLayout's UID
        self._takers = takers
        self._rests = Retries(now, REST, _LONGEST_REST)  # of nodes on which re-cuts came to nothing
        # by the MigLayout's UID: rows that end with the status that is written next
        self._ending: dict[str, list[HistoryRow]] = {}
        self._charges: dict[str, tuple[Charge, ...]] = {}  # by the MigLayout's UID, as the status has them
        self._undecided: Undecided | None = None  # of all MigLayouts
        self._memory = Memory()

    def reset(self) -> None:
        """Forget everything: another process may have led since. What counts is in the status."""
        self.looks.clear()
        self._memory.clear()
        self._rests.clear()
        self._ending.clear()
        self._charges.clear()

    def put_undecided(self, undecided: Undecided | None) -> None:
        """From now on nothing is decided, for this reason; None: it is again."""
        self._undecided = undecided
        if undecided is not None:
            self.looks.clear()

    def knows(self, layouts: Iterable[MigLayout]) -> bool:
        """Whether these were looked at as they are."""
        return all((look := self.looks.get(one.uid)) is not None and look.is_of(one) for one in layouts)

    def wanted(self) -> dict[tuple[str, str], int]:
        """Devices that are wanted and not there, by kind and profile."""
        found = Counter[tuple[str, str]]()
        for look in self.looks.values():
            for profile, one in look.proposal.demand.items():
                for kind in ("waiting", "fell_back", "rejected"):
                    found[kind, profile.label] += getattr(one, kind)
        return +found

    def is_unsettled(self) -> bool:
        """Whether something is wanted, or could not be decided: time alone may change that."""
        return bool(self.wanted()) or any(look.error is not None for look in self.looks.values())

    def refused(self) -> dict[tuple[str], int]:
        """Devices that no room is made for, by why."""
        found = Counter[tuple[str]]()
        for look in self.looks.values():
            for one in look.proposal.refusals:
                found[(str(one.why),)] += one.number
        return found

    def unused(self) -> dict[tuple[str], int]:
        """Re-cuts of the last hour that no pod of the namespace took which wanted them, by namespace."""
        charges = (charge for uid in self.looks for charge in self._charges.get(uid, ()))
        by_namespace = Counter(charge.namespace for charge in charges if charge.use is Use.UNUSED)
        named = {(namespace,): number for namespace, number in by_namespace.most_common(_MOST_NAMESPACES)}
        if rest := by_namespace.total() - sum(named.values()):
            named["other",] = named.get(("other",), 0) + rest
        return named

    def proposed(self) -> int:
        """Cards that would be re-cut."""
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
            rests = self._rests.reason_to_wait(node.name)
            state, why = standing(node, "", now, {}, put_off=put_off(node.name), rests=rests)
            if state is not State.CURRENT:
                found[node.name] = why
        return found

    def question(
        self,
        layouts: Iterable[MigLayout],
        every: Iterable[MigLayout],
        nodes: Mapping[str, SeenNode],
        now: float,
    ) -> Question:
        """What is to be decided for these of all MigLayouts, and by what."""
        some = tuple(layouts)
        past = {one.uid: self._settled(self._memory.of(one, now), now) for one in some}
        return Question(some, tuple(every), dict(nodes), past, now)

    def _settled(self, past: Past, now: float) -> Past:
        """What is remembered, with what became of re-cuts that were made for namespaces."""
        return replace(past, charges=settle(past.charges, self._takers, now))

    def take(self, question: Question, looks: Mapping[str, Look]) -> None:
        """Go by what was decided."""
        self.looks = dict(looks)
        self._charges = {uid: charges for uid, charges in self._charges.items() if uid in looks}
        self._memory.forget_others({layout.uid for layout in question.every})
        for layout in question.layouts:
            if (look := looks.get(layout.uid)) is not None and look.error is None:
                self._memory.keep(layout, look.proposal.past)

    def look(
        self,
        layouts: Iterable[MigLayout],
        every: Collection[MigLayout],
        nodes: Mapping[str, SeenNode],
        seen: Situation,
        now: float,
    ) -> None:
        """Decide at once, for who has nothing else to do meanwhile; what goes wrong is raised."""
        question = self.question(layouts, every, nodes, now)
        looks = question.decide(seen)
        for one in looks.values():
            if one.error is not None:
                raise one.error
        self.take(question, looks)

    def plan(
        self,
        plan: LayoutPlan,
        kept: Sequence[SeenNode],
        now: float,
        told: Mapping[str, str],
        put_off: Callable[[str], str],
    ) -> list[str]:
        """Say how each node stands; the nodes that may be re-cut, in order."""
        layout, look = plan.layout, self.looks.get(plan.layout.uid)
        unknown = look.unknown if look else {}
        for node in kept:
            off = put_off(node.name)
            rests = self._rests.reason_to_wait(node.name)
            known = unknown.get(node.name, "")
            plan.states[node.name] = standing(node, layout.uid, now, told, known, off, rests)
        try:
            _ = layout.spec.autopilot.limits
        except InvalidInput as error:
            plan.error = plan.error or f"spec.autopilot: {error}"
        undecided = self._why_undecided(layout)
        if undecided is None and look is None:  # what the status said before stands as long
            undecided = Undecided.said_in(layout.autopilot.summary)
        why = undecided.reason if undecided else ""
        plan.stopped = plan.error or _stopped(layout, now) or why[:1].lower() + why[1:]
        under_way = rollouts_of(layout, kept)
        # a slot without a rollout may be that of one that an earlier leader still begins: first it is given back
        open_slots = {*layout.updating} - under_way
        if plan.stopped or open_slots or look is None or not look.holds(layout, under_way):
            return []
        for one in look.proposal.recuts:
            if plan.is_current(one.node):
                plan.recuts.setdefault(one.node, []).append(one)
        return told_by.with_rows(layout.autopilot.history, plan.recuts)

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
        ended = [*zip(before.history, history, strict=True)]
        self._ending[layout.uid] = [row for old, row in ended if old.result != row.result]
        look, dry_run = self.looks.get(layout.uid), layout.spec.autopilot.dry_run
        if look is None or look.error is not None or not look.is_of(layout):
            text = note_ends_in(before.past, ended, now)
            stands = structs.replace(before, dry_run=dry_run, history=history, past=text)
            if undecided := self._why_undecided(layout):
                return structs.replace(stands, summary=undecided.summary, recuts=[], refusals=[])
            return stands
        begun = [one for name in plan.begin for one in plan.recuts[name]]
        past = self._settled(note_ends(self._memory.of(layout, now), ended, now), now)
        self._charges[layout.uid] = past.charges
        if begun:
            past = lately(past, layout, now).after(begun, now)
        proposal = look.proposal
        left = [
            one
            for one in proposal.recuts
            if one.node not in look.begun and one.node not in plan.begin and plan.is_current(one.node)
        ]
        if dry_run and not plan.error:
            keeps = layout.spec.autopilot.recuts_per_hour // 2  # as many as it would cut for nobody
            history = told_by.dry_rows(history, left, now, keeps)
        return AutopilotStatus(
            dry_run,
            told_by.summary(proposal, left, begun, plan.stopped, look.unseen),
            told_by.demand_rows(proposal),
            told_by.recut_rows(left, plan.stopped or _NO_SLOT),
            told_by.refusal_rows(proposal),
            told_by.namespace_rows(past.charges, layout.spec.autopilot.recuts_per_hour),
            told_by.begun_rows(history, begun, now),
            write_past(past),
        )

    def _why_undecided(self, layout: MigLayout) -> Undecided | None:
        """Why nothing is decided for a MigLayout; None where something is, or soon will be."""
        look = self.looks.get(layout.uid)
        if look is not None and look.error is not None:
            return Undecided.by(look.error)
        return self._undecided

    def written(self, plan: LayoutPlan) -> None:
        """A status was written: what begins with it is begun, and the next look decides about the rest."""
        if (look := self.looks.get(plan.layout.uid)) is not None and plan.begin:
            look.begun.update(plan.begin)
        ended = {row.node: row for row in self._ending.pop(plan.layout.uid, ())}  # one of each rollout
        for node, row in ended.items():
            if row.result == Result.DONE:
                self._rests.forget(node)
            elif row.result in _TO_NOTHING:
                why = f"{row.result}: {row.told}; left alone for {REST:g} s, and twice as long each time in a row"
                self._rests.put_off(node, why)
        self._rests.forget_old()


def _stopped(layout: MigLayout, now: float) -> str:
    """Why no re-cut begins; empty where they may."""
    if layout.spec.paused:
        return "paused"
    if layout.spec.autopilot.dry_run:
        return "dry run"
    past = read_past(layout.autopilot.past) or Past()
    many = len(lately(past, layout, now).cuts) >= MOST_CUTS
    return f"{MOST_CUTS} re-cuts are in their cool-down, and no more are remembered" if many else ""
