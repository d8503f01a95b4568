"""What can only be seen on a node: its CDI specs, and what its device plugin remembers."""

from pathlib import Path

import msgspec

from tessera.doctor.evidence import CdiFile


class _RememberedDevice(msgspec.Struct):
    """A device in the plugin's own record."""

    id: str
    cdi_kind: str


def read_cdi(cdi_dir: Path, state_dir: Path) -> tuple[tuple[CdiFile, ...], tuple[str, ...] | None]:
    """Its CDI specs, and the CDI names of the devices that its plugin published last; None: the folder has no record that can be read."""
    files = tuple(
        CdiFile(path.name, path.read_bytes()) for path in sorted(cdi_dir.iterdir()) if path.is_file()
    )
    try:
        remembered = (state_dir / "devices.json").read_bytes()
        devices = msgspec.json.decode(remembered, type=list[_RememberedDevice])
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return files, None
    return files, tuple(f"{device.cdi_kind}={device.id}" for device in devices)
