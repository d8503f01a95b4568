"""What became of some days' tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from benchmarks.days.figures import DAY
from benchmarks.days.tasks import SLICES, Task

DAYS: Final = 7
AFTER: Final = 7 * DAY  # no task comes then: who waits may still start
SHORT: Final = 10.0  # seconds: a shorter task counts as one of these where its slowdown is asked for


@dataclass(frozen=True)
class Outcome:
    """Who started when, and which cards were cut. Services are in use and are not counted among the tasks."""

    tasks: Sequence[Task]  # all of them, services too
    started: Sequence[float | None]  # by the task's number; None: never
    cards: int
    cuts: Sequence[float] = ()  # when a card was cut

    @cached_property
    def end(self) -> float:
        return self.tasks[-1].created + AFTER

    @cached_property
    def waits(self) -> list[float]:
        """Of the tasks that end, shortest first; until the end where one never starts."""
        return sorted(self._waited(one) for one in self.tasks if not one.is_service)

    @property
    def mean_wait(self) -> float:
        return sum(self.waits) / len(self.waits)

    def wait(self, quantile: float) -> float:
        return self.waits[int(quantile * (len(self.waits) - 1))]

    @property
    def mean_slowdown(self) -> float:
        """How many times as long as it runs a task takes; a very short one counts as `SHORT`."""
        found = [
            (self._waited(one) + one.seconds) / max(one.seconds, SHORT)
            for one in self.tasks
            if not one.is_service
        ]
        return sum(max(1.0, one) for one in found) / len(found)

    @property
    def never(self) -> float:
        """The share of the tasks that never start."""
        missing = sum(self.started[one.number] is None for one in self.tasks if not one.is_service)
        return missing / len(self.waits)

    @property
    def use(self) -> float:
        """The share of all cards' slices that pods asked for and had, in the days in which tasks come."""
        end, total = DAYS * DAY, 0.0
        for one in self.tasks:
            begun = self.started[one.number]
            if begun is not None and begun < end:
                total += one.size * (min(begun + one.seconds, end) - begun)
        return total / (self.cards * SLICES * end)

    @property
    def cuts_an_hour(self) -> float:
        """In the mean of the days in which tasks come."""
        return sum(one <= DAYS * DAY for one in self.cuts) / (DAYS * 24)

    @property
    def most_cuts_in_an_hour(self) -> int:
        most = first = 0
        for number, moment in enumerate(self.cuts):
            while moment - self.cuts[first] >= 3600:
                first += 1
            most = max(most, number + 1 - first)
        return most

    def _waited(self, task: Task) -> float:
        begun = self.started[task.number]
        return (self.end if begun is None else begun) - task.created
