"""Rooms: what is kept on a node for a pod that is not bound yet. One that waits has one, and so has one that was just admitted.

Each pod has at most one room, on one node, by priority and age. What came free is offered to those without a room, in that order; where one of a
shape finds none, the others of that shape need not be tried. A pod of higher priority takes the rooms of lower ones if nothing else is free.

A pod that the scheduler calls unschedulable while its room is there waits for something else. It gives its room back, and is asked again later.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from tessera.core.admission.view.free_nodes import FreeNodes
from tessera.core.admission.view.pods import Shape, Usage
from tessera.core.kubernetes.pod import Pod

# Seconds. A scheduler that finds room binds within a second; one that tried shortly before waits up to 10 s for the next try
# (kube-scheduler, podMaxBackoffSeconds), and looks at all pods again every 5 min (podMaxInUnschedulablePodsDuration).
_AFTER_VERDICT: Final = 2.0
_WITH_ROOM: Final = 30.0
_ASKED_AGAIN: Final = 300.0
# How many are tried at a time, some 10 µs each: before a decision, and once a second. The rest are tried the next time.
_AT_ONCE: Final = 50
_AT_LEISURE: Final = 1000
_MOST_NODES: Final = 64  # whose rooms are examined to make room for one pod of higher priority

Rank = tuple[int, float, str]  # priority (higher first), age, name


class _Group:
    """The pods of one shape: which nodes they may go to, and which of them have no room."""

    __slots__ = ("members", "nodes", "queue", "shape", "tried", "version")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.members = 0
        self.queue: list[Rank] = []
        self.nodes, self.version = 0, -1  # right for this version of the view
        self.tried = -1  # in this round nothing fitted


class RoomHolder:
    """A pod that has a room, or should have one."""

    __slots__ = ("asks_at", "group", "key", "node", "queued", "rank", "since", "verdict", "warned")

    def __init__(self, key: str, group: _Group, rank: Rank, verdict: str) -> None:
        self.key = key
        self.group = group
        self.rank = rank
        self.node = ""  # where its room is; empty: it has none
        self.since = 0.0  # when the room was made
        self.verdict = verdict
        self.warned: float | None = None  # when the verdict came while the room was there
        self.asks_at: float | None = None  # it waits for something else, and is asked again then
        self.queued = False  # in its group's queue


class Rooms:
    """All rooms, and who waits for one."""

    def __init__(self, nodes: FreeNodes, where: Callable[[Pod], int]) -> None:
        """Keep rooms on these nodes; `where` says which of them a pod may go to."""
        self._nodes = nodes
        self._where = where
        self._version = 0  # of what `where` says
        self.holders: dict[str, RoomHolder] = {}
        self._groups: dict[Shape, _Group] = {}
        self._on: dict[str, dict[str, RoomHolder]] = {}  # by node
        # of those that have a room, and of those that have none; negative, as in ranks
        self._priorities: Counter[int] = Counter()
        self._unplaced: Counter[int] = Counter()
        self._untried: list[Rank] = []  # a heap: who is to be tried in this round
        self._round = 0
        self._queued: dict[
            Usage, dict[Shape, _Group]
        ] = {}  # the groups in which some pod has no room, by GPUs
        self._due: list[tuple[float, str]] = []  # when to check which pod, a heap

    @property
    def kept(self) -> int:
        return sum(self._priorities.values())

    def add(
        self, key: str, shape: Shape, priority: int, created: float, now: float, verdict: str = ""
    ) -> None:
        """Give a pod a room, if there is one for it."""
        self.settle(now)
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = _Group(shape)
        group.members += 1
        holder = self.holders[key] = RoomHolder(key, group, (-priority, created, key), verdict)
        heappush(self._untried, holder.rank)
        self.settle(now)

    def drop(self, key: str) -> None:
        """A pod needs no room any more."""
        holder = self.holders.pop(key, None)
        if holder is None:
            return
        self._leave(holder)
        group = holder.group
        group.members -= 1
        if not group.members:
            del self._groups[group.shape]

    def judge(self, key: str, verdict: str, now: float) -> None:
        """The scheduler says something else of a pod that waits; empty: nothing."""
        holder = self.holders[key]
        holder.verdict = verdict
        if holder.asks_at is not None:
            self._ask_again(holder)
        elif holder.node and verdict:
            holder.warned = now
            heappush(self._due, (now + _AFTER_VERDICT, key))

    def expire(self, now: float) -> None:
        """Take the rooms of those that wait for something else; ask those again whose time has come."""
        while self._due and self._due[0][0] <= now:
            _, key = heappop(self._due)
            holder = self.holders.get(key)
            if holder is None:
                continue
            if holder.asks_at is not None:
                if holder.asks_at <= now:
                    self._ask_again(holder)
            elif self._waits_for_else(holder, now):
                self._leave(holder)
                holder.asks_at = now + _ASKED_AGAIN
                heappush(self._due, (holder.asks_at, key))
        self.settle(now, _AT_LEISURE)

    def node_changed(self, name: str) -> None:
        """A node is not what it was: rooms that do not fit there any more are given up."""
        self._version += 1
        bit = self._nodes.bit(name)
        for holder in list(self._on.get(name, {}).values()):
            if not self._nodes_of(holder.group) & bit:
                self._try_again(holder)
        self.make_fit(name)

    def node_gone(self, name: str) -> None:
        self._version += 1
        for holder in list(self._on.get(name, {}).values()):
            self._try_again(holder)

    def make_fit(self, name: str) -> None:
        """Give up rooms on a node while more is taken and kept than it has; the last in order first."""
        rooms = self._on.get(name)
        while rooms and (lacking := self._nodes.lacks(name)):
            using = [one for one in rooms.values() if any(r in lacking for r, _ in one.group.shape.usage)]
            self._try_again(max(using, key=lambda one: one.rank))

    def settle(self, now: float, most: int = _AT_ONCE) -> None:
        """Offer what came free to those without a room, in order; but try no more than so many."""
        for _ in range(most):
            if not self._untried:
                if not self._nodes.freed:
                    return
                self._begin_round()
                continue
            holder = self.holders.get(heappop(self._untried)[2])
            if holder is None or holder.node or holder.asks_at is not None:
                continue
            group = holder.group
            if group.tried != self._round and self._find_room(holder, now):
                if group.queue:
                    heappush(self._untried, group.queue[0])
            else:
                group.tried = self._round
                if not holder.queued:
                    insort(group.queue, holder.rank)
                    holder.queued = True
                    self._unplaced[holder.rank[0]] += 1
                    self._queued.setdefault(group.shape.gpus, {})[group.shape] = group

    def _begin_round(self) -> None:
        """Something came free: the first of every group that it may serve is tried."""
        freed, self._nodes.freed = self._nodes.freed, 0
        self._round += 1
        above = bool(self._unplaced) and self._is_above_some(min(self._unplaced))
        for gpus, groups in self._queued.items():
            if above or self._nodes.first(freed, gpus) is not None:
                self._untried += [one.queue[0] for one in groups.values()]
        heapify(self._untried)

    def _is_above_some(self, priority: int) -> bool:
        """Whether a pod of lower priority has a room; priorities are negative, as in ranks."""
        return bool(self._priorities) and max(self._priorities) > priority

    def _find_room(self, holder: RoomHolder, now: float) -> bool:
        shape = holder.group.shape
        node = self._nodes.first(self._nodes_of(holder.group), shape.usage) or self._made_room(holder)
        if node is None:
            return False
        self._unqueue(holder)
        self._nodes.keep(node, shape.usage)
        holder.node, holder.since, holder.warned = node, now, None
        self._on.setdefault(node, {})[holder.key] = holder
        self._priorities[holder.rank[0]] += 1
        if holder.verdict:
            heappush(self._due, (now + _WITH_ROOM, holder.key))
        return True

    def _made_room(self, holder: RoomHolder) -> str | None:
        """A node on which rooms of lower priority were given up for a pod."""
        priority = holder.rank[0]
        if not self._is_above_some(priority):
            return None
        nodes, examined = self._nodes_of(holder.group), 0
        for name, rooms in self._on.items():
            lower = sorted(one.rank for one in rooms.values() if one.rank[0] > priority)
            if not lower or not self._nodes.bit(name) & nodes:
                continue
            if self._would_fit(name, holder, [rooms[rank[2]] for rank in lower]):
                while lower and not self._would_fit(name, holder, []):
                    self._try_again(rooms[lower.pop()[2]])
                return name
            examined += 1
            if examined == _MOST_NODES:
                break
        return None

    def _would_fit(self, name: str, holder: RoomHolder, without: list[RoomHolder]) -> bool:
        """Whether a pod would find room on a node without these rooms."""
        given: Counter[str] = Counter()
        for one in without:
            given.update(dict(one.group.shape.usage))
        return all(
            (left := self._nodes.left(name, resource)) is None or left + given[resource] >= amount
            for resource, amount in holder.group.shape.usage
        )

    def _nodes_of(self, group: _Group) -> int:
        if group.version != self._version:
            group.nodes, group.version = self._where(group.shape.placement), self._version
        return group.nodes

    def _waits_for_else(self, holder: RoomHolder, now: float) -> bool:
        if not holder.node or not holder.verdict:
            return False
        warned = holder.warned
        return (warned is not None and now >= warned + _AFTER_VERDICT) or now >= holder.since + _WITH_ROOM

    def _ask_again(self, holder: RoomHolder) -> None:
        holder.asks_at = None
        heappush(self._untried, holder.rank)

    def _try_again(self, holder: RoomHolder) -> None:
        """A pod lost its room: there may be another."""
        self._leave(holder)
        heappush(self._untried, holder.rank)

    def _leave(self, holder: RoomHolder) -> None:
        """Give a pod's room back, if it has one; or take it out of the queue."""
        self._unqueue(holder)
        if not holder.node:
            return
        node, holder.node = holder.node, ""
        rooms = self._on[node]
        del rooms[holder.key]
        if not rooms:
            del self._on[node]
        _take_one(self._priorities, holder.rank[0])
        self._nodes.give_back(node, holder.group.shape.usage)

    def _unqueue(self, holder: RoomHolder) -> None:
        if not holder.queued:
            return
        holder.queued = False
        _take_one(self._unplaced, holder.rank[0])
        group = holder.group
        del group.queue[bisect_left(group.queue, holder.rank)]
        if not group.queue:
            groups = self._queued[group.shape.gpus]
            del groups[group.shape]
            if not groups:
                del self._queued[group.shape.gpus]


def _take_one(counter: Counter[int], key: int) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
