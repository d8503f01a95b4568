"""What the node offers: devices under their names and in their order, and the ResourceSlices that say it.

The order is a policy: the scheduler takes slices by name, devices as they are listed, and of these the first that fits.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.devices.device import Device, DeviceType, Span
from tessera.core.devices.preference import least_harmful
from tessera.core.dra.device_names import MOST_NAME, card_name, label, pool_of, slice_name
from tessera.core.dra.slices import DRIVER, LEAVING
from tessera.core.mig.geometry import Product, Shape

Document = dict[str, Any]

# Keys of device taints, beside LEAVING
UNHEALTHY: Final = f"{DRIVER}/unhealthy"
_DEVICE_PLUGIN: Final = f"{DRIVER}/device-plugin"  # a device plugin hands out the same cards

_TYPES: Final = tuple(reversed(DeviceType))  # whole cards last: handing one out does the most harm
_MOST_DEVICES: Final = 64  # in a slice, as soon as one has a taint or consumes counters (else 128): always
_MOST_COUNTER_SETS: Final = 8  # in a slice
_MOST_TEXT: Final = 64  # characters of an attribute


def offer(devices: Iterable[Device]) -> dict[str, Device]:
    """Every device by a name of its own: small ones first, card by card, on each the least harmful place first."""
    devices = tuple(devices)
    taken = Counter(map(_plain_name, devices))
    return {
        name if taken[name := _plain_name(device)] == 1 else _unique_name(name, device): device
        for device in _ordered(devices)
    }


def _plain_name(device: Device) -> str:
    """`gpu-0`, `gpu-0-mig-2g-20gb-4`, or the id: the same over restarts and layouts."""
    place, model = device.place, device.model
    if place is None or model.type is DeviceType.DEVICE:
        return label(device.id)
    if model.type is DeviceType.GPU:
        return card_name(place.card.index)
    return slice_name(place.card.index, model.profile, place.span.start)


def _unique_name(name: str, device: Device) -> str:
    digest = hashlib.sha256(f"{device.resource}\0{device.cdi_name}".encode()).hexdigest()[:10]
    return f"{name[: MOST_NAME - len(digest) - 1]}-{digest}"


def _ordered(devices: Iterable[Device]) -> list[Device]:
    alike: dict[tuple[int, int, str, int], list[Device]] = {}
    for device in devices:
        model, card = device.model, device.place.card.index if device.place else -1
        alike.setdefault((_TYPES.index(model.type), model.memory_mib, model.profile, card), []).append(device)
    return [device for key in sorted(alike) for device in least_harmful(alike[key])]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node offers, and how."""

    node: str
    devices: Mapping[str, Device]  # by name, in order
    counted: Mapping[str, Product]  # the UUIDs of cards that are cut on demand, and what they are
    evict_unhealthy: bool = False
    withheld: bool = False  # nothing new may be given out: a device plugin has the same cards


def specs(offer: Offer) -> tuple[Document, ...]:
    """The specs of the slices, in order and without generation and count."""
    counters = [
        {"name": _set_name(card), "counters": _values(supply(offer.counted[uuid]))}
        for uuid, card in _cards(offer.devices.values()).items()
        if uuid in offer.counted
    ]
    devices = [_device(name, device, offer) for name, device in offer.devices.items()]
    contents = [
        *({"devices": list(some)} for some in _chunks(devices, _MOST_DEVICES)),
        *({"sharedCounters": list(some)} for some in _chunks(counters, _MOST_COUNTER_SETS)),
    ]
    common = {"driver": DRIVER, "nodeName": offer.node, "pool": {"name": pool_of(offer.node)}}
    return tuple(common | content for content in contents)


def _cards(devices: Iterable[Device]) -> dict[str, int]:
    """The UUIDs of the cards, and their numbers."""
    return {one.model.parent: one.place.card.index for one in devices if one.place and one.model.parent}


def _device(name: str, device: Device, offer: Offer) -> Document:
    model, place = device.model, device.place
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
        "name": name,
        "attributes": attributes,  # all of them on every device: a missing one stops scheduling everywhere
        "capacity": {"memory": {"value": f"{model.memory_mib}Mi"}},
    }
    if place and (product := offer.counted.get(model.parent)):
        consumed = _values(consumption(device, product))
        document["consumesCounters"] = [{"counterSet": _set_name(place.card.index), "counters": consumed}]
    if taints := _taints(device, offer):
        document["taints"] = taints
    return document


def _values(counts: Mapping[str, int]) -> Document:
    return {name: {"value": str(count)} for name, count in counts.items()}


def _text(text: str) -> Document:
    return {"string": text[:_MOST_TEXT]}


def _taints(device: Device, offer: Offer) -> list[Document]:
    taints = [(_DEVICE_PLUGIN, "NoSchedule")] if offer.withheld else []
    if device.leaving:
        taints.append((LEAVING, "NoSchedule"))
    elif device.problem:
        taints.append((UNHEALTHY, "NoExecute" if offer.evict_unhealthy else "NoSchedule"))
    return [{"key": key, "effect": effect} for key, effect in taints]


def _set_name(card: int) -> str:
    return f"card-{card}"


def _chunks(items: Sequence[Document], size: int) -> Iterable[Sequence[Document]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def supply(product: Product) -> dict[str, int]:
    """The counters of a card that is cut on demand: what its geometry limits, so that what the scheduler allows can be cut."""
    limits = {_limit(shape): shape.most for shape in product.shapes if _is_limited(product, shape)}
    whole = Span(0, product.memory_slices)
    return _counters(product, whole, product.compute_slices, product.media_sets, limits)


def consumption(device: Device, product: Product) -> dict[str, int]:
    """What a device takes of its card; the whole card takes everything."""
    shape = next((one for one in product.shapes if str(one.profile) == device.model.profile), None)
    if device.place is None or shape is None:
        return supply(product)
    media = min(1, product.media_sets) if shape.media else 0
    limits = {_limit(shape): 1} if _is_limited(product, shape) else {}
    return _counters(product, device.place.span, shape.compute, media, limits)


def _counters(
    product: Product, span: Span, compute: int, media: int, limits: Mapping[str, int]
) -> dict[str, int]:
    slices = {f"memory-slice-{number}": 1 for number in range(span.start, span.start + span.size)}
    engines = {"compute": compute, **({"media": media} if media else {})}
    # bytes by slices, not the profile's own: rounded names would add up to more than the card
    memory = product.memory_mib * 1024 * 1024 * span.size // product.memory_slices
    return {**slices, **engines, **limits, "memory": memory}


def _limit(shape: Shape) -> str:
    return f"profile-{shape.profile.label.replace('.', '-')}"


def _is_limited(product: Product, shape: Shape) -> bool:
    """Whether the card holds fewer of a profile than slices, compute and media engines alone would allow."""
    apart, end = 0, 0
    for start in shape.starts:
        if start >= end:
            apart, end = apart + 1, start + shape.size
    by_engines = [product.compute_slices // shape.compute, *([product.media_sets] if shape.media else [])]
    return shape.most < min(apart, *by_engines)
