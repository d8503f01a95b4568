"""A file in which a person marks devices as unhealthy, to see what happens.

    device_3: unhealthy            # a device by its id, or a card by its number (gpu-3, card 3)
    MIG-1c0f…: XID 79, fell off the bus
    device_4: healthy              # as if the line were not there

It is read every second; a device whose line is removed is healthy again.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput
from tessera.kube.files import WatchedFiles
from tessera.node.sources import Source
from tessera.protocol import yaml

log = logging.getLogger(__name__)

_CARD: Final = re.compile(r"(?:device|gpu|card)[-_ ]?(\d{1,4})", re.IGNORECASE | re.ASCII)
_MOST_BYTES: Final = 1024 * 1024


class FaultySource:
    """A source whose devices are as unhealthy as a file says; a file that cannot be read changes nothing."""

    def __init__(self, source: Source, path: Path) -> None:
        self._source = source
        self._path = path
        self._faults: dict[str, str] = {}
        self._watched = WatchedFiles(path)

    async def devices(self) -> Sequence[Device]:
        self._poll()
        return [
            device.unhealthy(problem) if device.healthy and (problem := self._problem(device)) else device
            for device in await self._source.devices()
        ]

    def _problem(self, device: Device) -> str:
        return self._faults.get(device.id) or (
            self._faults.get(f"card {device.place.card.index}", "") if device.place else ""
        )

    def _poll(self) -> None:
        if not self._watched.changed():
            return
        try:
            self._faults = _read(self._path)
            log.info("%s: %d devices or cards marked unhealthy", self._path, len(self._faults))
        except FileNotFoundError:
            self._faults = {}
        except (InvalidInput, OSError) as error:
            log.error("devices that were marked before stay marked: %s", error)  # noqa: TRY400 # one line says it


def _read(path: Path) -> dict[str, str]:
    """Device id or `card N` → what is wrong with it."""
    with path.open("rb") as file:
        document = yaml.load(file.read(_MOST_BYTES), str(path))
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidInput(f"{path}: expected a map such as device_3: unhealthy")
    faults = {}
    for name, state in document.items():
        if state is not None and not isinstance(state, str):
            raise InvalidInput(f"{path}: {name}: expected healthy, unhealthy or a reason in words")
        if state and state != "healthy":
            problem = f"marked unhealthy in {path}" if state == "unhealthy" else f"{state} (says {path})"
            card = _CARD.fullmatch(name)
            faults[name] = problem
            if card:
                faults[f"card {int(card[1])}"] = problem
    return faults
