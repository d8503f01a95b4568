"""Which pods wait for what: which could go to free devices, which a layout could help, and which not.

Pods that ask for the same and may go to the same nodes are one group. Free devices are given out first, node by node as
the scheduler could do it: selectors, required node affinity, taints, and everything else that a pod asks for. Those that
are given one wait for another reason; to a bridged pod any alternative of its claim is given. Of the rest, those that no node would take, whatever it is cut into, are listed with
the reason. What is left is the demand; its groups are in queues by the nodes that could take them. That a node is
cordoned or not ready today excludes no pod, as in `scheduling`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.node import STATED_BY_EVERY_NODE, Node, why_excluded
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.kubernetes.quantity import Format, Number, Quantity
from tessera.core.kubernetes.scheduling import label_keys
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.demand import RejectedPods, profiles_of, wanting
from tessera.core.planning.kinds import QueuedProfile
from tessera.core.resources import PODS, WHOLE_GPU, is_any_gpu, is_extended, short
from tessera.core.text import number_of

_STATED: Final = STATED_BY_EVERY_NODE | {PODS}
_ANYWHERE: Final = Pod()


@dataclass(frozen=True, slots=True)
class DemandGroup:
    names: tuple[str, ...]  # namespace/name, oldest first
    where: Pod
    asks: Mapping[str, Number]  # of a node, for each pod
    devices: Mapping[MigProfile, int]  # to plan for, for each pod: what it asked for before fallback
    waits: bool  # False: it runs with something else
    instead: tuple[Mapping[str, Number], ...] = ()  # what would do in place of `asks`, best first
    rejected: bool = False  # they were never created; their names are those of workloads

    def fewer(self, number: int) -> "DemandGroup":
        """Without the oldest of them."""
        return replace(self, names=self.names[number:])

    def first(self, number: int) -> "DemandGroup":
        """The oldest of them."""
        return replace(self, names=self.names[:number])

    @property
    def others(self) -> dict[str, Number]:
        return {resource: amount for resource, amount in self.asks.items() if not is_any_gpu(resource)}


@dataclass(slots=True)
class NodeRoom:
    node: Node
    free: dict[str, Number]

    def fits(self, asks: Mapping[str, Number], most: int) -> int:
        """How many pods that ask for this fit, up to so many."""
        for resource, amount in asks.items():
            there = self.free.get(resource)
            if there is not None:
                most = min(most, int(there // amount))
            elif resource not in _STATED:
                return 0
            if most <= 0:
                return 0
        return most

    def take(self, asks: Mapping[str, Number], pods: int) -> None:
        for resource, amount in asks.items():
            if resource in self.free:
                self.free[resource] -= amount * pods


@dataclass(frozen=True, slots=True)
class WaitingGroups:
    free: tuple[DemandGroup, ...]  # could go to free devices
    hopeless: tuple[tuple[DemandGroup, str], ...]  # no layout helps them, and why
    to_plan: tuple[tuple[DemandGroup, int], ...]  # and their queues
    given: Mapping[str, Mapping[str, int]]  # node → how many devices of which resources were given out
    queues: Mapping[str, frozenset[int]]  # node → the queues that it serves

    @property
    def wanted(self) -> dict[QueuedProfile, int]:
        counts: Counter[QueuedProfile] = Counter()
        for group, queue in self.to_plan:
            for profile, number in group.devices.items():
                counts[QueuedProfile(profile, queue)] += number * len(group.names)
        return dict(counts)


@dataclass(frozen=True, slots=True)
class PlanEffect:
    placed: tuple[DemandGroup, ...]
    still_waiting: tuple[DemandGroup, ...]


def groups_of(uses: Iterable[PodUse], since: str, rejected: Iterable[RejectedPods] = ()) -> list[DemandGroup]:
    """Pods that wait for MIG devices or whole GPUs, those made since then that fell back to something else, and those rejected, in groups."""
    alike: dict[tuple[object, ...], list[PodUse]] = {}
    for use in wanting(uses, since, rejected):
        where = use.where or _ANYWHERE
        key = (
            bool(use.node),
            _sorted(use.asked),
            _sorted(use.amounts),
            where.node_name if not use.node else "",
            tuple(sorted(where.node_selector.items())),
            where.required_terms,
            where.tolerations,
            use.claim,
            use.rejected,
        )
        alike.setdefault(key, []).append(use)
    groups = map(_group, alike.values())
    return [group for group in groups if group.devices or (group.waits and WHOLE_GPU in group.asks)]


def _group(alike: Sequence[PodUse]) -> DemandGroup:
    use = alike[0]
    waits = not use.node
    devices = profiles_of(use.asked or use.amounts) if waits else use.missed
    # a pod that fell back and runs would give up what it has: beside the device it needs nothing new
    asks: dict[str, Number] = (
        {resource: amount.number for resource, amount in use.amounts.items()}
        if waits
        else {profile.resource: number for profile, number in devices.items()}
    )
    where = use.where or _ANYWHERE
    return DemandGroup(
        tuple(f"{one.namespace}/{one.name}" for one in alike),
        where if waits else replace(where, node_name=""),
        asks,
        devices,
        waits,
        _instead(use, asks) if waits else (),
        use.rejected,
    )


def _sorted(amounts: Amounts) -> tuple[tuple[str, Number], ...]:
    return tuple(sorted((resource, amount.number) for resource, amount in amounts.items()))


def _instead(use: PodUse, asks: Mapping[str, Number]) -> tuple[Mapping[str, Number], ...]:
    """What else a bridged pod's claim would be served with, beside all else that the pod asks for."""
    if use.alternatives is None:
        return ()
    first = use.alternatives.devices()
    others = {resource: amount for resource, amount in asks.items() if resource not in first}
    return tuple({**others, **choice} for choice in use.alternatives.choices() if choice != first)


