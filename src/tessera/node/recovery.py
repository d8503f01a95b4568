"""The devices of the last run, rebuilt: for a start at which their record is missing or cannot be read.

A record that cannot be read does not mean that there was nothing: pods may hold devices that the present layout does not
have. Three things still know them: the kubelet (or the API server's claims) counts what is held, the CDI specs list what was
published, and the cards determine where each id lies.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from tessera.core.devices.device import Device

Key = tuple[str, str]  # resource and id


def rebuilt(
    known: Iterable[Device], counted: Collection[Key], published: Collection[str] = ()
) -> tuple[Device, ...]:
    """Those of the known devices that somebody holds, and of the others those that were published and overlap with none of them.

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
