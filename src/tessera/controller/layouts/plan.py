"""What is to be done for a MigLayout: which of its nodes may begin, and what its status says. Pure.

Never more nodes than `maxUnavailable` have a slot (`status.updating`); only a node with a slot is cordoned. A slot is written with the
MigLayout's version, and given back when its node is known to have no rollout any more. It says whether the
node was cordoned before.
A record without a slot belongs to somebody else: it takes no slot, and blocks its own node only.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Final

from tessera.controller.layouts.judging import Verdict
from tessera.core.autopilot.values import Recut
from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig.miglayout import MigLayout, Slot, find_keepers
from tessera.protocol.mig.rollouts import (
    RESULT,
    Result,
    RolloutEnd,
    RolloutRecord,
    read_end,
    record_of,
)
from tessera.rollout.in_use import Going
from tessera.rollout.rollout import MaxUnavailable

NO_RECORDS: Final[Mapping[str, RolloutRecord]] = MappingProxyType({})
RETRY: Final = 600.0  # seconds until a node is tried again that was in use, dead, or changed by hand


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node, with what it says about rollouts."""

    node: NodeIn
    record: RolloutRecord | None
    end: RolloutEnd | None
    unreadable: str = ""  # why its record cannot be read

    @classmethod
    def of(cls, node: NodeIn) -> "SeenNode":
        last = (node.metadata.annotations or {}).get(RESULT)
        end = read_end(last) if last is not None else None
        try:
            return cls(node, record_of(node.metadata.annotations), end)
        except InvalidInput as error:
            return cls(node, None, end, str(error))

    @property
    def name(self) -> str:
        return self.node.metadata.name


class State(StrEnum):
    """How a node stands to its MigLayout, as the status says it."""

    CURRENT = "Current"
    UPDATING = "Updating"
    PENDING = "Pending"
    FAILED = "Failed"
    INVALID = "Invalid"
    CONFLICT = "Conflict"


@dataclass(slots=True)
class LayoutPlan:
    """What is to be done for one MigLayout."""

    layout: MigLayout
    states: dict[str, tuple[State, str]] = field(default_factory=dict)  # by node, with the reason
    # nodes that it does not keep any more, whose rollout it sees through: what that waits for
    leaving: dict[str, str] = field(default_factory=dict)
    begin: list[str] = field(default_factory=list)  # nodes that may begin, once they have a slot
    unused: list[str] = field(
        default_factory=list
    )  # nodes that have a slot, and no rollout as far as is known
    # nodes whose rollout is one of a MigLayout that is gone: it counts here from now on
    adopted: list[str] = field(default_factory=list)
    # by node, whether it was cordoned before, as its record says it: for slots that do not say it yet
    cordoned_before: dict[str, bool] = field(default_factory=dict)
    recuts: dict[str, list[Recut]] = field(default_factory=dict)  # mode Auto: by node, its cards to be cut
    stopped: str = ""  # why no further node begins
    error: str = ""  # what is wrong with the MigLayout itself
    bug: Exception | None = None  # why there is no plan for it: nothing is to be done, nor known of its nodes

    @property
    def slots(self) -> list[Slot]:
        """What `status.updating` is to be: the slots that there are, and those of nodes that begin."""
        names = sorted({*self.layout.updating, *self.begin, *self.adopted})
        known = self.layout.slots
        return [
            known[name]
            if name in known and known[name].cordoned_before is not None
            else Slot(name, self.cordoned_before.get(name))
            for name in names
        ]

    def ready(self) -> list[str]:
        """Nodes that may begin, now or later: those that begin now go first."""
        later = (name for name, one in self.states.items() if one == (State.PENDING, ""))
        return [*dict.fromkeys((*self.begin, *later))]

    def is_current(self, node: str) -> bool:
        return node in self.states and self.states[node][0] is State.CURRENT

    def shown(self) -> dict[str, tuple[State, str]]:
        """How nodes stand, those that it does not keep any more too, as long as it changes them."""
        return {**self.states, **{name: (State.UPDATING, why) for name, why in self.leaving.items()}}

    def count(self, *states: State) -> int:
        return sum(map(states.__contains__, map(itemgetter(0), self.states.values())))


def find_slot_holders(
    layouts: Collection[MigLayout],
    nodes: Mapping[str, SeenNode],
    remembered: Mapping[str, RolloutRecord],
) -> dict[str, set[str]]:
    """By MigLayout, the nodes whose record has a slot of it; also of MigLayouts that are gone, where that is
    remembered."""
    holders: dict[str, set[str]] = {layout.uid: set() for layout in layouts}
    uids = frozenset(holders)
    for layout in layouts:
        for name in layout.updating:
            owner = owner_on(nodes.get(name))
            if owner and (owner == layout.uid or owner not in uids):
                holders[layout.uid].add(name)
    for name, record in remembered.items():
        if owner_on(nodes.get(name)) == record.owner.uid:
            holders.setdefault(record.owner.uid, set()).add(name)
    return holders


