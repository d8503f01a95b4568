"""What claims can have: the devices of the store's ResourceSlices, read by the code that the webhook reads them with."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from tessera.core.dra import counting
from tessera.core.dra.pools import Pools
from tessera.core.dra.slices import DeviceClass, Kind, PoolId, Slice
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.protocol.dra.names import EVERY_NAME
from tessera.protocol.dra.objects import SliceReader
from tessera.protocol.dra.selectors import Selectors
from tessera.simulation.control_plane.store import Document, Stored

T = TypeVar("T")
DeviceId = tuple[PoolId, str]
CounterId = tuple[PoolId, str, str]  # pool, counter set, counter

_EXCLUDING: Final = ("NoSchedule", "NoExecute")


class CannotEvaluate(TesseraError):
    """Whether an expression selects a device: the real scheduler gives up on the pod, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device of a slice."""

    id: DeviceId
    kind: Kind
    takes: Mapping[CounterId, Number]
    tainted: bool  # no claim gets it: tolerations are not known here


@dataclass(frozen=True, slots=True)
class Stock:
    """What a node's pods can be given: devices in the scheduler's order, and what their counters have in all."""

    devices: tuple[Device, ...]
    counters: Mapping[CounterId, Number]


class Devices:
    """The slices of a cluster at one moment; which of them are for a node is `core.dra`'s to say."""

    def __init__(self, slices: Sequence[Stored]) -> None:
        reader = SliceReader(with_devices=True)
        reader.names = EVERY_NAME  # claims come with expressions of their own
        self._documents = {one.key[1]: one.document for one in slices}
        self._pools = Pools(lambda *_: True)
        self._pools.replace_slices(readable(slices, reader.read))

    def on(self, node: Node) -> Stock:
        """What there is for a node's pods. Pools come by driver and name, slices by name, devices as they are listed."""
        devices: list[Device] = []
        counters: dict[CounterId, Number] = {}
        for pool in sorted(self._pools.slices_for(node), key=lambda slices: slices[0].pool):
            sets = {name: dict(has) for one in pool for name, has in one.contents.counter_sets}
            if not counting.are_valid((group for one in pool for group in one.contents.groups), sets):
                continue
            counters |= {
                (pool[0].pool, name, each): amount
                for name, has in sets.items()
                for each, amount in has.items()
            }
            for one in sorted(pool, key=lambda one: one.name):
                devices += self._devices(one)
        return Stock(tuple(devices), counters)

    def _devices(self, one: Slice) -> Iterable[Device]:
        listed = () if one.per_device else self._documents[one.name]["spec"].get("devices") or ()
        for document, (name, kind) in zip(listed, one.contents.devices, strict=False):
            tainted = any(taint.get("effect") in _EXCLUDING for taint in document.get("taints") or ())
            yield Device((one.pool, name), kind, _takes(one.pool, document), tainted)


def _takes(pool: PoolId, device: Document) -> dict[CounterId, Number]:
    return {
        (pool, each.get("counterSet", ""), counter): Quantity.parse(amount.get("value", 0)).number
        for each in device.get("consumesCounters") or ()
        for counter, amount in (each.get("counters") or {}).items()
    }


def readable(stored: Iterable[Stored], read: Callable[[bytes], T]) -> Iterator[T]:
    """Objects, read; those that make no sense are left out."""
    for one in stored:
        with suppress(InvalidInput):
            yield read(one.encoded)


def selects(expressions: tuple[str, ...], device: Device) -> bool:
    """Whether all of these expressions hold for a device; `CannotEvaluate` where one of them cannot be evaluated."""
    selectors, stand_in = _compiled(expressions)
    verdict = selectors.selects(stand_in, device.kind)
    if verdict is None:
        raise CannotEvaluate(selectors.class_errors[stand_in])
    return verdict


@lru_cache(maxsize=256)  # the texts of a few classes and templates
def _compiled(expressions: tuple[str, ...]) -> tuple[Selectors, DeviceClass]:
    """The expressions, compiled once, as those of a class that has them all."""
    selectors, stand_in = Selectors(), DeviceClass("", expressions)
    selectors.use([stand_in])
    return selectors, stand_in
