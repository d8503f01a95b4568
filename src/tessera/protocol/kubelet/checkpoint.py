"""`kubelet_internal_checkpoint`: the kubelet's own record of which devices it has allocated, and which it can choose from.

The kubelet reads it when it starts, before it serves anything, and writes it whole after every allocation and every message
of ListAndWatch: `{"Data": {"PodDeviceEntries": [{"PodUID": …, "ContainerName": …, "ResourceName": …, "DeviceIDs":
{"-1": ["id"]}, "AllocResp": …}], "RegisteredDevices": {"resource": ["id"]}}, "Checksum": …}`. The ids of `DeviceIDs` are by NUMA node,
those of `RegisteredDevices` are the healthy ones.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tessera.core.errors import InvalidInput

FILE: Final = "kubelet_internal_checkpoint"  # in the kubelet's folder of device plugins


class CheckpointEntry(msgspec.Struct, frozen=True, rename="pascal"):
    """What one container has of one resource; a field that lacks is another format, and says nothing."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] = msgspec.field(name="DeviceIDs")


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[CheckpointEntry] | None  # null: none
    registered_devices: dict[str, list[str] | None] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data
    checksum: int = 0  # of Go's own print of the data: nothing that can be computed here


def allocated(data: bytes) -> frozenset[tuple[str, str]]:
    """What containers have, by resource and id."""
    return frozenset(pods(data))


def pods(data: bytes) -> dict[tuple[str, str], str]:
    """The same, with the UIDs of the containers' pods."""
    return {
        (entry.resource_name, device_id): entry.pod_uid
        for entry in _decoded(data).pod_device_entries or ()
        for ids in entry.device_ids.values()
        for device_id in ids
    }


def registered(data: bytes) -> frozenset[tuple[str, str]]:
    """What the kubelet chooses from when a pod comes, by resource and id."""
    devices = _decoded(data).registered_devices
    if devices is None:
        raise InvalidInput(f"{FILE}: does not say which devices are registered")
    return frozenset((resource, device_id) for resource, ids in devices.items() for device_id in ids or ())


def encode(
    entries: Iterable[CheckpointEntry] = (), registered_devices: Mapping[str, list[str]] | None = None
) -> bytes:
    """A checkpoint with these entries and devices; for stand-ins of the kubelet."""
    devices: dict[str, list[str] | None] | None = None
    if registered_devices is not None:
        devices = {**registered_devices}
    return msgspec.json.encode(_Checkpoint(_Data(list(entries) or None, devices)))


def _decoded(data: bytes) -> _Data:
    try:
        return _DECODER.decode(data).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{FILE}: not as the kubelet writes it: {error}") from error


_DECODER: Final = msgspec.json.Decoder(_Checkpoint)
