"""Devices that are listed in the configuration: healthy as long as their files are there."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tessera.core.devices.device import Device

# what a container runtime can make a device node of
_DEVICE_TYPES = (stat.S_ISCHR, stat.S_ISBLK, stat.S_ISFIFO)


class StaticSource:
    """A fixed list of devices, checked on the host."""

    def __init__(self, devices: Sequence[Device], host_root: Path = Path("/")) -> None:
        self._devices = tuple(devices)
        self._host_root = host_root

    def devices(self) -> Sequence[Device]:
        """The list, each device with what is wrong with it now."""
        return [device.unhealthy(self._problem(device)) for device in self._devices]

    def _problem(self, device: Device) -> str:
        for node in device.edits.nodes:
            mode = self._mode(node.host_path)
            if mode is None:
                return f"{node.host_path} is not on the host"
            if not any(is_type(mode) for is_type in _DEVICE_TYPES):
                return f"{node.host_path} is no device node (mknod makes one)"
        for mount in device.edits.mounts:
            if self._mode(mount.host_path) is None:
                return f"{mount.host_path} is not on the host"
        return ""

    def _mode(self, host_path: str) -> int | None:
        """What a path of the host is, links not followed: they may lead out of what is visible here."""
        try:
            return os.lstat(self._host_root / host_path.lstrip("/")).st_mode
        except OSError:
            return None
