"""Rooms: what is kept on a node for a pod that is not bound yet. One that waits has one, and so has one that was just admitted.

Each pod has at most one room, on one node, by priority and age. What came free is offered to those without a room, in that order; where one of a
shape finds none, the others of that shape need not be tried. A pod of higher priority takes the rooms of lower ones if nothing else is free.

A pod that waits for something else is blocked (`core.kubernetes.blocked`). It gives its room back, and is asked again later. What nobody took of a
node while a room was kept there was in reach of the pods without a room, too: they are blocked with the one that had it.
"""

import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import isfinite
from operator import attrgetter
from typing import Final

from tessera.core.admission.view.free_nodes import FreeNodes
from tessera.core.admission.view.pods import Shape, Usage
from tessera.core.admission.view.room_holders import Rank, RoomGroup, RoomHolder
from tessera.core.admission.view.shares import RoomShares
from tessera.core.kubernetes.blocked import ANSWERED, ASKED_AGAIN, MOST_TURNS, PATIENT, Block, find_block
from tessera.core.kubernetes.pod import Pod

# How many are tried at a time, some 10 µs each: before a decision, and once a second. The rest are tried the next time.
_AT_ONCE: Final = 50
_AT_LEISURE: Final = 1000
_Kind = tuple[str, Shape]  # of pods: namespace and shape
_TURN: Final = 9  # what it takes besides to see the nodes as another namespace does: some 0.3 ms at most
_MOST_NODES: Final = 64  # whose rooms are examined to make room for one pod of higher priority
_NODES_A_TRY: Final = 8  # so many of these take as long as one more try


