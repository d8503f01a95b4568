"""The devices that were published last, kept on disk.

After a restart, or a change of layout while no process of ours ran, pods may still use devices that the sources no longer have.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput
from tessera.node.files import SHARED_LEFTOVERS_AGE, remove_leftovers, write_whole

log = logging.getLogger(__name__)


class DeviceState:
    """Devices in a file."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """`shared`: another process of ours may write to the same folder."""
        self._path = path
        self._leftovers_age = SHARED_LEFTOVERS_AGE if shared else 0.0
        self._saved: tuple[Device, ...] | None = None
        self._logged = False
        self.error = ""  # why the file could not be read

    def load(self) -> tuple[Device, ...] | None:
        """What was saved last; called once, before anything is written to the folder. None: no file, or none that can be read."""
        remove_leftovers(self._path.parent, self._leftovers_age)
        try:
            self._saved = msgspec.json.decode(self._path.read_bytes(), type=tuple[Device, ...])
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, InvalidInput) as error:
            self.error = f"{self._path} cannot be read: {error}"
            log.error("%s", self.error)  # noqa: TRY400 # one line says it
            return None
        return self._saved

    def save(self, devices: Sequence[Device]) -> bool:
        """Keep these; False if a restart will not remember them.

        Health changes too often to be worth a write, and a restart asks for it again anyway.
        """
        essence = tuple(device if device.leaving else replace(device, problem="") for device in devices)
        if essence == self._saved:
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(essence))
        except OSError as error:
            if not self._logged:
                log.warning(
                    "%s: cannot be written, a restart will not remember devices: %s", self._path, error
                )
                self._logged = True
            return False
        self._saved, self._logged = essence, False
        return True
