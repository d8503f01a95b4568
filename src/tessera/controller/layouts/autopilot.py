"""Mode Auto, without I/O: what is decided, what is begun, and what the status says of it.

The status is what survives a restart: a re-cut stands there, with the slot of its node, before the node is cordoned.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from tessera.controller.layouts.auto import decisions as told_by
from tessera.controller.layouts.auto.decisions import Rollouts
from tessera.controller.layouts.auto.limits import careful
from tessera.controller.layouts.auto.memory import MOST_CUTS, Memory, refunded, stored_cuts
from tessera.controller.layouts.auto.standing import standing
from tessera.controller.layouts.plan import LayoutPlan, SeenNode, State, owners
from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.values import Cut, Proposal, Recut, Want
from tessera.core.errors import InvalidInput
from tessera.core.mig.profile import MigProfile
from tessera.inventory.demand.wants import Situation
from tessera.protocol.mig.autopilot import AutopilotStatus, write_past
from tessera.protocol.mig.miglayout import MigLayout

_NUMBERS: Final = 30.0  # seconds between two writes of a status in which only numbers differ
_ANYTHING: Final = 300.0  # the same where only what is remembered differs
_CATCHES_UP: Final = 60.0  # seconds after a re-cut in which what is seen of its node may be out of date
_NO_SLOT: Final = "other nodes are being changed (rollout.maxUnavailable)"


@dataclass(slots=True)
class Look:
    """What was decided for one MigLayout at one moment."""

    generation: int
    cuts: tuple[Cut, ...] | None  # what the status had of earlier re-cuts; None: it could not be read
    under_way: frozenset[str]  # nodes on which re-cuts were under way
    proposal: Proposal
    unknown: Mapping[str, str]  # nodes whose layout is not known, and why
    unseen: str = ""  # what could not be read
    begun: set[str] = field(default_factory=set)  # nodes that were begun by it: the next look decides again

    def holds(self, layout: MigLayout, under_way: frozenset[str]) -> bool:
        """Whether a MigLayout is still as it was looked at, and no re-cut has begun since."""
        same = (self.generation, self.cuts) == (layout.metadata.generation, stored_cuts(layout))
        return same and self.cuts is not None and not self.begun and under_way <= self.under_way


class Autopilot:
    """What was decided last for each MigLayout in mode Auto, and what is remembered."""

    def __init__(self) -> None:
        self.looks: dict[str, Look] = {}  # by the MigLayout's UID
        self.missing = ""  # why it is not known what pods wait for
        self._memory = Memory()
        self._written: dict[str, float] = {}  # when the status was written

    def reset(self) -> None:
        """Forget everything: another process may have led since. What counts is in the status."""
        self.looks.clear()
        self._memory.clear()
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
        kept: dict[str, list[SeenNode]] = {}
        for name, some in owners(every, nodes.values()).items():
            kept.setdefault(some[0].uid, []).append(nodes[name])
        wants, self.looks = list(seen.wants), {}
        for layout in sorted(layouts, key=lambda one: one.age):
            try:
                limits = layout.spec.autopilot.limits
            except InvalidInput:
                continue  # the plan says it
            past, mine = self._memory.of(layout, now), kept.get(layout.uid, [])
            supply = [card for node in mine for card in seen.cards.get(node.name, ())]
            changed = {one.node for one in past.cuts if now - one.at < _CATCHES_UP}
            limits = careful(limits, mine, seen.cards, changed)
            queues = frozenset[int]().union(*{one.queues for one in supply})
            wanted = [one for one in wants if one.queue in queues]
            proposal = propose(wanted, supply, past, limits, now, _used(seen, mine))
            self._memory.keep(layout, proposal.past)
            self.looks[layout.uid] = Look(
                layout.metadata.generation,
                stored_cuts(layout),
                _under_way(layout, mine),
                proposal,
                seen.unknown,
                seen.unseen,
            )
            if not layout.spec.autopilot.dry_run:
                wants = list(_less(wants, queues, proposal.recuts))

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
            plan.states[node.name] = standing(node, layout.uid, now, told, unknown.get(node.name, ""), off)
        try:
            _ = layout.spec.autopilot.limits
        except InvalidInput as error:
            plan.error = plan.error or f"spec.autopilot: {error}"
        plan.stopped = plan.error or _stopped(layout)
        under_way = _under_way(layout, kept)
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
        begun = [one for name in plan.begin for one in plan.recuts[name]]
        past = refunded(self._memory.of(layout, now), zip(before.history, history, strict=True))
        past = past.after(begun, now)
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
            told_by.summary(proposal, left, begun, plan.stopped, look.unseen),
            told_by.demand_rows(proposal),
            told_by.recut_rows(left, plan.stopped or _NO_SLOT),
            told_by.refusal_rows(proposal),
            told_by.begun_rows(history, begun, now),
            write_past(past),
        )

    def worth_writing(self, layout: MigLayout, new: AutopilotStatus, now: float) -> bool:
        """Whether a status is worth a write: a decision at once, mere numbers now and then."""
        old = layout.autopilot
        return (
            told_by.decisions(old) != told_by.decisions(new)
            or (self.is_due(layout, now) and told_by.numbers(old) != told_by.numbers(new))
            or (self.is_due(layout, now, _ANYTHING) and old != new)
        )

    def is_due(self, layout: MigLayout, now: float, seconds: float = _NUMBERS) -> bool:
        """Whether a status has not been written for so long, or a clock was ahead when it was."""
        return not 0.0 <= now - self._written.setdefault(layout.uid, now) < seconds

    def written(self, plan: LayoutPlan, now: float) -> None:
        """A status was written: what begins with it is begun, and the next look decides about the rest."""
        uid = plan.layout.uid
        self._written[uid] = now
        if (look := self.looks.get(uid)) is not None and plan.begin:
            look.begun.update(plan.begin)


def _used(seen: Situation, nodes: Iterable[SeenNode]) -> Mapping[MigProfile, int] | None:
    """Devices that pods have on these nodes."""
    if seen.used is None:
        return None
    found = Counter[MigProfile]()
    for node in nodes:
        found.update(seen.used.get(node.name, {}))
    return found


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


def _under_way(layout: MigLayout, nodes: Iterable[SeenNode]) -> frozenset[str]:
    """The nodes with a rollout of a MigLayout; those on which it cannot be told wait for a person."""
    return frozenset(
        one.name
        for one in nodes
        if one.unreadable or (one.record is not None and one.record.owner.uid == layout.uid)
    )


def _stopped(layout: MigLayout) -> str:
    """Why no re-cut begins; empty where they may."""
    if layout.spec.paused:
        return "paused"
    if layout.spec.autopilot.dry_run:
        return "dry run"
    many = len(stored_cuts(layout) or ()) >= MOST_CUTS
    return f"{MOST_CUTS} re-cuts are in their cool-down, and no more are remembered" if many else ""
