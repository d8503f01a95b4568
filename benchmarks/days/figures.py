"""What demand for GPUs looks like, in figures.

From a public production trace (Alibaba clusterdata, `cluster-trace-gpu-v2023`, "openb", the trace behind FGD, USENIX ATC
2023): 7,064 tasks with GPUs on 1,523 nodes, counted for this project. A task's size is the smallest slice of seven that holds what it asks for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log, pi, sin
from statistics import NormalDist
from typing import Final

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR

Mix = Mapping[int, float]  # size, in sevenths of a card → share of the tasks
MixAt = Callable[[float], Mix]  # at a moment, in seconds


@dataclass(frozen=True, slots=True)
class Durations:
    """How long the tasks of a size run: a log-normal distribution, and services that never end for what lies beyond it."""

    mu: float
    sigma: float

    @property
    def mean(self) -> float:
        """Of the tasks that end."""
        return exp(self.mu + self.sigma**2 / 2)

    def at(self, quantile: float) -> float:
        """The seconds within which this share of the tasks is over."""
        return exp(_NORMAL.inv_cdf(quantile) * self.sigma + self.mu)


_NORMAL: Final = NormalDist()
_QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
_SECONDS: Final = {  # size → those quantiles of the seconds that a task runs
    1: (155, 1_262, 3_068, 18_162, 43_783),
    2: (55, 156, 895, 7_389, 25_700),
    3: (88, 578, 1_451, 5_938, 26_404),
    4: (27, 73, 472, 1_528, 11_841),
    7: (51, 192, 610, 2_078, 13_134),
}


def _fitted(seconds: tuple[int, ...]) -> Durations:
    """The log-normal distribution nearest to the quantiles: least squares in logarithms."""
    scores, logs = [_NORMAL.inv_cdf(one) for one in _QUANTILES], [log(one) for one in seconds]
    sigma = sum(z * y for z, y in zip(scores, logs, strict=True)) / sum(z * z for z in scores)
    return Durations(sum(logs) / len(logs), sigma)


DURATIONS: Final = {size: _fitted(seconds) for size, seconds in _SECONDS.items()}

# Arrivals: how many an hour, how the variance of hourly counts compares with their mean (Poisson: 1), and a day's hours
TRACE_RATE: Final = 9.8
_TRACE_DISPERSION: Final = 8.0
_SHARES: Final = (
    6.2, 5.7, 3.7, 6.1, 4.4, 3.7, 3.3, 3.9, 3.5, 1.8, 3.3, 2.4,
    1.8, 1.8, 1.6, 2.5, 4.8, 5.4, 6.0, 6.2, 5.0, 5.8, 4.8, 6.5,
)  # fmt: skip
HOURS: Final = tuple(share * 24 / sum(_SHARES) for share in _SHARES)  # by the mean of a day
# The day's shape is a part of the trace's variance. The rest is bursts: so much variance has an hour's count by its own mean.
DISPERSION: Final = _TRACE_DISPERSION - TRACE_RATE * (sum(one**2 for one in HOURS) / 24 - 1)

# What a pool of MIG devices sees: the trace's tasks that want less than a card; and the opposite, as pools for inference have it
LARGE: Final[Mix] = {4: 0.60, 3: 0.22, 2: 0.12, 1: 0.06}
SMALL: Final[Mix] = {1: 0.60, 2: 0.22, 3: 0.12, 4: 0.06}


def swinging(moment: float) -> Mix:
    """From the one mix to the other and back, once a day: large at 6:00, small at 18:00."""
    large = 0.5 + 0.5 * sin(2 * pi * moment / DAY)
    return {size: large * LARGE[size] + (1 - large) * SMALL[size] for size in LARGE}


MIXES: Final[Mapping[str, MixAt]] = {
    "large": lambda _: LARGE,
    "small": lambda _: SMALL,
    "swinging": swinging,
}
