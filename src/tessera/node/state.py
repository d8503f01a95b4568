"""The devices that were published last, kept on disk, and rebuilt where their record is missing or cannot be read.

After a restart, or a change of layout while no process of ours ran, pods may still use devices that the sources no longer have. A
record that cannot be read does not mean that there was nothing. Three things still know these devices: the kubelet (or the API
server's claims) counts what is held, the CDI specs list what was published, and the cards determine where each id lies.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tessera.core.devices.device import Device
from tessera.node.files import SHARED_LEFTOVERS_AGE, Saved, remove_leftovers

Key = tuple[str, str]  # resource and id


class DeviceState(Saved[tuple[Device, ...]]):
    """Devices in a file."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """`shared`: another process of ours may write to the same folder."""
        super().__init__(path, tuple[Device, ...], unwritable=", a restart will not remember devices")
        self._leftovers_age = SHARED_LEFTOVERS_AGE if shared else 0.0

    def load(self) -> tuple[Device, ...] | None:
        """What was saved last; called once, before anything is written to the folder."""
        remove_leftovers(self._path.parent, self._leftovers_age)
        return super().load()

    def save(self, value: Sequence[Device]) -> bool:
        """Keep these. Health changes too often to be worth a write, and a restart asks for it again anyway."""
        return super().save(
            tuple(device if device.leaving else replace(device, problem="") for device in value)
        )


def rebuilt(
    known: Iterable[Device], counted: Collection[Key], published: Collection[str] = ()
) -> tuple[Device, ...]:
    """Those of the known devices that a pod holds, and of the others those that were published and overlap with none of them.

    `counted` are held, by resource and id; `published` are CDI names. A published device that overlaps with one that is held is left
    out: it was not there yet, or its slices are in doubt.
    """
    by_id = {device.id: device for device in known}
    # the id of a slice is a UUID; any other id counts only together with its resource
    held = tuple(
        replace(device, resource=resource)
        for resource, name in sorted(counted)
        if (device := by_id.get(name)) and (device.place or device.resource == resource)
    )
    keep = {device.id for device in held}
    rest = tuple(
        device
        for device in by_id.values()
        if device.id not in keep and device.cdi_name in published and not any(map(device.overlaps, held))
    )
    return (*held, *rest)


def unknown(possible: Collection[Device], held: Collection[Key]) -> list[str]:
    """Ids that are held under a resource of these devices and are none of them: it is not known which slices they take."""
    resources, ids = {device.resource for device in possible}, {device.id for device in possible}
    return sorted(name for resource, name in held if resource in resources and name not in ids)
