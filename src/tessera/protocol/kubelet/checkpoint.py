"""`kubelet_internal_checkpoint`: the kubelet's own record of which devices it has allocated.

The kubelet reads it when it starts, before it serves anything, and writes it whole after every allocation and every message
of ListAndWatch: `{"Data": {"PodDeviceEntries": [{"PodUID": …, "ContainerName": …, "ResourceName": …, "DeviceIDs":
{"-1": ["id"]}, "AllocResp": …}], "RegisteredDevices": …}, "Checksum": …}`, device ids by NUMA node.
"""

from collections.abc import Iterable
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
    try:
        entries = _DECODER.decode(data).data.pod_device_entries
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{FILE}: not as the kubelet writes it: {error}") from error
    return frozenset(
        (entry.resource_name, device_id)
        for entry in entries or ()
        for ids in entry.device_ids.values()
        for device_id in ids
    )


def encode(entries: Iterable[CheckpointEntry]) -> bytes:
    """A checkpoint with these entries; for stand-ins of the kubelet."""
    return msgspec.json.encode(_Checkpoint(_Data(list(entries) or None)))


_DECODER: Final = msgspec.json.Decoder(_Checkpoint)
