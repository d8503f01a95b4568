"""Which devices there are on a node's cards, and which of them pods hold.

Kubelets write the ids of the devices that they gave to a container into its status (`allocatedResourcesStatus`, on by
default from Kubernetes 1.36). Elsewhere the API has only numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import NodeLayout, Slot
from tessera.protocol.kubernetes import objects
from tessera.protocol.mig.mapping import MappedDevice, decode_mapping
from tessera.protocol.mig.nodes import GpuNode

Held = tuple[tuple[str, str], ...]  # resource, device id


class _Device(msgspec.Struct, gc=False):
    resourceID: str = ""  # noqa: N815 # as in the API


class _Allocated(msgspec.Struct, gc=False):
    name: str = ""
    resources: list[_Device] | None = None


class _Container(msgspec.Struct, gc=False):
    allocatedResourcesStatus: list[_Allocated] | None = None  # noqa: N815


class _Status(msgspec.Struct, gc=False):
    containerStatuses: list[_Container] | None = None  # noqa: N815


class _Pod(msgspec.Struct, gc=False):
    status: _Status | None = None


_pod: Final = objects.decoder(_Pod)


def decode_held(raw: bytes, keep: Callable[[str], bool]) -> Held:
    """The devices that a pod holds, by their ids; empty where its kubelet does not write them down."""
    status = _pod(raw).status or _Status()
    return tuple(
        (allocated.name, device.resourceID)
        for container in status.containerStatuses or ()
        for allocated in container.allocatedResourcesStatus or ()
        if keep(allocated.name)
        for device in allocated.resources or ()
    )


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """A device of a node, and where it lies."""

    resource: str
    slot: Slot
    id: str
    leaving: bool = False  # of an earlier layout: it stays for its pod


def placed_devices(gpus: GpuNode, layout: NodeLayout) -> Iterator[PlacedDevice]:
    """The devices of a layout: with the ids that the node tells, else with those of a simulated node."""
    mapped = _mapped(gpus)
    for resource, slots in layout.slots(gpus.strategy).items():
        for slot in slots:
            told = mapped.get((slot.card, slot.instance.position)) if slot.instance else None
            if told is None:
                yield PlacedDevice(resource, slot, slot.uuid(gpus.name))
            else:
                yield PlacedDevice(resource, slot, told.device_uuid, told.leaving)


def _mapped(gpus: GpuNode) -> dict[tuple[int, int], MappedDevice]:
    """Card and position → the device there, as the node tells it."""
    try:
        mapping = decode_mapping(gpus.mapping) if gpus.mapping else {}
    except InvalidInput:
        return {}
    return {(card, one.position): one for card, devices in mapping.items() for one in devices}
