"""A scheduler for simulated time: pods by priority and age, requests against what is free.

Pods that ask for the same form a queue: if its first does not fit, none does, until something that it could use comes free. So a week of
demand takes as many steps as there are pods that start.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

Key = tuple[str, str]  # namespace and name
Needs = tuple[tuple[str, int], ...]  # resource and count
# What a pod can run on, best first: one for requests, several for a claim with alternatives.
Options = tuple[Needs, ...]


@dataclass(frozen=True, slots=True, order=True)
class Waiting:
    """A pod that no node has yet; the first to be served comes first."""

    rank: int  # the priority, negated
    created: float
    number: int
    key: Key = field(compare=False)


@dataclass(frozen=True, slots=True)
class Binding:
    key: Key
    node: str
    needs: Needs


class Scheduler:
    """Nodes with what is free there, and the pods that wait."""

    def __init__(self) -> None:
        self.free: dict[str, dict[str, int]] = {}
        self._shut: set[str] = set()  # cordoned
        self._queues: dict[Options, list[Waiting]] = {}
        self._users: dict[str, set[Options]] = {}  # resource → those who could use it
        self._stuck: set[Options] = set()  # since nothing came free that they could use
        self._gone: set[Key] = set()  # of those that are in a queue

    def put_node(self, name: str, more: Mapping[str, int], *, cordoned: bool = False) -> None:
        """Add to what a node has (a negative amount: it has less), or say that it takes no more pods."""
        free = self.free.setdefault(name, {})
        for resource, count in more.items():
            free[resource] = free.get(resource, 0) + count
        (self._shut.add if cordoned else self._shut.discard)(name)
        self._stuck.clear()

    def add(self, key: Key, options: Options, created: float, priority: int = 0, number: int = 0) -> None:
        """Let a pod wait; `number` orders pods of the same moment."""
        self._gone.discard(key)
        queue = self._queues.get(options)
        if queue is None:
            queue = self._queues[options] = []
            for needs in options:
                for resource, _ in needs:
                    self._users.setdefault(resource, set()).add(options)
        heappush(queue, Waiting(-priority, created, number, key))

    def remove(self, key: Key) -> None:
        """A pod waits no more."""
        self._gone.add(key)
        # it may have been its queue's first, and another of the same queue fits no better: nothing else changes

    def release(self, node: str, needs: Needs) -> None:
        """A pod on a node has ended."""
        free = self.free[node]
        for resource, count in needs:
            free[resource] += count
            self._stuck -= self._users.get(resource, set())

    def schedule(self) -> Iterator[Binding]:
        """Bind every pod that fits somewhere, in order."""
        heads: list[tuple[Waiting, Options]] = []
        for options in self._queues.keys() - self._stuck:
            self._push(heads, options)
        while heads:
            first, options = heappop(heads)
            found = self._place(options)
            if found is None:
                self._stuck.add(options)
                continue
            node, needs = found
            for resource, count in needs:
                self.free[node][resource] -= count
            heappop(self._queues[options])
            self._push(heads, options)
            yield Binding(first.key, node, needs)

    def _push(self, heads: list[tuple[Waiting, Options]], options: Options) -> None:
        queue = self._queues[options]
        while queue and queue[0].key in self._gone:
            self._gone.discard(heappop(queue).key)
        if queue:
            heappush(heads, (queue[0], options))

    def _place(self, options: Options) -> tuple[str, Needs] | None:
        """The first option that some node has free, on the node that has most of it."""
        for needs in options:
            best, most = "", -1
            for name, free in self.free.items():
                left = min([free.get(resource, 0) - count for resource, count in needs])
                if left > most and name not in self._shut:
                    best, most = name, left
            if best:
                return best, needs
        return None
