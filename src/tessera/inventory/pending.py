"""What a cluster's pods wait for, and which of its cards may be cut for them.

What was worked out of single nodes is kept as long as it holds. A cluster is looked at again and again, and few of its
nodes change meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tessera.core.devices.capacity import NodeUse, PodUse
from tessera.core.devices.held import Held
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.blocked import Block
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.scheduling import EVERYTHING, LabelSelector
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.blocked_pods import (
    BlockedUntil,
    IdleDevices,
    PodTimes,
    ReachedKinds,
    blocked_by_reach,
    blocked_by_turns,
    is_due,
    without_pods,
)
from tessera.core.planning.changes import Way
from tessera.core.planning.demand import MOST_MISSED, Demand, demand_of, most_wanted
from tessera.core.planning.kinds import CardToCut, NodeCards, cards_beside
from tessera.core.planning.planner import Plan
from tessera.core.planning.summary import explain_blocked
from tessera.core.planning.waiting import (
    DemandGroup,
    NodeRoom,
    PlanEffect,
    WaitingGroups,
    allowed_nodes,
    groups_of,
    settle,
    sort_out,
)
from tessera.core.resources import is_any_gpu
from tessera.core.text import counts_in_words, nodes_named
from tessera.inventory.inventory import Inventory
from tessera.inventory.layouts import HeldDevices
from tessera.protocol.kubernetes.objects import seconds
from tessera.protocol.mig.nodes import GpuNode
from tessera.protocol.mig.operator import MigManagerConfig


@dataclass(slots=True)
class NodeFacts:
    """A node: what it has, what is free of it, how its cards are cut, and what of them is held."""

    basis: tuple[object, ...]  # what this was worked out from
    use: NodeUse
    free: dict[str, Number]
    has_gpus: bool
    known: KnownLayout | UnknownLayout | None = None
    held: Held | None = None
    cards: dict[tuple[object, ...], tuple[CardToCut, ...]] = field(
        default_factory=dict
    )  # by what was given out


class NodeMemory:
    """Facts of nodes; what has changed since is worked out again."""

    def __init__(self) -> None:
        self.idle = IdleDevices()
        self.blocked = BlockedUntil()
        self.kinds = ReachedKinds()
        self._facts: dict[str, NodeFacts] = {}

    def of(self, inventory: Inventory) -> dict[str, NodeFacts]:
        """The facts of all nodes that have anything, in the order of their names."""
        capacity, gpus, manager = inventory.capacity, inventory.gpus, inventory.mig_manager
        slices, claims = inventory.dra.edition, inventory.dra.holders()
        found = {}
        for name in sorted(capacity):
            basis = (
                capacity[name],
                gpus.get(name),
                manager,
                slices,
                capacity.edition(name),
                capacity.claimed.get(name),
                claims.get(name),
            )
            facts = self._facts.get(name)
            if facts is None or not _same(facts.basis, basis):
                use = NodeUse(capacity[name], capacity.usage(name))
                free = {resource: one.available.number for resource, one in use.resources.items()}
                facts = NodeFacts(basis, use, free, name in gpus or any(map(is_any_gpu, free)))
            if facts.use.resources or facts.has_gpus:
                found[name] = facts
        self._facts = found
        return found

    def note_idle(
        self, inventory: Inventory, facts: Mapping[str, NodeFacts], shut: Collection[str], now: float
    ) -> None:
        """Look at what is free now. `shut`: nodes that take no pods, or whose devices are being changed."""

        def holders(name: str, resource: str) -> int:
            return hash(frozenset(inventory.capacity.holders(name, resource).items()))

        free = {name: (fact, fact.free) for name, fact in facts.items() if fact.has_gpus and name not in shut}
        self.idle.note(free, holders, now)

    @staticmethod
    def known(inventory: Inventory, name: str, facts: NodeFacts) -> KnownLayout | UnknownLayout:
        """How a node's cards are cut."""
        if facts.known is None:
            facts.known = inventory.known(name)
        return facts.known

    @staticmethod
    def held(devices: HeldDevices, name: str, facts: NodeFacts, known: KnownLayout) -> Held:
        """What of a node's cards is held."""
        if facts.held is None:
            facts.held = devices.on(name, known)
        return facts.held