class Rooms:
    """All rooms, and who waits for one."""

    def __init__(self, nodes: FreeNodes, where: Callable[[Pod], int]) -> None:
        """Keep rooms on these nodes; `where` says which of them a pod may go to."""
        self._nodes = nodes
        self._where = where
        self._version = 0  # of what `where` says
        self.holders: dict[str, RoomHolder] = {}
        self.shares = RoomShares(nodes)
        self._groups: dict[_Kind, RoomGroup] = {}
        self._on: dict[str, dict[str, RoomHolder]] = {}  # by node
        # of those that have a room, and of those that have none; negative, as in ranks
        self._priorities: Counter[int] = Counter()
        self._unplaced: Counter[int] = Counter()
        self._untried: list[Rank] = []  # a heap: who is to be tried in this round
        self._round = self._examined = 0  # nodes, to make room for the pod that was tried last
        # the groups in which some pod has no room, by GPUs
        self._queued: dict[Usage, dict[_Kind, RoomGroup]] = {}
        self._due: list[tuple[float, str]] = []  # when to check which pod, a heap
        self._silent: list[tuple[float, str]] = []  # pods without a condition, by creation, a heap
        self._judged = 0.0  # the latest creation of a pod that the scheduler has set a condition of
        self._served: dict[str, float] = {}  # by node: when a pod that had waited was bound to it
        self.blocked: Counter[Block] = Counter()

    @property
    def kept(self) -> int:
        return sum(self._priorities.values())

    def add(
        self,
        key: str,
        namespace: str,
        shape: Shape,
        priority: int,
        created: float,
        now: float,
        verdict: str = "",
    ) -> None:
        """Give a pod a room, if there is one for it."""
        self.settle(now)
        group = self._groups.get((namespace, shape))
        if group is None:
            group = self._groups[namespace, shape] = RoomGroup(namespace, shape)
        group.members += 1
        holder = self.holders[key] = RoomHolder(key, group, (-priority, created, key), verdict, now)
        heappush(self._untried, holder.rank)
        if verdict:
            self._judged = max(self._judged, created)
        elif isfinite(created):  # a reservation ends before
            heappush(self._due, (now + PATIENT, key))
        self.settle(now)

    def drop(self, key: str) -> None:
        """A pod needs no room any more."""
        holder = self.holders.pop(key, None)
        if holder is None:
            return
        self._leave(holder)
        self._unblock(holder)
        group = holder.group
        group.members -= 1
        if not group.members:
            del self._groups[group.namespace, group.shape]

    def judge(self, key: str, verdict: str, now: float) -> None:
        """The scheduler says something else of a pod that waits; empty: nothing."""
        holder = self.holders[key]
        holder.verdict = verdict
        if not verdict:
            holder.judged = None
        elif holder.judged is None:
            holder.judged = now
        if verdict:
            self._judged = max(self._judged, holder.created)
        if verdict and holder.block is Block.SILENT:
            self._ask_again(holder, now)
        elif holder.node and verdict:
            holder.warned = now
            heappush(self._due, (now + ANSWERED, key))

    def take_bound(self, key: str, node: str, now: float) -> None:
        """The scheduler has bound a pod that waited."""
        holder = self.holders.get(key)
        if holder is not None:
            self._judged = max(self._judged, holder.created)
            if holder.verdict and node in self._nodes:
                self._served[node] = now

    def expire(self, now: float) -> None:
        """Block the pods that wait for something else; ask those again whose time has come."""
        self.settle(now, _AT_LEISURE)
        while self._due and self._due[0][0] <= now:
            _, key = heappop(self._due)
            holder = self.holders.get(key)
            if holder is None:
                continue
            if holder.block is not None:
                if now - holder.asked >= ASKED_AGAIN:
                    self._ask_again(holder, now)
            elif not self._block_if_due(holder, now) and not holder.verdict:
                heappush(self._silent, (holder.created, key))
        while self._silent and self._silent[0][0] < self._judged:
            holder = self.holders.get(heappop(self._silent)[1])
            if holder is not None and holder.block is None:
                self._block_if_due(holder, now)
        if len(self._silent) > 2 * len(self.holders):  # most are of pods that are gone
            self._silent = sorted(
                set(self._silent) & {(pod.created, pod.key) for pod in self.holders.values()}
            )
        self.settle(now, _AT_LEISURE)

    def block_by_times(self, wall: float, judged: Callable[[str], float | None]) -> None:
        """Block pods by their times, for a command that looks once: as if what is free now had always been free.

        `wall` is Unix time, as pods' creation is; `judged` says when the scheduler set a pod's condition. Pods take turns at what is free.
        """
        for holder in self.holders.values():
            since, later = judged(holder.key), self._is_passed(holder)
            if find_block(wall, asked=holder.created, judged=since, later_judged=later):
                self._block(holder, Block.SILENT, wall)
        for turn in range(MOST_TURNS):
            self.settle(0.0, sys.maxsize)
            over = []
            for holder in self.holders.values():
                since = judged(holder.key) if holder.node else None
                if since is not None and find_block(
                    wall, asked=holder.created, judged=since, reached=since + turn * PATIENT
                ):
                    over.append(holder)
            if not over:
                return
            for holder in over:
                self._block(holder, Block.IN_REACH, wall)
        self.settle(0.0, sys.maxsize)

    def node_changed(self, name: str) -> None:
        """A node is not what it was: rooms that do not fit there any more are given up."""
        self._version += 1
        bit = self._nodes.bit(name)
        for holder in list(self._on.get(name, {}).values()):
            if not self._nodes_of(holder.group) & bit:
                self._try_again(holder)
        self.make_fit(name)
        for namespace in self.shares.with_own:
            self._share_more(namespace)

    def node_gone(self, name: str) -> None:
        self._version += 1
        self._served.pop(name, None)
        for holder in list(self._on.get(name, {}).values()):
            self._try_again(holder)

    def make_fit(self, name: str) -> None:
        """Give up rooms on a node while more is taken and kept than it has; the last in order first."""
        for space in ("", *self._nodes.spaces_on(name)):
            while (rooms := self._on.get(name)) and (lacking := self._nodes.lacks(name, space)):
                seen = (holder for holder in rooms.values() if holder.space == space)
                using = [holder for holder in seen if any(r in lacking for r, _ in holder.group.shape.usage)]
                if not using:
                    break
                self._try_again(max(using, key=attrgetter("rank")))

    def settle(self, now: float, most: int = _AT_ONCE) -> None:
        """Offer what came free to those without a room, in order; but try no more than so many."""
        while most > 0:
            most, self._examined = most - 1 - self._examined // _NODES_A_TRY, 0
            if not self._untried:
                if not self._nodes.freed:
                    return
                self._begin_round()
                continue
            holder = self.holders.get(heappop(self._untried)[2])
            if holder is None or holder.node or holder.block is not None:
                continue
            group = holder.group
            if group.tried != self._round and not self._nodes.looks_as(holder.namespace):
                most -= _TURN
            if group.tried != self._round and self._find_room(holder, now):
                if group.queue:
                    heappush(self._untried, group.queue[0])
            else:
                group.tried = self._round
                if not holder.queued:
                    insort(group.queue, holder.rank)
                    holder.queued = True
                    self._unplaced[holder.rank[0]] += 1
                    self._queued.setdefault(group.shape.gpus, {})[group.namespace, group.shape] = group

    def _begin_round(self) -> None:
        """Something came free: the first of every group that it may serve is tried."""
        freed, self._nodes.freed = self._nodes.freed, 0
        self._round += 1
        above = self._nodes.has_own or (bool(self._unplaced) and self._is_above_some(min(self._unplaced)))
        for gpus in self._queued if above else self._nodes.find_free(freed, self._queued):
            self._untried += [group.queue[0] for group in self._queued[gpus].values()]
        heapify(self._untried)

    def _is_above_some(self, priority: int) -> bool:
        """Whether a pod of lower priority has a room; priorities are negative, as in ranks."""
        return bool(self._priorities) and max(self._priorities) > priority

    def _find_room(self, holder: RoomHolder, now: float) -> bool:
        if self.shares.is_full(holder.namespace):
            return False
        among, usage = self._nodes_of(holder.group), holder.group.shape.usage
        node = self._nodes.first(among, usage, holder.namespace) or self._made_room(holder)
        if node is None:
            return False
        self._unqueue(holder)
        holder.node, holder.since, holder.warned = node, now, None
        self.shares.keep(holder)
        self._on.setdefault(node, {})[holder.key] = holder
        self._priorities[holder.rank[0]] += 1
        if isfinite(holder.created):
            heappush(self._due, (now + PATIENT, holder.key))
        if self._nodes.has_own:
            self.make_fit(node)
        return True

    def _made_room(self, holder: RoomHolder) -> str | None:
        """A node on which rooms of lower priority were given up for a pod."""
        priority = holder.rank[0]
        if not self._is_above_some(priority):
            return None
        nodes = self._nodes_of(holder.group)
        for name in self._on:
            lower = self._lower_rooms(name, holder) if self._nodes.bit(name) & nodes else []
            if not lower:
                continue
            if self._would_fit(name, holder, lower):
                return name if self._give_up_lower(name, holder) else None
            self._examined += 1
            if self._examined == _MOST_NODES:
                break
        return None

    def _lower_rooms(self, name: str, holder: RoomHolder) -> list[RoomHolder]:
        """The rooms on a node that are given up for a pod; beyond its share none that counts against all, or they would take turns."""
        lower = [room for room in self._on.get(name, {}).values() if room.rank[0] > holder.rank[0]]
        within = self.shares.is_within(holder)
        return [room for room in lower if (within or room.is_own) and room.is_seen_by(holder.namespace)]

    def _give_up_lower(self, name: str, holder: RoomHolder) -> bool:
        """Give up rooms on a node until a pod fits, the last in order first; each may let another room count against all."""
        while not self._would_fit(name, holder):
            lower = self._lower_rooms(name, holder)
            if not lower:
                return False
            self._try_again(max(lower, key=attrgetter("rank")))
        return True

    def _would_fit(self, name: str, holder: RoomHolder, without: Sequence[RoomHolder] = ()) -> bool:
        """Whether a pod would find room on a node without these rooms."""
        given = [room.group.shape.usage for room in without]
        return self._nodes.would_fit(name, holder.group.shape.usage, holder.namespace, given)

    def _nodes_of(self, group: RoomGroup) -> int:
        if group.version != self._version:
            group.nodes, group.version = self._where(group.shape.placement), self._version
        return group.nodes

    def _block_if_due(self, holder: RoomHolder, now: float) -> bool:
        """Block a pod that waits for something else, and those that had the same in reach."""
        block = find_block(
            now,
            asked=holder.asked,
            judged=holder.judged,
            reached=holder.since if holder.node else None,
            answered=holder.warned,
            later_judged=self._is_passed(holder),
        )
        if block is None:
            return False
        if block is Block.IN_REACH:
            self._block_others(holder, now)
        self._block(holder, block, now)
        return True

    def _is_passed(self, holder: RoomHolder) -> bool:
        """Whether the scheduler has set the condition of a pod that was created later."""
        return 0 < holder.created < self._judged

    def _block_others(self, blocked: RoomHolder, now: float) -> None:
        """Block the pods without a room that could have taken what nobody took of a node, unless others that waited were placed there."""
        node, begin = blocked.node, now - PATIENT
        idle: Counter[str] = Counter()
        for room in self._on[node].values():
            if room.since <= begin and room.is_seen_by(blocked.namespace):
                idle.update(dict(room.group.shape.gpus))
        if not idle or self._served.get(node, begin) > begin:
            return
        bit = self._nodes.bit(node)
        for gpus in list(self._queued):
            if any(idle[resource] < amount for resource, amount in gpus):
                continue
            for group in list(self._queued[gpus].values()):
                waiting = [self.holders[key] for _, _, key in group.queue]
                rooms = [room for room in self._on[node].values() if room.is_seen_by(group.namespace)]
                if not self._nodes_of(group) & bit or not self._would_fit(node, waiting[0], rooms):
                    continue
                for holder in waiting:
                    if find_block(now, asked=holder.asked, judged=holder.judged, reached=begin):
                        self._block(holder, Block.IN_REACH, now)

    def _block(self, holder: RoomHolder, block: Block, now: float) -> None:
        self._leave(holder)
        holder.block, holder.asked = block, now
        self.blocked[block] += 1
        heappush(self._due, (now + ASKED_AGAIN, holder.key))

    def _unblock(self, holder: RoomHolder) -> None:
        if holder.block is not None:
            self.blocked[holder.block] -= 1
            holder.block = None

    def _ask_again(self, holder: RoomHolder, now: float) -> None:
        self._unblock(holder)
        holder.asked = now
        if not holder.verdict:
            heappush(self._due, (now + PATIENT, holder.key))
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
        self.shares.give_back(holder, node)
        self._share_more(holder.namespace)

    def _share_more(self, namespace: str) -> None:
        """A namespace holds less than its share against others: rooms that were its own count against all."""
        while (shared := self.shares.next_shared(namespace)) is not None:
            self.make_fit(shared.node)

    def _unqueue(self, holder: RoomHolder) -> None:
        if not holder.queued:
            return
        holder.queued = False
        _take_one(self._unplaced, holder.rank[0])
        group = holder.group
        del group.queue[bisect_left(group.queue, holder.rank)]
        if not group.queue:
            groups = self._queued[group.shape.gpus]
            del groups[group.namespace, group.shape]
            if not groups:
                del self._queued[group.shape.gpus]


def _take_one(counter: Counter[int], key: int) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
