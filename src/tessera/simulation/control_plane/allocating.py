"""Devices for requests: what a node has, and the first solution that an exhaustive search finds, in the order of the real scheduler.

Requests are served one after the other, each with its best alternative first, each alternative with the devices that are listed
first; where a later request finds nothing, the search goes back (k8s.io/dynamic-resource-allocation, `allocateOne`). So an
earlier request may keep a better alternative, and a later one gets a worse one. Counters are respected. Not supported: constraints
between devices, tolerations of taints, `allocationMode: All`, admin access, devices that several claims may hold, devices that
name their own nodes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple, TypeVar

from tessera.core.dra.pools import Pools, are_valid
from tessera.core.dra.slices import DeviceClass, Kind, PoolId, Slice
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.requests.alternatives import MOST_ALTERNATIVES
from tessera.protocol.dra.names import EVERY_NAME
from tessera.protocol.dra.objects import SliceReader
from tessera.protocol.dra.selectors import Selectors
from tessera.protocol.kubernetes.dra import DeviceIn, decode_slice
from tessera.simulation.control_plane.store import Stored

T = TypeVar("T")
DeviceId = tuple[PoolId, str]
CounterId = tuple[PoolId, str, str]  # pool, counter set, counter


class Unschedulable(TesseraError):
    """Why no node can have a pod, in the scheduler's words."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device of a slice."""

    id: DeviceId
    kind: Kind
    takes: Mapping[CounterId, Number]
    tainted: bool  # no claim gets it: tolerations are not known here


@dataclass(frozen=True, slots=True)
class Stock:
    """What pods on a node can get: devices in the scheduler's order, and the totals of their counters."""

    devices: tuple[Device, ...]
    counters: Mapping[CounterId, Number]


class Devices:
    """The slices of a cluster at one moment, read as the webhook reads them; `core.dra` says which of them are for a node."""

    def __init__(self, slices: Sequence[Stored]) -> None:
        reader = SliceReader(with_devices=True)
        reader.names = EVERY_NAME  # claims come with expressions of their own
        self._encoded = {one.key[1]: one.encoded for one in slices}
        self._pools = Pools(lambda *_: True)
        self._pools.replace_slices(readable(slices, reader.read))

    def on(self, node: Node) -> Stock:
        """What pods on a node can get. Pools are ordered by driver and name, slices by name, devices as they are listed."""
        devices: list[Device] = []
        counters: dict[CounterId, Number] = {}
        for pool in sorted(self._pools.slices_for(node), key=lambda slices: slices[0].pool):
            sets = {name: dict(has) for one in pool for name, has in one.contents.counter_sets}
            if not are_valid((group for one in pool for group in one.contents.groups), sets):
                continue
            counters |= {
                (pool[0].pool, name, each): amount
                for name, has in sets.items()
                for each, amount in has.items()
            }
            for one in sorted(pool, key=lambda one: one.name):
                devices += self._devices(one)
        return Stock(tuple(devices), counters)

    def _devices(self, one: Slice) -> Iterator[Device]:
        if one.per_device:
            return
        listed = decode_slice(self._encoded[one.name]).spec.devices or ()
        for device, (name, kind) in zip(listed, one.contents.devices, strict=True):
            tainted = any(taint.effect in ("NoSchedule", "NoExecute") for taint in device.taints or ())
            yield Device((one.pool, name), kind, _takes(one.pool, device), tainted)


def _takes(pool: PoolId, device: DeviceIn) -> dict[CounterId, Number]:
    return {
        (pool, each.counter_set, counter): Quantity.parse(amount.value).number
        for each in device.consumes_counters or ()
        for counter, amount in (each.counters or {}).items()
    }


def readable(stored: Iterable[Stored], read: Callable[[bytes], T]) -> Iterator[T]:
    """Objects, read; those that make no sense are left out."""
    for one in stored:
        with suppress(InvalidInput):
            yield read(one.encoded)


def selects(expressions: tuple[str, ...], device: Device) -> bool:
    """Whether all expressions hold for a device. Where one cannot be evaluated, the pod is unschedulable, as for the real scheduler."""
    selectors, stand_in = _compiled(expressions)
    verdict = selectors.selects(stand_in, device.kind)
    if verdict is None:
        raise Unschedulable(selectors.class_errors[stand_in])
    return verdict


@lru_cache(maxsize=256)  # the texts of a few classes and templates
def _compiled(expressions: tuple[str, ...]) -> tuple[Selectors, DeviceClass]:
    """The expressions, compiled once, as those of a class that has them all."""
    selectors, stand_in = Selectors(), DeviceClass("", expressions)
    selectors.use([stand_in])
    return selectors, stand_in


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


def score(given: Sequence[Given]) -> int:
    """What an allocation is worth between nodes: each request counts once, however many devices it got."""
    return sum(one.score for one in {each.alternative for each in given})


def allocate(
    requests: Sequence[Request], stock: Stock, taken: Sequence[Device], selects: Selects = selects
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


def _has_room(stock: Stock, taken: Sequence[Device], some: Sequence[Device]) -> bool:
    """Whether the counters that these devices take from have enough, beside what others have taken."""
    left = {counter: stock.counters[counter] for one in some for counter in one.takes}
    for device in (*taken, *some):
        for counter in left.keys() & device.takes.keys():
            left[counter] -= device.takes[counter]
    return all(amount >= 0 for amount in left.values())
