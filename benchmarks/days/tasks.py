"""Tasks that come in the course of some days, made from the figures; the same seed makes the same tasks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isinf
from random import Random
from typing import Final

from benchmarks.days.figures import DAY, DISPERSION, DURATIONS, HOUR, HOURS, LARGE, Mix, MixAt

SLICES: Final = 7  # of a card


@dataclass(frozen=True, slots=True)
class Task:
    """What a user wants done: a slice of this size for so long."""

    number: int
    created: float  # seconds since midnight of the first day
    size: int  # in sevenths of a card
    seconds: float  # that it runs on what it asks for; infinite: a service

    @property
    def is_service(self) -> bool:
        return isinf(self.seconds)


@dataclass(frozen=True, slots=True)
class Demand:
    """How much is wanted, of what.

    `load`: the slice-seconds that tasks run, by those that the cards have. `services`: the part of it that is services; they are
    there from the start and never end. The trace's own means would say 0.6 (small mix) to 0.9 (large): then most of a cluster stands still.
    """

    mix: MixAt = lambda _: LARGE
    load: float = 0.7
    cards: int = 16
    days: float = 7
    services: float = 0.5

    def tasks(self, seed: int) -> list[Task]:
        """All tasks, by the moment at which they come."""
        random = Random(seed)
        made = [(0.0, size, inf) for size in self._services()] + sorted(self._arrivals(random))
        return [Task(number, *one) for number, one in enumerate(made)]

    @property
    def mean_mix(self) -> Mix:
        """What tasks ask for in the mean over all hours."""
        weights, found = self._hours(), dict[int, float]()
        total = sum(weights)
        for hour, weight in enumerate(weights):
            for size, share in self.mix((hour + 0.5) * HOUR).items():
                found[size] = found.get(size, 0) + share * weight / total
        return found

    @property
    def erlangs(self) -> dict[int, float]:
        """How many slices of each size are in use at a time, if no task waits."""
        mix = self.mean_mix
        each = {size: share * DURATIONS[size].mean for size, share in mix.items()}
        work = sum(size * one for size, one in each.items())
        return {size: one / work * self.load * self.cards * SLICES for size, one in each.items()}

    def _services(self) -> Iterator[int]:
        """The sizes of the services, the largest first, each size's part of the load rounded."""
        for size, number in sorted(self.erlangs.items(), reverse=True):
            yield from [size] * round(number * self.services)

    def _hours(self) -> list[float]:
        """How the arrivals are spread over all hours, by the day's shape."""
        return [HOURS[hour % 24] for hour in range(round(self.days * 24))]

    def _arrivals(self, random: Random) -> list[tuple[float, int, float]]:
        """When tasks come, what they ask for and how long they run.

        An hour's rate is drawn from a gamma distribution, which gives the counts the variance of the trace. How much there is to do
        is what the load says, exactly: a seed changes what comes when.
        """
        shape, standing = self._hours(), sum(self._services())
        work = (self.load * self.cards * SLICES - standing) * self.days * DAY
        total = round(work / sum(share * DURATIONS[one].mean * one for one, share in self.mean_mix.items()))
        if not total:
            return []
        each = total / sum(shape) / (DISPERSION - 1)
        bounds = list(accumulate(random.gammavariate(each * one, 1) for one in shape))
        hours = Counter(random.choices(range(len(shape)), cum_weights=bounds, k=total))
        moments = [random.uniform(hour, hour + 1) * HOUR for hour in sorted(hours.elements())]
        sizes = [random.choices([*mix], [*mix.values()])[0] for mix in map(self.mix, moments)]
        left = {size: _durations(random, size, number) for size, number in sorted(Counter(sizes).items())}
        found = [(moment, size, left[size].pop()) for moment, size in zip(moments, sizes, strict=True)]
        factor = work / sum(size * seconds for _, size, seconds in found)
        return [(moment, size, seconds * factor) for moment, size, seconds in found]


def _durations(random: Random, size: int, number: int) -> list[float]:
    """So many, spread evenly over the distribution, in any order."""
    found = [DURATIONS[size].at((one + 0.5) / number) for one in range(number)]
    random.shuffle(found)
    return found
