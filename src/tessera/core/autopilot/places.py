"""Idle places are kept whole: what nobody uses is cut as large as it has been wanted.

Small devices are cut in half a minute when somebody wants them. A small pod that lies in a large place keeps large ones waiting for as long as it runs,
and the scheduler puts it wherever a small device is idle. So where small devices are idle in a large place, and pods have waited for large ones, that is
cut back into a large one.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Final

from tessera.core.autopilot.forecast import IN_DEMAND
from tessera.core.autopilot.groups import CardsToCut, Group
from tessera.core.autopilot.options import Option
from tessera.core.autopilot.search import Search
from tessera.core.autopilot.values import Level, Recut

_WAITED: Final = 0.05  # the same of devices that were waited for: 36 minutes in 12 hours
_SPREADS: Final = 6  # demand comes in bursts: at most its mean and so many times its spread is expected


def kept_whole(search: Search, cards: CardsToCut, budget: int) -> Iterator[Recut]:
    """The re-cuts by which idle places become larger, as many as the budget allows. Whole GPUs are left alone."""
    expected = _expected(search.levels)
    for group, numbered in cards.by_group.items():
        larger = group.state.larger if group.state.layout.mig_enabled else ()
        for card in numbered.values():
            if budget <= 0 or (option := _first(search, group, larger, expected)) is None:
                break
            budget -= 1
            yield search.keep_whole(card, option)


def _expected(levels: Mapping[str, Level]) -> dict[str, float]:
    """By the profile's name: how many devices are expected to be wanted at most."""
    found = {}
    for name, (mean, square, waited) in levels.items():
        if mean >= IN_DEMAND and waited >= _WAITED:
            found[name] = mean + _SPREADS * sqrt(max(0.0, square - mean * mean))
    return found


def _first(
    search: Search, group: Group, options: tuple[Option, ...], expected: Mapping[str, float]
) -> Option | None:
    """The first way to cut such a card that brings nothing but what is expected, takes no engines, and that the limits allow."""
    for option in options:
        may = all(
            search.there[profile] + more <= expected.get(str(profile), 0.0) and search.helps(profile, group)
            if more > 0
            else not profile.extras
            for profile, more in option.change.counts.items()
        )
        if may and not search.limit_against(group.state, option):
            return option
    return None
