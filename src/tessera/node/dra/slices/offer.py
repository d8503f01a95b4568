"""The names under which devices are offered, and their order, which is a policy: the scheduler takes the first that fits."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tessera.core.devices.device import Device, DeviceType
from tessera.core.devices.preference import least_harmful
from tessera.core.dra.naming import MOST_NAME, card_name, label, slice_name

_TYPES: Final = tuple(reversed(DeviceType))  # whole cards last: handing one out does the most harm


@dataclass(frozen=True, slots=True)
class Offered:
    """A device under the name that it has in the slices."""

    name: str
    device: Device


def offer(devices: Iterable[Device]) -> tuple[Offered, ...]:
    """Every device with a name of its own: small ones first, card by card, on each the least harmful place first."""
    devices = tuple(devices)
    taken = Counter(map(_plain_name, devices))
    named = {
        device.key: name if taken[name := _plain_name(device)] == 1 else _told_apart(name, device)
        for device in devices
    }
    return tuple(Offered(named[device.key], device) for device in _ordered(devices))


def _plain_name(device: Device) -> str:
    """`gpu-0`, `gpu-0-mig-2g-20gb-4`, or the id: the same over restarts and layouts."""
    place, model = device.place, device.model
    if place is None or model.type is DeviceType.DEVICE:
        return label(device.id)
    if model.type is DeviceType.GPU:
        return card_name(place.card.index)
    return slice_name(place.card.index, model.profile, place.span.start)


def _told_apart(name: str, device: Device) -> str:
    digest = hashlib.sha256(f"{device.resource}\0{device.cdi_name}".encode()).hexdigest()[:10]
    return f"{name[: MOST_NAME - len(digest) - 1]}-{digest}"


def _ordered(devices: Iterable[Device]) -> list[Device]:
    alike: dict[tuple[int, int, str, int], list[Device]] = {}
    for device in devices:
        model, card = device.model, device.place.card.index if device.place else -1
        alike.setdefault((_TYPES.index(model.type), model.memory_mib, model.profile, card), []).append(device)
    return [device for key in sorted(alike) for device in least_harmful(alike[key])]
