"""How many devices of a class a pool can give at most at one time.

Devices that take from shared counters are cards that may be cut: not all of them can be there together. What one
counter has room for, counted alone, is never less than what the scheduler can allocate: no pod is rejected for what
the cluster may serve.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tessera.core.dra.slices import DeviceGroup, Kind
from tessera.core.kubernetes.node import MOST_OF_A_CLAIM
from tessera.core.kubernetes.quantity import Number

CounterSets = Mapping[str, Mapping[str, Number]]
# a device that several claims may hold is never the reason why one more is refused
_ANY_NUMBER: Final = MOST_OF_A_CLAIM


def count(groups: Iterable[DeviceGroup], sets: CounterSets, selects: Callable[[Kind], bool]) -> int:
    """The devices that a class selects, as many of them as the counters leave room for."""
    total = 0
    # by the first counter set that they take from
    cut: dict[str, list[tuple[Mapping[str, Number], int]]] = {}
    for group in groups:
        if not group.number or not selects(group.kind) or not _fits(group, sets):
            continue
        if group.kind.multiple:  # it takes from counters once, for the first of its claims
            total += group.number * _ANY_NUMBER
        elif group.consumes:
            name, taken = group.consumes[0]
            cut.setdefault(name, []).append((dict(taken), group.number))
        else:
            total += group.number
    return total + sum(_room(sets.get(name, {}), devices) for name, devices in cut.items())


def are_valid(groups: Iterable[DeviceGroup], sets: CounterSets) -> bool:
    """Whether all counters that devices take from are there; a pool where one is not is no pool for the scheduler."""
    return all(
        name in sets and all(counter in sets[name] for counter, _ in taken)
        for group in groups
        for name, taken in group.consumes
    )


def _fits(group: DeviceGroup, sets: CounterSets) -> bool:
    return all(amount <= sets[name][counter] for name, taken in group.consumes for counter, amount in taken)


def _room(counters: Mapping[str, Number], devices: list[tuple[Mapping[str, Number], int]]) -> int:
    """How many of some devices one counter set has room for: the scarcest counter decides."""
    least = sum(number for _, number in devices)
    for counter, has in counters.items():
        taken = sorted((amounts.get(counter, 0), number) for amounts, number in devices)
        least = min(least, _fitting(has, taken))
    return least


def _fitting(has: Number, taken: list[tuple[Number, int]]) -> int:
    """How many fit into one counter, the smallest first."""
    fitting = 0
    for amount, number in taken:
        fits = number if amount <= 0 else min(number, int(has // amount))
        fitting += fits
        if fits < number:
            break
        has -= amount * fits
    return fitting