def owner_on(node: SeenNode | None) -> str:
    """The UID of the MigLayout whose rollout is on a node; empty where none is."""
    return node.record.owner.uid if node is not None and node.record is not None else ""


def known_slot(layout: MigLayout, name: str, remembered: Mapping[str, RolloutRecord]) -> Slot:
    """A slot, with what is remembered of its node's record where the status does not say it yet."""
    slot, record = layout.slots[name], remembered.get(name)
    return slot if record is None or slot.cordoned_before is not None else Slot(name, record.cordoned)


def is_lost(node: SeenNode, slot: Slot) -> bool:
    """Whether the controller has cordoned a node by its slot, and the record was removed or spoilt by
    hand."""
    if node.unreadable:
        return slot.cordoned_before is not None
    return node.record is None and bool(node.node.spec.unschedulable) and slot.cordoned_before is False


def may_begin_by(slot: Slot, node: SeenNode) -> bool:
    """Whether a node without a record is cordoned, or not, as it was when it got its slot."""
    return slot.cordoned_before in (None, bool(node.node.spec.unschedulable))


def owners(layouts: Collection[MigLayout], nodes: Iterable[SeenNode]) -> dict[str, list[MigLayout]]:
    """By node, the MigLayouts that select it: the oldest keeps it."""
    keepers = ((node.name, find_keepers(layouts, node.node.metadata.labels)) for node in nodes)
    return {name: selecting for name, selecting in keepers if selecting}


def kept_by(older: MigLayout) -> str:
    """Why a MigLayout does not have a node that it selects."""
    return f"MigLayout {older.name} keeps it, which is older"


def skipped(holders: str) -> str:
    """Why a node that is in use does not begin."""
    return f"skipped while pods hold devices which go: {holders}"


def plan(
    layouts: Collection[MigLayout],
    nodes: Mapping[str, SeenNode],
    judge: Callable[[SeenNode, MigLayout], Verdict],
    busy: Callable[[str, Going], str],
    now: float,
    told: Mapping[str, str] | None = None,
    autopilot: Callable[[LayoutPlan, Sequence[SeenNode]], Sequence[str]] = lambda *_: (),
    remembered: Mapping[str, RolloutRecord] = NO_RECORDS,
) -> list[LayoutPlan]:
    """What is to be done for each; `busy` says which pods hold devices of a node that go, `told` what the rollout of a node waits for.

    In mode Auto `autopilot` says how the nodes stand, and which may begin. `remembered` are records that had
    a slot.
    """
    plans = {one.uid: LayoutPlan(one) for one in layouts}
    keeps: dict[str, list[SeenNode]] = {uid: [] for uid in plans}
    for name, some in owners(layouts, nodes.values()).items():
        keeps[some[0].uid].append(nodes[name])
        for other in some[1:]:
            plans[other.uid].states[name] = State.CONFLICT, kept_by(some[0])
    holders = find_slot_holders(layouts, nodes, remembered)
    with_slot = frozenset(name for names in holders.values() for name in names)
    for uid, one in plans.items():
        left = holders[uid] - {node.name for node in keeps[uid]}
        one.adopted = _orphans(one.layout, keeps[uid], plans, with_slot)
        one.leaving = {name: _under_way(nodes[name], told or {}) for name in left}
        fixed = partial(_fixed, judge=judge, busy=busy, now=now, told=told or {})
        try:
            ready = autopilot if one.layout.follows_demand else fixed
            _plan(one, keeps[uid], holders[uid], with_slot | {*one.adopted}, ready, remembered)
        except Exception as bug:  # noqa: BLE001 # of this MigLayout, whose work raises it: the others have their plans
            plans[uid] = LayoutPlan(one.layout, bug=bug)
    return list(plans.values())


