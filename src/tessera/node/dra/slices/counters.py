"""Counters of cards that are cut on demand: exactly what a card's geometry limits, so that what the scheduler allows can be cut."""

from tessera.core.devices.device import Device
from tessera.core.mig.geometry import Product, Shape


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


def _is_limited(product: Product, shape: Shape) -> bool:
    """Whether the card holds fewer of a profile than slices, compute and media engines alone would allow."""
    apart, end = 0, 0
    for start in shape.starts:
        if start >= end:
            apart, end = apart + 1, start + shape.size
    by_engines = [product.compute_slices // shape.compute, *([product.media_sets] if shape.media else [])]
    return shape.most < min(apart, *by_engines)


def _memory(product: Product, slices: int) -> int:
    """Bytes by slices, not the profile's own: rounded names would add up to more than the card."""
    return product.memory_mib * 1024 * 1024 * slices // product.memory_slices
