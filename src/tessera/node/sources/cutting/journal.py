"""What a card was before a cut that has not ended: on disk before the first change, so that a start after a kill can put it back.

After a start of the machine cards have no instances: a record of an earlier boot is void.
"""

import fcntl
import logging
from pathlib import Path
from typing import IO, Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.mig.cutting import Cut
from tessera.core.mig.placement import Instance
from tessera.core.mig.profile import MigProfile
from tessera.node.files import write_whole

log = logging.getLogger(__name__)

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _Record(msgspec.Struct, frozen=True):
    boot: str
    mig: bool
    instances: list[tuple[str, int, int]]  # profile, position, size


class Journal:
    """One file for each card that is being cut."""

    def __init__(self, folder: Path, boot_id: Path = BOOT_ID) -> None:
        self._folder = folder
        self._boot = boot_id.read_text().strip()

    def new_boot(self) -> bool:
        """Whether the machine has started since this was asked last, or that is not known; records of earlier boots go."""
        marker = self._folder / "boot"
        try:
            if marker.read_text() == self._boot:
                return False
        except OSError:
            pass
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._folder.glob("*.json"):
                path.unlink(missing_ok=True)
            write_whole(marker, self._boot.encode())
        except OSError as error:
            log.warning("the state folder cannot be written, so no card will be cut: %s", error)
        return True

    def before(self, card: str) -> Cut | None:
        """What the card was before a cut that has not ended; None: there is none."""
        try:
            record = msgspec.json.decode(self._path(card).read_bytes(), type=_Record)
            instances = [Instance(MigProfile.parse(name), at, size) for name, at, size in record.instances]
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, InvalidInput) as error:
            log.warning("%s cannot be read, its card is re-cut: %s", self._path(card), error)
            return None
        return Cut(tuple(instances), record.mig) if record.boot == self._boot else None

    def begin(self, card: str, before: Cut) -> None:
        """The card is about to be changed; raises `OSError` if that cannot be kept: then nothing may be changed."""
        instances = [(str(one.profile), one.position, one.size) for one in before.instances]
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(card), msgspec.json.encode(_Record(self._boot, before.mig, instances)))

    def end(self, card: str) -> None:
        """The card is as it was wanted, or as it was before."""
        self._path(card).unlink(missing_ok=True)

    def _path(self, card: str) -> Path:
        return self._folder / f"{card}.json"


class Lock:
    """Never two processes that cut the cards of one node; it ends with its process at the latest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def objection(self) -> str:
        """Why it is not ours; empty: it is, taken now if it was free."""
        if self._file is not None:
            return ""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = self._path.open("wb")
        except OSError as error:
            return f"{self._path} cannot be written, and without it no card is cut: {error.strerror}"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return "another process of Tessera cuts the cards of this node"
        self._file = file
        return ""

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
