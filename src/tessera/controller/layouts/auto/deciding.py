"""One look of the autopilot: from values to what is decided for each MigLayout. Pure, so it runs beside the loop.

Limits that hold whatever becomes of the nodes that are being changed.

A node on which a re-cut has begun has its old devices, its new ones, or soon its old ones again; of a node whose layout is not known only what is allocatable
is. What is counted of such nodes may not be there, and other devices may be: the limits are made as much stricter.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from tessera.controller.layouts.auto.memory import stored_cuts
from tessera.controller.layouts.plan import SeenNode, owners
from tessera.controller.reconciler import words
from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.values import CardSupply, Cut, Limits, Past, Proposal, Recut, Want
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU
from tessera.core.text import first_of
from tessera.inventory.wants import Situation
from tessera.protocol.mig.miglayout import MigLayout
from tessera.rollout.progress import offered_by

Device = MigProfile | None  # None: a whole GPU


def careful(
    limits: Limits,
    nodes: Iterable[SeenNode],
    cards: Mapping[str, Sequence[CardSupply]],
    changed: Collection[str],
) -> Limits:
    """The limits for what is counted in `cards`; `changed`: nodes of which what was seen may be out of date."""
    missing, more = Counter[Device](), Counter[Device]()
    for node in nodes:
        others = [*_others(node, out_of_date=node.name in changed or node.name not in cards)]
        if not others:
            continue
        counted = _counted(cards.get(node.name, ()))
        ways = [counted, *others]
        for device in set[Device]().union(*ways):
            numbers = [one[device] for one in ways]
            if node.name in cards:
                missing[device] += counted[device] - min(numbers)
            more[device] += max(numbers) - counted[device]
    return replace(
        limits,
        minimum={one: number + missing[one] for one, number in limits.minimum.items()},
        maximum={one: number - more[one] for one, number in limits.maximum.items()},
        keep_whole=limits.keep_whole and limits.keep_whole + missing[None],
    )


def _counted(cards: Iterable[CardSupply]) -> Counter[Device]:
    found = Counter[Device]()
    for card in cards:
        if card.layout.mig_enabled:
            found.update(one.profile for one in card.layout.instances)
        else:
            found[None] += 1
    return found


def _others(node: SeenNode, *, out_of_date: bool) -> Iterable[Counter[Device]]:
    """What a node may have instead."""
    record = node.record
    if record is not None:
        yield _devices(record.offered)
        yield _devices(record.expected or {})
    if out_of_date and (offered := offered_by(node.node)):
        yield _devices(offered)


def _devices(resources: Mapping[str, int]) -> Counter[Device]:
    """Devices by what they are called under the MIG strategy mixed, which alone is planned for."""
    found = Counter[Device]()
    for resource, number in resources.items():
        profile = MigProfile.of_resource(resource)
        if profile is not None or resource == WHOLE_GPU:
            found[profile] += number
    return found


_NOTHING: Final = ". Nothing is re-cut."
_MOST_NAMED: Final = 3  # profiles that are named; more are counted
_CATCHES_UP: Final = 60.0  # seconds after a re-cut in which what is seen of its node may be out of date


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing is decided, so nothing is re-cut."""

    reason: str  # a sentence without its full stop

    @classmethod
    def by(cls, error: Exception) -> Self:
        return cls(f"The autopilot cannot decide: {words(error)}")

    @classmethod
    def said_in(cls, summary: str) -> Self | None:
        """What a status says; None where it says something else."""
        return cls(summary.removesuffix(_NOTHING)) if summary.endswith(_NOTHING) else None

    @property
    def summary(self) -> str:
        """The same in a status."""
        return f"{self.reason}{_NOTHING}"


