"""Devices for requests: the first solution that an exhaustive search finds, in the order of the real scheduler.

Requests are served one after the other, each with its best alternative first, each alternative with the devices that are listed
first; where a later request finds nothing, the search goes back (k8s.io/dynamic-resource-allocation, `allocateOne`). So an
earlier request keeps its better alternative at a later one's expense. Counters are respected. Left out: constraints between
devices, tolerations of taints, `allocationMode: All`, admin access, devices that several claims may hold or that say for
themselves which nodes they are for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from tessera.core.requests.alternatives import MOST_ALTERNATIVES
from tessera.simulation.control_plane.dra.devices import Device, Stock


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """One way to serve a request: so many devices for which all expressions hold."""

    request: str  # as the allocation names it: `gpu`, or `gpu/smaller` for one of several
    expressions: tuple[str, ...]
    count: int = 1
    score: int = 0  # what it is worth between nodes


class Given(NamedTuple):
    """A device for a request."""

    alternative: Alternative
    device: Device


Request = tuple[Alternative, ...]  # best first
Selects = Callable[[tuple[str, ...], Device], bool]


def score_of(place: int) -> int:
    """What an alternative is worth by its place in `firstAvailable`, as in the real plugin's `computeScore`."""
    return MOST_ALTERNATIVES - place


def allocate(
    requests: Sequence[Request], stock: Stock, taken: Sequence[Device], selects: Selects
) -> tuple[Given, ...] | None:
    """Devices for all requests, beside those that are taken; None where there are none."""
    if not requests:
        return ()
    request, *rest = requests
    for alternative in request:
        fitting = [
            one
            for one in stock.devices
            if not one.tainted and one not in taken and selects(alternative.expressions, one)
        ]
        for some in combinations(fitting, alternative.count):
            if not _has_room(stock, taken, some):
                continue
            found = allocate(rest, stock, (*taken, *some), selects)
            if found is not None:
                return (*(Given(alternative, one) for one in some), *found)
    return None


def score(given: Sequence[Given]) -> int:
    """What an allocation is worth between nodes: each request counts once, however many devices it got."""
    return sum(one.score for one in {each.alternative for each in given})


def _has_room(stock: Stock, taken: Sequence[Device], some: Sequence[Device]) -> bool:
    """Whether the counters that these devices take from have enough, beside what others have taken."""
    left = {counter: stock.counters[counter] for one in some for counter in one.takes}
    for device in (*taken, *some):
        for counter in left.keys() & device.takes.keys():
            left[counter] -= device.takes[counter]
    return all(amount >= 0 for amount in left.values())
