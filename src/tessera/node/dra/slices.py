"""ResourceSlices: the documents that offer devices, and what is to be written so that the API server has them.

A pool is what is consistent together: the scheduler uses it only when as many slices of its highest generation are there
as each of them says. It takes slices by name and devices as listed.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.devices.device import Device, DeviceType
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.geometry import Product
from tessera.node.dra.offer import DRIVER, Offered

Document = dict[str, Any]

API_VERSION: Final = "resource.k8s.io/v1"
_MOST_DEVICES: Final = 64  # in a slice, as soon as one has a taint or consumes counters (else 128): always
_MOST_COUNTER_SETS: Final = 8  # in a slice
_MOST_TEXT: Final = 64  # characters of an attribute
_MOST_NAME: Final = 253

LEAVING: Final = f"{DRIVER}/leaving"  # in use and no longer wanted
UNHEALTHY: Final = f"{DRIVER}/unhealthy"
DEVICE_PLUGIN: Final = f"{DRIVER}/device-plugin"  # a device plugin hands out the same cards


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node offers, and how."""

    node: str
    devices: tuple[Offered, ...]
    counted: Mapping[str, Product]  # the UUIDs of cards that are cut on demand, and what they are
    evict_unhealthy: bool = False
    withheld: bool = False  # nothing new may be given out: a device plugin has the same cards

    @property
    def pool(self) -> str:
        """The pool's name; not the bare node's: the scheduler kept counters of drivers apart by pool alone."""
        return pool_of(self.node)


def pool_of(node: str) -> str:
    """The name of a node's pool."""
    return f"{node}/tessera"


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
    common = {"driver": DRIVER, "nodeName": offer.node, "pool": {"name": offer.pool}}
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


# Counters: exactly what a card's geometry limits, so that what the scheduler allows can be cut


def _set_name(card: int) -> str:
    return f"card-{card}"


def _counter_set(card: int, product: Product) -> Document:
    counters = {name: {"value": str(count)} for name, count in supply(product).items()}
    return {"name": _set_name(card), "counters": counters}


def supply(product: Product) -> dict[str, int]:
    """What a whole card has."""
    slices = {f"memory-slice-{number}": 1 for number in range(product.memory_slices)}
    media = {"media": product.media_sets} if product.media_sets else {}
    limited = {
        _limit(shape.profile.label): shape.most for shape in product.shapes if _is_limited(product, shape)
    }
    return {
        **slices,
        "compute": product.compute_slices,
        **media,
        **limited,
        "memory": _memory(product, product.memory_slices),
    }


def consumption(device: Device, product: Product) -> dict[str, int]:
    """What a device takes of its card; the whole card takes everything."""
    shape = next((one for one in product.shapes if str(one.profile) == device.model.profile), None)
    if device.place is None or shape is None:
        return supply(product)
    span = device.place.span
    slices = {f"memory-slice-{number}": 1 for number in range(span.start, span.start + span.size)}
    media = {"media": 1} if shape.media and product.media_sets else {}
    limited = {_limit(shape.profile.label): 1} if _is_limited(product, shape) else {}
    return {**slices, "compute": shape.compute, **media, **limited, "memory": _memory(product, span.size)}


def _limit(label: str) -> str:
    return f"profile-{label.replace('.', '-')}"


