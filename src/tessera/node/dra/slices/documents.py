"""ResourceSlices: the documents that offer devices. The scheduler takes slices by name, and devices as they are listed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.devices.device import Device, DeviceType
from tessera.core.mig.geometry import Product
from tessera.node.dra.names import DEVICE_PLUGIN, DRIVER, LEAVING, UNHEALTHY, pool_of
from tessera.node.dra.slices.counters import consumption, supply
from tessera.node.dra.slices.offer import Offered

Document = dict[str, Any]

_MOST_DEVICES: Final = 64  # in a slice, as soon as one has a taint or consumes counters (else 128): always
_MOST_COUNTER_SETS: Final = 8  # in a slice
_MOST_TEXT: Final = 64  # characters of an attribute


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node offers, and how."""

    node: str
    devices: tuple[Offered, ...]
    counted: Mapping[str, Product]  # the UUIDs of cards that are cut on demand, and what they are
    evict_unhealthy: bool = False
    withheld: bool = False  # nothing new may be given out: a device plugin has the same cards


def specs(offer: Offer) -> tuple[Document, ...]:
    """The specs of the slices, in order and without generation and count."""
    counters = [
        _counter_set(card, offer.counted[uuid])
        for uuid, card in _cards(offer.devices).items()
        if uuid in offer.counted
    ]
    devices = [_device(one, offer) for one in offer.devices]
    contents = [
        *({"devices": list(some)} for some in _chunks(devices, _MOST_DEVICES)),
        *({"sharedCounters": list(some)} for some in _chunks(counters, _MOST_COUNTER_SETS)),
    ]
    common = {"driver": DRIVER, "nodeName": offer.node, "pool": {"name": pool_of(offer.node)}}
    return tuple(common | content for content in contents)


def _cards(devices: Iterable[Offered]) -> dict[str, int]:
    """The UUIDs of the cards, and their numbers."""
    return {
        one.device.model.parent: one.device.place.card.index
        for one in devices
        if one.device.place and one.device.model.parent
    }


def _device(one: Offered, offer: Offer) -> Document:
    device, model, place = one.device, one.device.model, one.device.place
    attributes = {
        "type": {"string": str(model.type)},
        "profile": _text(model.profile),
        "product": _text(model.product),
        "parent": _text(model.parent),
        "card": {"int": place.card.index if place and model.parent else -1},
        "position": {"int": place.span.start if place and model.type is DeviceType.MIG else -1},
        "uuid": _text(device.id if model.cut else ""),
        "resource": _text(device.resource),
    }
    document: Document = {
        "name": one.name,
        "attributes": attributes,  # all of them on every device: a missing one stops scheduling everywhere
        "capacity": {"memory": {"value": f"{model.memory_mib}Mi"}},
    }
    if place and (product := offer.counted.get(model.parent)):
        consumed = {name: {"value": str(count)} for name, count in consumption(device, product).items()}
        document["consumesCounters"] = [{"counterSet": _set_name(place.card.index), "counters": consumed}]
    if taints := _taints(device, offer):
        document["taints"] = taints
    return document


def _text(text: str) -> Document:
    return {"string": text[:_MOST_TEXT]}


def _taints(device: Device, offer: Offer) -> list[Document]:
    taints = [(DEVICE_PLUGIN, "NoSchedule")] if offer.withheld else []
    if device.leaving:
        taints.append((LEAVING, "NoSchedule"))
    elif device.problem:
        taints.append((UNHEALTHY, "NoExecute" if offer.evict_unhealthy else "NoSchedule"))
    return [{"key": key, "effect": effect} for key, effect in taints]


def _set_name(card: int) -> str:
    return f"card-{card}"


def _counter_set(card: int, product: Product) -> Document:
    counters = {name: {"value": str(count)} for name, count in supply(product).items()}
    return {"name": _set_name(card), "counters": counters}


def _chunks(items: Sequence[Document], size: int) -> Iterable[Sequence[Document]]:
    return (items[start : start + size] for start in range(0, len(items), size))
