"""Which devices there are on a node's cards, and which of them pods hold.

Kubelets write the ids of the devices that they gave to a container into its status (`allocatedResourcesStatus`, on by
default from Kubernetes 1.36). Elsewhere the API has only numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import NodeLayout, Slot
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.mig.nodes import GpuNode, MappedDevice, decode_mapping

Held = tuple[tuple[str, str], ...]  # resource, device id


def held_by(pod: PodIn, keep: Callable[[str], bool]) -> Held:
    """The devices that a pod holds, by their ids; empty where its kubelet does not write them down."""
    return tuple(
        (allocated.name, device.id)
        for container in pod.status.container_statuses or ()
        for allocated in container.allocated_resources_status or ()
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
    """The devices of a layout: with the ids from the node, else with those of a simulated node."""
    mapped = _mapped(gpus)
    for resource, slots in layout.slots(gpus.strategy).items():
        for slot in slots:
            known = mapped.get((slot.card, slot.instance.position)) if slot.instance else None
            if known is None:
                yield PlacedDevice(resource, slot, slot.uuid(gpus.name))
            else:
                yield PlacedDevice(resource, slot, known.device_uuid, known.leaving)


def _mapped(gpus: GpuNode) -> dict[tuple[int, int], MappedDevice]:
    """Card and position → the device there, as the node reports it."""
    try:
        mapping = decode_mapping(gpus.mapping) if gpus.mapping else {}
    except InvalidInput:
        return {}
    return {(card, one.position): one for card, devices in mapping.items() for one in devices}
