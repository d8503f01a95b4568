"""Which devices of a node pods hold, as its device plugin says it, and when that is believed.

The plugin names a device by its card and its place there (`1g.18gb@4`; a whole card is `gpu`), and the pod that holds it by the
beginning of its UID. A pod keeps its devices for as long as it lives. So what the node reports of a pod is true, however old it is, if the pod holds just
so many by the API. Where that is so for every pod that holds some of a resource, no other device of it is held. What it reports of other pods is not
free yet, and is held, too.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from tessera.core.cache import cache_short
from tessera.core.devices.capacity import POD
from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import WHOLE, Slot, Strategy
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU

Published = Mapping[int, Mapping[str, str]]  # card → place → pod; an empty text: it is not known which
Placed = tuple[int, str]  # card and place


@dataclass(frozen=True, slots=True)
class Held:
    """What is held of a node: devices that are known, and resources of which any device may be held."""

    resources: frozenset[str]
    slots: frozenset[Slot] = frozenset()


@cache_short(1024, 64, lambda place, _: len(place))
def resource_at(place: str, strategy: Strategy) -> str | None:
    """The resource that a device at this place is one of; None: the place is none."""
    if place == WHOLE or strategy is not Strategy.MIXED:
        return WHOLE_GPU
    try:
        return MigProfile.parse(place.partition("@")[0]).resource
    except InvalidInput:
        return None


def published(devices: Iterable[Device], pods: Mapping[tuple[str, str], str]) -> Published:
    """Which of these devices are held by pods, whose UIDs are given by resource and id; what is on no card is left out."""
    found: dict[int, dict[str, str]] = {}
    for one in devices:
        if one.place and one.key in pods:
            place = f"{one.model.profile}@{one.place.span.start}" if one.model.profile else WHOLE
            found.setdefault(one.place.card.index, {})[place] = pods[one.key][:POD]
    return found


def held_by_resource(published: Published, strategy: Strategy) -> dict[str, dict[Placed, str]]:
    """The same by resource: which devices are held, and by which pods. What is no place is under an empty name."""
    reported: dict[str, dict[Placed, str]] = {}
    for card, places in published.items():
        for place, pod in places.items():
            reported.setdefault(resource_at(place, strategy) or "", {})[card, place] = pod
    return reported


def agrees(reported: Mapping[Placed, str], by_api: Mapping[str, int]) -> bool:
    """Whether every pod that holds some of a resource by the API is reported to hold just so many."""
    pods = Counter(reported.values())
    return "" not in by_api and all(pods[pod] == number for pod, number in by_api.items())


def believed(
    published: Published,
    strategy: Strategy,
    places: Mapping[Placed, Slot],
    resources: Collection[str],
    by_api: Callable[[str], Mapping[str, int]],
) -> Held:
    """What pods hold of a node with devices at these places: by the API of these resources, each pod so many."""
    reported, slots, doubted = held_by_resource(published, strategy), set[Slot](), set[str]()
    for resource in {*reported, *resources}:
        some = reported.get(resource, {})
        if some.keys() <= places.keys() and agrees(some, by_api(resource)):
            slots |= {places[one] for one in some}
        else:
            doubted.add(resource)
    return Held(frozenset(doubted), frozenset(slots))