AllowedNodes = tuple[list[list[int]], list[str]]  # of each group: its nodes, and why it has none


def sort_out(
    groups: Sequence[DemandGroup],
    rooms: Sequence[NodeRoom],
    *,
    for_running: bool = True,
    allowed: AllowedNodes | None = None,
) -> WaitingGroups:
    """Give out what is free, in `rooms`, and say of the rest what would help it.

    `allowed`: where each group may go, if that is known. `for_running`: what pods could have that fell back and run is among what was given out. They will not take it as long as they run.
    """
    may, why = allowed or allowed_nodes(groups, rooms)
    rest, given = settle(groups, may, rooms, for_running=for_running)
    left_over = _LeftOver(rooms)
    free, hopeless, to_plan = [], [], []
    numbers: dict[tuple[int, ...], int] = {}
    for index, group in enumerate(groups):
        if not group.devices:  # whole GPUs that are free are for them, and no layout makes more
            continue
        left = rest[index]
        done = len(group.names) - len(left.names)
        if done:
            free.append(group.first(done))
        if not left.names:
            continue
        usable = left_over.with_room(may[index], group.others if group.waits else {})
        if usable:
            to_plan.append((left, numbers.setdefault(usable, len(numbers) + 1)))
        else:
            hopeless.append((left, _reason(group, [rooms[i] for i in may[index]], why[index])))
    serves: dict[int, list[int]] = {}
    for usable, queue in numbers.items():
        for i in usable:
            serves.setdefault(i, []).append(queue)
    return WaitingGroups(
        tuple(free),
        tuple(hopeless),
        tuple(to_plan),
        {rooms[i].node.name: dict(some) for i, some in given.items()},
        {rooms[i].node.name: frozenset(some) for i, some in serves.items()},
    )


class _LeftOver:
    """What is left on nodes beside devices: many groups may go to the same nodes, and most of these have enough."""

    def __init__(self, rooms: Sequence[NodeRoom]) -> None:
        self._rooms = rooms
        self._least: dict[tuple[tuple[int, ...], str], Number | None] = {}  # None: no node states it

    def with_room(self, may: Sequence[int], others: Mapping[str, Number]) -> tuple[int, ...]:
        """The nodes of these that have room for a pod that asks for this."""
        every = tuple(may)
        least = ((self._least_of(every, resource), amount) for resource, amount in others.items())
        if all(there is None or there >= amount for there, amount in least):
            return every
        return tuple(i for i in every if self._rooms[i].fits(others, 1))

    def _least_of(self, nodes: tuple[int, ...], resource: str) -> Number | None:
        """What the node with the least has left of a resource."""
        if (nodes, resource) not in self._least:
            found = (self._rooms[i].free.get(resource) for i in nodes)
            some = [one for one in found if one is not None]
            all_have = len(some) == len(nodes) or resource in _STATED
            self._least[nodes, resource] = min(some, default=None) if all_have else 0
        return self._least[nodes, resource]


