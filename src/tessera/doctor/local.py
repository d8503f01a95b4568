"""What can only be seen on a node: files."""

from pathlib import Path

import msgspec

from tessera.doctor.evidence import CdiFile


class _Device(msgspec.Struct):
    id: str
    cdi_kind: str


def read_cdi(cdi_dir: Path, state_dir: Path) -> tuple[tuple[CdiFile, ...], tuple[str, ...]]:
    """The CDI specs of a node, and the CDI names of the devices that its plugin told the kubelet last."""
    files = tuple(
        CdiFile(path.name, path.read_bytes()) for path in sorted(cdi_dir.iterdir()) if path.is_file()
    )
    return files, _devices(state_dir / "devices.json")


def _devices(path: Path) -> tuple[str, ...]:
    try:
        devices = msgspec.json.decode(path.read_bytes(), type=list[_Device])
    except (FileNotFoundError, msgspec.MsgspecError):
        return ()  # no plugin has been here, or one that keeps no record
    return tuple(f"{device.cdi_kind}={device.id}" for device in devices)