def _is_limited(product: Product, shape: Any) -> bool:
    """Whether the card holds fewer of a profile than slices, compute and media engines alone would allow."""
    apart, end = 0, 0
    for start in shape.starts:
        if start >= end:
            apart, end = apart + 1, start + shape.size
    by_engines = [product.compute_slices // shape.compute, *([product.media_sets] if shape.media else [])]
    return bool(shape.most < min(apart, *by_engines))


def _memory(product: Product, slices: int) -> int:
    """Bytes by slices, not the profile's own: rounded names would add up to more than the card."""
    return product.memory_mib * 1024 * 1024 * slices // product.memory_slices


# What is to be written


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls that make the API server have what is desired; in this order."""

    delete: tuple[str, ...] = ()
    update: tuple[Document, ...] = ()
    create: tuple[Document, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan(
    desired: Sequence[Document], current: Mapping[str, Document], owner: Document, generation: int
) -> Plan:
    """What is to be written; `generation` is the highest that was ever seen. A change of one slice keeps the generation."""
    names = [slice_name(index, spec["nodeName"]) for index, spec in enumerate(desired)]
    top = max([_pool(one)["generation"] for one in current.values()], default=0)
    wrong = [
        name for name, spec in zip(names, desired, strict=True)
        if name not in current or not _is(current[name], spec, top, len(desired)) or _owner(current[name]) != owner["uid"]
    ]  # fmt: skip
    extra = tuple(name for name in current if name not in names)
    if not wrong and not extra:
        return Plan()
    alone = wrong[0] if len(wrong) == 1 and not extra else ""
    if (
        not alone
        or alone not in current
        or _pool(current[alone]) != _pool_document(desired[0], top, len(desired))
    ):
        wrong, top = names, max(top, generation) + 1
    documents = {
        name: _document(name, spec, owner, current.get(name), top, len(desired))
        for name, spec in zip(names, desired, strict=True)
        if name in wrong
    }
    return Plan(
        extra,
        tuple(document for name, document in documents.items() if name in current),
        tuple(document for name, document in documents.items() if name not in current),
    )


def slice_name(index: int, node: str) -> str:
    """The name of a node's slice; they sort by it. A node's name that is too long is cut, and told apart by a hash."""
    name = f"{index:05}-{node}-{DRIVER}"
    if len(name) <= _MOST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{index:05}-{node[:200].rstrip('.-')}-{digest}-{DRIVER}"


def _is(current: Document, spec: Document, generation: int, count: int) -> bool:
    return _pool(current) == _pool_document(spec, generation, count) and essence(current["spec"]) == essence(
        spec
    )


def _pool(document: Document) -> Document:
    pool: Document = document["spec"]["pool"]
    return pool


def _pool_document(spec: Document, generation: int, count: int) -> Document:
    return {"name": spec["pool"]["name"], "generation": generation, "resourceSliceCount": count}


def _owner(document: Document) -> str:
    return next((str(one.get("uid")) for one in document["metadata"].get("ownerReferences") or ()), "")


def _document(
    name: str, spec: Document, owner: Document, current: Document | None, generation: int, count: int
) -> Document:
    metadata: Document = {"name": name, "ownerReferences": [owner]}
    if current is not None:
        metadata["resourceVersion"] = current["metadata"]["resourceVersion"]
        spec = _with_times(spec, current["spec"])
    spec = spec | {"pool": _pool_document(spec, generation, count)}
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _with_times(spec: Document, current: Document) -> Document:
    """The spec with the times at which its taints were added, as the API server knows them."""
    times = {
        (device["name"], taint["key"], taint["effect"]): taint.get("timeAdded")
        for device in current.get("devices") or ()
        for taint in device.get("taints") or ()
    }

    def timed(device: Document) -> Document:
        if "taints" not in device:
            return device
        taints = [
            taint
            | (
                {"timeAdded": time}
                if (time := times.get((device["name"], taint["key"], taint["effect"])))
                else {}
            )
            for taint in device["taints"]
        ]
        return device | {"taints": taints}

    return spec | {"devices": [timed(device) for device in spec["devices"]]} if "devices" in spec else spec


def essence(spec: Document) -> object:
    """What a spec says: quantities by value, without what the API server adds and without the pool's numbers."""
    return _essence({key: value for key, value in spec.items() if key != "pool"})


def _essence(value: Any) -> object:
    if isinstance(value, list):
        return [_essence(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"value"}:  # a capacity or a counter
        try:
            return Quantity.parse(value["value"]).value
        except InvalidInput:
            return value
    return {
        key: _essence(one) for key, one in value.items() if key != "timeAdded" and one not in (None, [], {})
    }


def dropped(sent: Document, received: Document) -> tuple[str, ...]:
    """The fields of devices that the API server took without a word and did not keep."""
    kept = {device["name"]: device for device in received["spec"].get("devices") or ()}
    fields = {
        field
        for device in sent["spec"].get("devices") or ()
        for field in ("taints", "consumesCounters", "capacity", "attributes")
        if device.get(field) and not kept.get(device["name"], {}).get(field)
    }
    if sent["spec"].get("sharedCounters") and not received["spec"].get("sharedCounters"):
        fields.add("sharedCounters")
    return tuple(sorted(fields))


def _chunks(items: Sequence[Document], size: int) -> Iterable[Sequence[Document]]:
    return (items[start : start + size] for start in range(0, len(items), size))
