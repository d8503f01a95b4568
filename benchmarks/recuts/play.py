"""Some days of tasks on cards that somebody cuts meanwhile: tasks wait, each for exactly its size, first come, first served."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final, Protocol

from benchmarks.days.clock import Clock
from benchmarks.days.figures import DAY
from benchmarks.days.layouts import PROFILES
from benchmarks.days.tasks import Task
from benchmarks.recuts.outcome import Outcome
from benchmarks.recuts.pool import Card, Pool
from tessera.core.mig.placement import Instance

CUTTING: Final = 30.0  # seconds from the decision to cut a card until its new slices can be used
Waiting = Mapping[int, Sequence[Task]]  # size → who waits, oldest first
Cuts = Iterable[tuple[Card, Sequence[Instance]]]  # a card, and how it is to be cut


class Cutter(Protocol):
    """Who cuts cards. `due` is when it wants to look; infinite: not before something changes."""

    due: float

    def changed(self, waiting: Waiting, now: float) -> None:
        """A pod came or ended, or slices are there."""

    def look(self, pool: Pool, waiting: Waiting, now: float) -> Cuts: ...


class Idle:
    """Nobody."""

    due = inf

    def changed(self, waiting: Waiting, now: float) -> None: ...

    def look(self, pool: Pool, waiting: Waiting, now: float) -> Cuts:
        return ()


class _Days:
    """The days so far."""

    def __init__(self, tasks: Sequence[Task], pool: Pool, cutter: Cutter, cutting: float) -> None:
        self.clock, self.pool, self.cutter, self.cutting = Clock(), pool, cutter, cutting
        self.waiting: dict[int, deque[Task]] = {size: deque() for size in PROFILES}
        self.started: list[float | None] = [None] * len(tasks)
        self.cuts: list[float] = []
        self._asked = inf  # when the next look is due
        for task in tasks:
            self.clock.at(task.created, partial(self._arrive, task))

    def _arrive(self, task: Task) -> None:
        self.waiting[task.size].append(task)
        self._serve((task.size,))

    def _serve(self, sizes: Iterable[int]) -> None:
        """Let those start that can, the oldest first."""
        left = {size for size in sizes if self.waiting[size]}
        while left:
            size = min(left, key=lambda one: self.waiting[one][0].number)
            found = self.pool.take(size)
            if found is None:
                left.discard(size)
                continue
            task = self.waiting[size].popleft()
            if not self.waiting[size]:
                left.discard(size)
            self.started[task.number] = self.clock.now
            if not task.is_service:
                self.clock.after(task.seconds, partial(self._end, size, *found))
        self.cutter.changed(self.waiting, self.clock.now)
        self._ask()

    def _end(self, size: int, card: Card, one: Instance) -> None:
        card.give_back(one)
        self._serve(self.pool.helped(size))

    def _ask(self) -> None:
        due = self.cutter.due
        if due != self._asked:
            self._asked = due
            if due < inf:
                self.clock.at(due, self._look)

    def _look(self) -> None:
        if self.clock.now != self._asked:
            return  # another moment was asked for since
        self._asked = inf
        for card, after in self.cutter.look(self.pool, self.waiting, self.clock.now):
            card.begin(after)
            self.cuts.append(self.clock.now)
            self.clock.after(self.cutting, partial(self._there, card))
        self._ask()

    def _there(self, card: Card) -> None:
        card.finish()
        self._serve(PROFILES)


def play(tasks: Sequence[Task], pool: Pool, cutter: Cutter, cutting: float = CUTTING) -> Outcome:
    """Let the tasks come, and wait until they have started; a re-cut takes so many seconds."""
    days = _Days(tasks, pool, cutter, cutting)
    days.clock.run(tasks[-1].created)
    outcome = Outcome(tasks, days.started, len(pool.cards), days.cuts)
    while any(days.waiting.values()) and days.clock.now < outcome.end:
        days.clock.run(min(days.clock.now + DAY / 4, outcome.end))
    return outcome
