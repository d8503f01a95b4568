"""The folder of CDI specs, shared with other vendors: ours are written whole, those of other vendors are never touched."""

import logging
from collections.abc import Iterable
from pathlib import Path

from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput
from tessera.kube.files import Signature, signature_of
from tessera.node.files import PREFIX, remove_leftovers, write_whole
from tessera.protocol import cdi

log = logging.getLogger(__name__)


class CdiDirectory:
    """Our specs in a folder that container runtimes read, `/var/run/cdi` as a rule."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[Path, Signature | None] = {}  # as we left them
        self._cleaned = False

    def write(self, devices: Iterable[Device]) -> None:
        """Make the folder say this and nothing else of ours; new specs come before stale ones go."""
        wanted = {self._path(kind): cdi.encode(document) for kind, document in cdi.documents(devices).items()}
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._cleaned:
            remove_leftovers(self._folder)
            self._cleaned = True
        for path, data in wanted.items():
            if not _holds(path, data):
                write_whole(path, data)
                log.info("CDI spec written: %s", path)
        for path in self._folder.glob(f"{PREFIX}*.json"):
            if path not in wanted:
                path.unlink(missing_ok=True)
                log.info("stale CDI spec removed: %s", path)
        self._written = {path: signature_of(path) for path in wanted}

    def published(self) -> frozenset[str]:
        """The names of the devices in our specs; a spec that cannot be read names none."""
        found: set[str] = set()
        for path in self._folder.glob(f"{PREFIX}*.json"):
            try:
                found.update(cdi.names(path.read_bytes()))
            except (OSError, InvalidInput) as error:
                log.warning("CDI spec %s cannot be read: %s", path, error)
        return frozenset(found)

    def intact(self) -> bool:
        """Whether the specs are as we left them; `/var/run` may be cleaned by any program."""
        return all(signature_of(path) == seen for path, seen in self._written.items())

    def _path(self, kind: str) -> Path:
        return self._folder / f"{PREFIX}{kind.replace('/', '_')}.json"


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False
