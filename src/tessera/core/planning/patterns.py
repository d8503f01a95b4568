"""Which counts of profiles one card can hold: the few maximal ones, of which every layout is a part."""

from collections.abc import Sequence
from functools import lru_cache

from tessera.core.mig.geometry import Product
from tessera.core.mig.placement import Instance, Wish, place
from tessera.core.mig.profile import MigProfile

Pattern = tuple[int, ...]  # a count for each profile that was asked about


@lru_cache(maxsize=4096)
def maximal_patterns(
    product: Product, kept: tuple[Instance, ...], profiles: tuple[MigProfile, ...], most: Pattern
) -> tuple[Pattern, ...]:
    """All counts of the profiles, at most `most` of each, that fit beside what is kept and leave no room for more."""
    feasible = set(_feasible(product, [Wish(i.profile, i.position) for i in kept], profiles, most))
    return tuple(
        sorted(
            pattern
            for pattern in feasible
            if not any(
                (*pattern[:index], count + 1, *pattern[index + 1 :]) in feasible
                for index, count in enumerate(pattern)
            )
        )
    )


def _feasible(
    product: Product, wishes: list[Wish], profiles: Sequence[MigProfile], most: Sequence[int]
) -> list[Pattern]:
    if not profiles:
        return [()]
    found: list[Pattern] = []
    for count in range(most[0] + 1):
        more = [*wishes, *[Wish(profiles[0])] * count]
        if count and place(product, more) is None:
            break  # with more of it, it would fit no better
        found += [(count, *rest) for rest in _feasible(product, more, profiles[1:], most[1:])]
    return found
