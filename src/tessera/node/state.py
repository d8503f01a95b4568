"""What the plugin told the kubelet last, kept on disk.

After a restart, or a change of layout while the plugin was away, pods may still use devices that nothing else remembers.
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
    """Devices in a file; a file that is missing, broken or cannot be written is no reason to stop."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """`shared`: another process of ours may write to the same folder."""
        self._path = path
        self._leftovers_age = SHARED_LEFTOVERS_AGE if shared else 0.0
        self._saved: tuple[Device, ...] | None = None
        self._complained = False

    def load(self) -> tuple[Device, ...]:
        """What was saved last; called once, before anything is written to the folder."""
        remove_leftovers(self._path.parent, self._leftovers_age)
        try:
            self._saved = msgspec.json.decode(self._path.read_bytes(), type=tuple[Device, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, InvalidInput) as error:
            log.warning("%s: cannot be read, devices of the last run are forgotten: %s", self._path, error)
            return ()
        return self._saved

    def save(self, devices: Sequence[Device]) -> bool:
        """Keep these; False if a restart will not remember them.

        Health changes too often to be worth a write, and is looked up anew anyway.
        """
        essence = tuple(device if device.leaving else replace(device, problem="") for device in devices)
        if essence == self._saved:
            return True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(essence))
        except OSError as error:
            if not self._complained:
                log.warning(
                    "%s: cannot be written, a restart will not remember devices: %s", self._path, error
                )
                self._complained = True
            return False
        self._saved, self._complained = essence, False
        return True