def settle(
    groups: Sequence[DemandGroup],
    may: Sequence[Sequence[int]],
    rooms: Sequence[NodeRoom],
    *,
    for_running: bool = True,
) -> tuple[list[DemandGroup], dict[int, Counter[str]]]:
    """Give rooms to pods, those that exist and have the fewest nodes to go to first; who is left, and what was given where."""
    rest, given = list(groups), dict[int, Counter[str]]()
    having = nodes_having(rooms)
    for index in sorted(
        range(len(groups)), key=lambda i: (not groups[i].waits, groups[i].rejected, len(may[i]), i)
    ):
        group = groups[index]
        left = len(group.names)
        for asks in (group.asks, *group.instead):
            devices = [resource for resource in asks if is_any_gpu(resource)]
            some = having(asks)
            for i in (i for i in may[index] if left and i in some) if some else ():
                if pods := rooms[i].fits(asks, left):
                    rooms[i].take(asks, pods)
                    taken = {resource: pods * int(asks[resource]) for resource in devices}
                    if for_running or group.waits:
                        given.setdefault(i, Counter()).update(taken)
                    left -= pods
        rest[index] = group.fewer(len(group.names) - left)
    return rest, given


def nodes_having(rooms: Sequence[NodeRoom]) -> Callable[[Iterable[str]], set[int]]:
    """Which nodes have some of all devices among these resources: only those are looked at, and few have."""
    having: dict[str, set[int]] = {}
    for i, room in enumerate(rooms):
        for resource, amount in room.free.items():
            if amount > 0 and is_any_gpu(resource):
                having.setdefault(resource, set()).add(i)

    def have(asks: Iterable[str]) -> set[int]:
        return set.intersection(*(having.get(resource, set()) for resource in asks if is_any_gpu(resource)))

    return have


def allowed_nodes(groups: Sequence[DemandGroup], rooms: Sequence[NodeRoom]) -> AllowedNodes:
    """The nodes that each group may go to; and where there are none, why."""
    pods = [group.where for group in groups]
    keys = sorted({key for pod in pods for key in label_keys(pod.node_selector, pod.required_terms)})
    named = any(pod.node_name or any(term.fields for term in pod.required_terms or ()) for pod in pods)
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, room in enumerate(rooms):
        node = room.node
        signature = (*(node.labels.get(key) for key in keys), node.taints, node.name if named else "")
        alike.setdefault(signature, []).append(i)
    allowed: list[list[int]] = []
    reasons: list[str] = []
    for pod in pods:
        here: list[int] = []
        why: Counter[str] = Counter()
        for some in alike.values():
            reason = why_excluded(pod, rooms[some[0]].node)
            if reason is None:
                here += some
            else:
                why[reason] += len(some)
        allowed.append(sorted(here))
        # not kept for each node: there are thousands, and each says it in its own words
        reasons.append("" if here else _why_none(why))
    return allowed, reasons


def _why_none(why: Counter[str]) -> str:
    """Why a pod may go to no node: what most nodes would say."""
    if not why:
        return "there are no nodes with GPUs"
    reason, number = why.most_common(1)[0]
    more = f"; {number_of(len(why) - 1, 'more reason')} on others" if len(why) > 1 else ""
    return f"{reason} ({number_of(number, 'node')}{more})"


def _reason(group: DemandGroup, rooms: Sequence[NodeRoom], why: str) -> str:
    """Why no node takes pods of this group; `why`: of one that may go to none."""
    if not rooms:
        return why
    for resource, amount in group.others.items():
        if not any(room.fits({resource: amount}, 1) for room in rooms):
            most = max((room.free.get(resource, 0) for room in rooms), default=0)
            return (
                f"each asks for {_written(resource, amount)} {short(resource)}, "
                f"and no node that they may use has more than {_written(resource, most)} left"
            )
    return "no node that they may use has all the other resources that they ask for"


def _written(resource: str, amount: Number) -> str:
    form = Format.DECIMAL_SI if resource in ("cpu", PODS) or is_extended(resource) else Format.BINARY_SI
    return str(Quantity(Fraction(amount), form))
