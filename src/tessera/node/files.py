"""Files that are there whole or not at all."""

import contextlib
import logging
import os
import secrets
import time
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from tessera.core.errors import InvalidInput
from tessera.kube.clock import Once

log = logging.getLogger(__name__)

T = TypeVar("T")

# The names of everything this plugin leaves in folders that it shares with others
PREFIX: Final = "tessera-"
_TEMPORARY: Final = (f".{PREFIX}", ".tmp")  # neither .json nor .yaml: no container runtime reads it

# Seconds after which no process uses a temporary file any more, in a folder that two processes of ours write to
SHARED_LEFTOVERS_AGE: Final = 60.0


def write_whole(path: Path, data: bytes, mode: int = 0o644, *, lasting: bool = True) -> None:
    """Put a file in place: readers find the old one or the new one, even after a crash or a power cut.

    After a power cut it is the new one, unless `lasting` is false: then it may be the old one, or none, and one wait for the
    disk is saved.
    """
    before, after = _TEMPORARY
    temporary = path.parent / f"{before}{secrets.token_hex(8)}{after}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # a read-only file system refuses this too
            temporary.unlink()
        if isinstance(error, OSError):
            # named by the file that was wanted: the same failure has the same text each time
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if lasting:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def put(path: Path, data: bytes, mode: int = 0o644, *, lasting: bool = True) -> bool:
    """Have this in a file, in a folder that is made where need be; False: it was there already."""
    with contextlib.suppress(OSError):  # not there yet, or gone
        if path.read_bytes() == data:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, mode, lasting=lasting)
    return True


def remove_leftovers(folder: Path, older_than: float = 0.0, pattern: str = "*".join(_TEMPORARY)) -> None:
    """Remove what a killed process of ours was about to put in place.

    Where another process of ours may be writing, only what is so many seconds old that no write takes that long.
    """
    for path in folder.glob(pattern):
        try:
            if not older_than or path.stat().st_mtime < time.time() - older_than:
                path.unlink(missing_ok=True)
        except OSError:
            pass  # put in place meanwhile, or the file system is read-only


class Saved(Generic[T]):
    """A value in a file. One that cannot be read or written is logged, and is no reason to stop."""

    def __init__(self, path: Path, type_: Any, *, unreadable: str = "", unwritable: str = "") -> None:
        """`unreadable` and `unwritable` say what follows: a part of the line that is logged."""
        self.error = ""  # why the file could not be read
        self._path = path
        self._type = type_
        self._unreadable = unreadable
        self._unwritable = unwritable
        self._saved: T | None = None
        self._once = Once()

    def load(self) -> T | None:
        """What was saved last; None: no file, or none that can be read."""
        try:
            self._saved = msgspec.json.decode(self._path.read_bytes(), type=self._type)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, InvalidInput) as error:
            self.error = f"{self._path} cannot be read{self._unreadable}: {error}"
            log.error("%s", self.error)  # noqa: TRY400 # one line says it
        return self._saved

    def save(self, value: T) -> bool:
        """Keep this; False if a restart will not remember it, which is logged once for as long as it lasts."""
        if value == self._saved:
            return True
        try:
            put(self._path, msgspec.json.encode(value))
        except OSError as error:
            if self._once.begin(str(error)):
                log.warning("%s: cannot be written%s: %s", self._path, self._unwritable, error)
            return False
        self._saved = value
        self._once.end()
        return True