@dataclass(slots=True)
class Look:
    """What was decided for one MigLayout at one moment."""

    generation: int
    cuts: tuple[Cut, ...] | None  # what the status had of earlier re-cuts; None: it could not be read
    under_way: frozenset[str]  # nodes on which re-cuts were under way
    proposal: Proposal = field(default_factory=Proposal)
    unknown: Mapping[str, str] = field(default_factory=dict)  # nodes whose layout is not known, and why
    unseen: str = ""  # what could not be read, or means nothing
    error: Exception | None = None  # why nothing could be decided
    begun: set[str] = field(default_factory=set)  # nodes that were begun by it: the next look decides again

    def is_of(self, layout: MigLayout) -> bool:
        """Whether a MigLayout says what it said when it was looked at, and what is remembered of it was not broken since."""
        readable = self.cuts is None or stored_cuts(layout) is not None
        return self.generation == layout.metadata.generation and readable

    def holds(self, layout: MigLayout, under_way: frozenset[str]) -> bool:
        """Whether a MigLayout is still as it was looked at, and no re-cut has begun since."""
        same = self.is_of(layout) and self.cuts is not None and self.cuts == stored_cuts(layout)
        return same and self.error is None and not self.begun and under_way <= self.under_way


@dataclass(frozen=True, slots=True)
class Question:
    """What a look decides by. Nothing of it changes while it decides: objects are replaced, never changed."""

    layouts: tuple[MigLayout, ...]  # that are decided for
    every: tuple[MigLayout, ...]
    nodes: Mapping[str, SeenNode]
    past: Mapping[str, Past]  # what is remembered, by the MigLayout's UID
    now: float

    def decide(self, seen: Situation) -> dict[str, Look]:
        """Decide for each MigLayout, by its UID, the oldest first: what it serves, the next ones need not.

        One that begins nothing serves nobody: a dry run, a paused one, one that is being deleted.
        """
        kept: dict[str, list[SeenNode]] = {}
        for name, some in owners(self.every, self.nodes.values()).items():
            kept.setdefault(some[0].uid, []).append(self.nodes[name])
        wants, looks = list(seen.wants), dict[str, Look]()
        for layout in sorted(self.layouts, key=lambda one: one.age):
            mine = kept.get(layout.uid, [])
            cuts, under_way = stored_cuts(layout), rollouts_of(layout, mine)
            supply = [card for node in mine for card in seen.cards.get(node.name, ())]
            # also of nodes whose cards cannot be cut now: nothing that pods want of them is there
            queues = frozenset[int]().union(*(seen.queues.get(node.name, ()) for node in mine))
            try:
                past, limits = self.past[layout.uid], layout.spec.autopilot.limits
                unseen = "; ".join(one for one in (seen.unseen, _unknown(limits, supply)) if one)
                changed = {one.node for one in past.cuts if self.now - one.at < _CATCHES_UP}
                limits = careful(limits, mine, seen.cards, changed)
                wanted = [one for one in wants if one.queue in queues]
                proposal = propose(wanted, supply, past, limits, self.now, _used(seen, mine))
            except Exception as error:  # noqa: BLE001 # limits that cannot be read, or a bug: the others are decided for
                looks[layout.uid] = Look(layout.metadata.generation, cuts, under_way, error=error)
                continue
            looks[layout.uid] = Look(
                layout.metadata.generation, cuts, under_way, proposal, seen.unknown, unseen
            )
            if not (layout.spec.autopilot.dry_run or layout.spec.paused or layout.ends):
                wants = list(_less(wants, queues, proposal.recuts))
        return looks


def rollouts_of(layout: MigLayout, nodes: Iterable[SeenNode]) -> frozenset[str]:
    """The nodes with a rollout of a MigLayout; those on which it cannot be told wait for a person."""
    return frozenset(
        one.name
        for one in nodes
        if one.unreadable or (one.record is not None and one.record.owner.uid == layout.uid)
    )


def _unknown(limits: Limits, cards: Iterable[CardSupply]) -> str:
    """Which profiles of the limits no card can have: a slip there would protect nothing, without a word."""
    products = {one.layout.product for one in cards}
    if not products:
        return ""
    named = sorted({*limits.minimum, *limits.maximum})
    names = [str(one) for one in named if not any(product.shape(one) for product in products)]
    return f"no card can have {first_of(names, _MOST_NAMED)}, of minimum or maximum" if names else ""


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
    served = Counter[tuple[MigProfile, int]]()
    for one in recuts:
        served.update({(profile, one.together): number for profile, number in one.serves.items()})
    for want in wants:
        what = want.profile, want.together
        pods = min(want.number, served[what]) // want.together if want.queue in queues else 0
        taken = pods * want.together
        served[what] -= taken
        if taken < want.number:
            yield replace(want, number=want.number - taken)