def _plan(
    plan: LayoutPlan,
    kept: list[SeenNode],
    records: AbstractSet[str],
    with_slot: AbstractSet[str],
    ready: Callable[[LayoutPlan, Sequence[SeenNode]], Sequence[str]],
    remembered: Mapping[str, RolloutRecord],
) -> None:
    """Say how nodes stand, and give slots to those that are ready to begin.

    `records` are the nodes whose rollout is of this MigLayout, `with_slot` those whose rollout has a slot of
    any.
    """
    layout, spec = plan.layout, plan.layout.spec
    try:
        at_once = MaxUnavailable.parse(str(spec.rollout.max_unavailable)).of(len(kept))
        spec.rollout.drain_seconds, spec.rollout.seconds  # noqa: B018 # read, so that what is wrong is said
    except InvalidInput as error:
        plan.error, at_once = f"spec.rollout: {error}", 0
    may = ready(plan, kept)
    for node in kept:
        if node.record is not None and node.name not in with_slot:
            plan.states[node.name] = State.PENDING, say_foreign(node.record)
    if layout.ends:
        plan.stopped, may = "it is being deleted", ()
    by_name = {node.name: node for node in kept}
    slots = {name: known_slot(layout, name, remembered) for name in layout.updating}
    unused = {name for name in layout.updating if name not in records}
    lost = {name for name in unused & by_name.keys() if is_lost(by_name[name], slots[name])}
    # also of those that another MigLayout still sees through: one that was deleted, and made again
    under_way = {*records, *lost, *(by_name.keys() & with_slot)}
    # these have their slot already; what the autopilot had decided is not known any more
    again = [] if layout.follows_demand else [name for name in may if name in unused - lost]
    again = [name for name in again if may_begin_by(slots[name], by_name[name])]
    again = again[: max(0, at_once - len(under_way))]
    free = max(0, at_once - len({*layout.updating, *under_way}))
    plan.begin = again + [name for name in may if name not in unused][:free]
    plan.unused = sorted(unused.difference(again))
    for name, slot in slots.items():
        if slot.cordoned_before is not None:
            plan.cordoned_before[name] = slot.cordoned_before
    for name in {*records, *plan.adopted} & by_name.keys():
        if (record := by_name[name].record) is not None:
            plan.cordoned_before[name] = record.cordoned


def _orphans(
    layout: MigLayout, kept: Iterable[SeenNode], uids: Collection[str], with_slot: Collection[str]
) -> list[str]:
    """Nodes with a rollout of a MigLayout that is gone, which this one keeps now.

    One that never had a status takes those of its own name, too: perhaps it was deleted and made again, and
    nobody remembers the slots.
    """
    again = layout.name if layout.status.updating is None else None
    return [
        node.name
        for node in kept
        if (record := node.record) is not None
        and record.owner.uid
        and record.owner.uid not in uids
        and node.name not in layout.slots
        and (node.name in with_slot or (record.owner.name == again and record.uncordons))
    ]


def say_foreign(record: RolloutRecord) -> str:
    """That somebody else changes a node."""
    return f"{record.say_whose()}; it has no slot" if record.owner.uid else record.say_whose()


def _fixed(
    plan: LayoutPlan,
    kept: Sequence[SeenNode],
    judge: Callable[[SeenNode, MigLayout], Verdict],
    busy: Callable[[str, Going], str],
    now: float,
    told: Mapping[str, str],
) -> list[str]:
    """Say how nodes stand to their fixed layout; those that may begin, idle ones first."""
    layout, spec = plan.layout, plan.layout.spec
    ready: list[tuple[bool, str]] = []  # whether pods hold devices that go, and the node
    for node in kept:
        state, reason = _state(node, layout, judge, now, told)
        if state is State.PENDING and not reason:
            change = judge(node, layout).change
            # perhaps the change of a node that is alike: which devices go is not known, but of which resources
            going = Going(change.going.resources if change is not None else None)
            held = busy(node.name, going)
            if spec.rollout.when_in_use == "Skip" and held:
                reason = skipped(held)
            else:
                ready.append((bool(held), node.name))
        plan.states[node.name] = state, reason
    # a record that cannot be read may be anybody's, and holds up its own node only
    read = (node.name for node in kept if not node.unreadable)
    failed = sorted(name for name in read if plan.states[name][0] is State.FAILED)
    if plan.error or spec.paused or failed:
        plan.stopped = plan.error or ("paused" if spec.paused else f"the rollout failed on {failed[0]}")
    return [] if plan.stopped else [name for _, name in sorted(ready)]


def _under_way(node: SeenNode, told: Mapping[str, str]) -> str:
    """What the rollout of a node waits for, in the words of whoever drives it; else its phase."""
    return told.get(node.name) or (str(node.record.phase) if node.record else "")


def _state(
    node: SeenNode,
    layout: MigLayout,
    judge: Callable[[SeenNode, MigLayout], Verdict],
    now: float,
    told: Mapping[str, str],
) -> tuple[State, str]:
    """How a node stands to its MigLayout, and why; a node that may begin is pending without a reason."""
    if node.unreadable:
        return State.FAILED, f"{node.unreadable}; remove the annotation, and uncordon the node yourself"
    if node.record is not None:
        if node.record.owner.uid == layout.uid:
            return State.UPDATING, _under_way(node, told)
        return State.PENDING, node.record.say_whose()
    verdict = judge(node, layout)
    if verdict.invalid:
        return State.INVALID, verdict.invalid
    if verdict.current:
        return State.CURRENT, ""
    if verdict.waits:
        return State.PENDING, verdict.waits
    end = node.end
    if end is not None and end.owner.uid == layout.uid and end.target == verdict.target:
        if end.result is Result.FAILED:
            return State.FAILED, end.reason
        if end.result is not Result.NOT_BEGUN and end.is_within(RETRY, now):
            return State.PENDING, f"{end.result}: {end.reason}; tried again after {RETRY / 60:g} minutes"
    if not node.node.status.ready:
        return State.PENDING, "the node is not ready"
    return State.PENDING, ""