def _same(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    """Whether nothing has changed: objects are replaced when they change, so most are the very same."""
    return all(one is other or one == other for one, other in zip(old, new, strict=True))


_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_NO_PROFILES: Final = "its MIG strategy is not mixed, so none of its devices has the name of a profile"


def pending_inventory(selector: LabelSelector = EVERYTHING) -> Inventory:
    """What to read of a cluster, to know who waits in it: all resources, since pods wait for cpu and memory too."""
    return Inventory(
        lambda _: True,
        selector,
        holds=lambda use: not use.node or bool(use.record),
        places=True,
        with_rejected=True,
    )


@dataclass(frozen=True, slots=True)
class PendingCards:
    """Cards that a plan may use, as they are cut now, and the nodes that were skipped, with the reason."""

    places: Sequence[NodeCards]
    cards: Sequence[CardToCut]
    without: Mapping[str, Sequence[str]]  # why nodes were skipped, and which

    @property
    def skipped(self) -> Sequence[str]:
        return skipped_nodes(self.without)


class Pending:
    """What is wanted in a cluster, and the cards that it has."""

    def __init__(
        self,
        inventory: Inventory,
        since: str,
        *,
        coming: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
        without: Collection[str] = (),
        for_running: bool = True,
        memory: NodeMemory | None = None,
        bound: Callable[[Sequence[DemandGroup]], Sequence[DemandGroup]] = lambda groups: groups,
        now: float | None = None,
    ) -> None:
        """`now`: the time by which pods that wait for something else are left out; None: no pod is.

        `coming`: what nodes whose layout is being changed will have of GPUs. `without`: nodes that take no pods now: nothing of them is free.

        `for_running`: free devices stay for pods that fell back and run. `memory`: for who asks again and again. `bound`: which groups are considered.
        """
        self._inventory = inventory
        self._facts = (memory or NodeMemory()).of(inventory)
        self._nodes = {name: one.use for name, one in self._facts.items() if one.has_gpus}
        # pods that could go nowhere else wait still
        then = {**coming, **dict.fromkeys(without, _NOTHING)}
        self._rooms = [
            _room(one, self._facts[name].free, then.get(name)) for name, one in self._nodes.items()
        ]
        self.blocked: dict[str, Block] = {}  # by namespace/name
        known = BlockedUntil() if memory is None else memory.blocked
        times: dict[str, PodTimes] = {}
        if now is not None:
            waiting = {
                f"{use.namespace}/{use.name}": use
                for use in inventory.pods
                if not use.node and (use.claim or any(map(is_any_gpu, use.amounts)))
            }
            self.blocked, times = known.sort_out(waiting, inventory.judged_until, seconds, now)
        groups = groups_of(self._unblocked(), since, inventory.rejected.found)
        considered = bound(groups)
        self.not_considered = sum(len(one.names) for one in groups) - sum(
            len(one.names) for one in considered
        )
        allowed = allowed_nodes(considered, self._rooms)
        if now is not None:
            if memory is None:
                in_reach = blocked_by_turns(considered, allowed[0], self._rooms, times, now)
            else:
                memory.note_idle(inventory, self._facts, then, now)
                idle = [NodeRoom(room.node, memory.idle.on(room.node.name)) for room in self._rooms]
                in_reach = blocked_by_reach(considered, allowed[0], idle, times, now, memory.kinds)
            for name in in_reach:
                self.blocked[name] = Block.IN_REACH
                if is_due(times[name], now):
                    known.put(times[name].uid, Block.IN_REACH, now)
            considered = without_pods(considered, in_reach)
        self.demand: Demand = demand_of(self._unblocked(), since, inventory.rejected.found)
        self.waiting: WaitingGroups = sort_out(
            considered, self._rooms, for_running=for_running, allowed=allowed
        )

    def _unblocked(self) -> list[PodUse]:
        return [use for use in self._inventory.pods if f"{use.namespace}/{use.name}" not in self.blocked]

    @property
    def mig_manager(self) -> MigManagerConfig | None:
        return self._inventory.mig_manager

    def words(self) -> Iterator[str]:
        """The demand, for people."""
        demand = self.demand
        yield f"pods without a node ask for {_counted(demand.waiting)}"
        if demand.fell_back:
            yield f"pods that fell back had asked for {_counted(demand.fell_back)}"
        if demand.rejected:
            yield f"rejected workloads ask for {_counted(demand.rejected)}"
        if demand.uncounted:
            more = f"{demand.uncounted} more devices that rejected workloads ask for do not count"
            yield f"{more}: at most {MOST_MISSED} of one namespace do"
        if self._inventory.rejected.unseen:
            yield f"workloads whose pods are rejected are not counted: {self._inventory.rejected.unseen}"
        yield from explain_blocked(self.blocked)
        if demand.whole_gpus:
            yield f"whole GPUs that pods wait for ({demand.whole_gpus}) are no part of the plan"

    def most_wanted(self) -> tuple[MigProfile, ...]:
        """What the rest of a card is best cut into: what the cluster's pods want most, then what they have most of."""
        have: Counter[MigProfile] = Counter()
        for name in self._nodes:
            for resource, number in self._inventory.used(name).items():
                if number and (profile := MigProfile.of_resource(resource)):
                    have[profile] += number
        return most_wanted(self.demand.all, have)

    def cards(self) -> PendingCards:
        """The cards that may be cut: what pods hold stays, and as much as waiting pods could take of what is free."""
        places: list[NodeCards] = []
        cards: list[CardToCut] = []
        skipped: dict[str, list[str]] = {}
        # thousands of nodes are cut and used in a few ways
        known: dict[tuple[object, ...], tuple[NodeLayout, tuple[CardToCut, ...]]] = {}
        in_use = HeldDevices(self._inventory)
        for name in sorted(self._inventory.gpus):
            node = self._inventory.gpus[name]
            given, facts = self.waiting.given.get(name, {}), self._facts[name]
            found = NodeMemory.known(self._inventory, name, facts)
            if isinstance(found, UnknownLayout) or node.strategy is not Strategy.MIXED:
                reason = found.reason if isinstance(found, UnknownLayout) else _NO_PROFILES
                skipped.setdefault(reason, []).append(name)
                continue
            layout, for_pods = found.layout, tuple(sorted(given.items()))
            if for_pods not in facts.cards:
                held = NodeMemory.held(in_use, name, facts, found)
                whole_only = node.by_mig_manager or not found.placed
                key = (*map(id, layout.cards), layout.plain, held, for_pods, whole_only)
                if key not in known:
                    cut = cards_beside(layout, node.strategy, held, given, whole_only=whole_only)
                    known[key] = layout, cut
                facts.cards = {for_pods: known[key][1]}
            queues = self.waiting.queues.get(name, frozenset())
            here = range(len(cards), len(cards) + len(layout.cards))
            places.append(NodeCards(name, here, queues, way_of(node)))
            cards += facts.cards[for_pods]
        return PendingCards(places, cards, skipped)

    def after(self, plan: Plan, places: Sequence[NodeCards]) -> PlanEffect:
        """Which of the pods that were planned for get a place, if the scheduler places them so."""
        rooms = {room.node.name: room for room in self._rooms}
        touched = []
        for place in places:
            room = rooms.get(place.name or "")
            if room is None or place.name not in plan.nodes:
                continue
            now = self._inventory.known(room.node.name)
            plain = isinstance(now, KnownLayout) and now.layout.plain
            layout = NodeLayout(tuple(plan.cards[n] for n in place.cards), changing=True, plain=plain)
            cut = layout.resources(self._inventory.gpus[room.node.name].strategy)
            resources = self._nodes[room.node.name].resources
            for resource in {*filter(is_any_gpu, resources), *cut}:
                before = resources[resource].allocatable.number if resource in resources else 0
                room.free[resource] = room.free.get(resource, 0) + cut.get(resource, 0) - before
            touched.append((room, place.queues))
        groups = [group for group, _ in self.waiting.to_plan if group.waits]
        queues = [queue for group, queue in self.waiting.to_plan if group.waits]
        may = [[i for i, (_, serves) in enumerate(touched) if queue in serves] for queue in queues]
        rest, _ = settle(groups, may, [room for room, _ in touched])
        return PlanEffect(
            tuple(
                group.first(placed)
                for group, left in zip(groups, rest, strict=True)
                if (placed := len(group.names) - len(left.names))
            ),
            tuple(left for left in rest if left.names),
        )


def room_of(one: NodeUse) -> NodeRoom:
    return NodeRoom(one.node, {name: usage.available.number for name, usage in one.resources.items()})


def _room(one: NodeUse, free: Mapping[str, Number], coming: Mapping[str, int] | None) -> NodeRoom:
    """What is free on a node; or will be, where its layout is being changed."""
    left = dict(free)
    if coming is not None:
        for name in {*filter(is_any_gpu, left), *coming}:
            usage = one.resources.get(name)
            left[name] = coming.get(name, 0) - (usage.allocated.number if usage else 0)
    return NodeRoom(one.node, left)


def way_of(node: GpuNode) -> Way:
    return Way.MIG_MANAGER if node.by_mig_manager else Way.ANNOTATION


def skipped_nodes(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """The nodes whose cards are no part of a plan, and why: a line for each reason."""
    return [f"{nodes_named(names)}: skipped: {reason}" for reason, names in reasons.items()]


def uncut(node: GpuNode) -> NodeLayout:
    """A node's cards as whole GPUs; `InvalidInput` where the node does not describe them."""
    if node.product is None:
        raise InvalidInput(node.no_product)
    if node.cards is None:
        raise InvalidInput(f'no number of cards for "{node.label}"')
    return NodeLayout((CardLayout(node.product),) * node.cards)


def _counted(counts: Mapping[MigProfile, int]) -> str:
    return counts_in_words(sorted(counts.items())) or "no MIG devices"
