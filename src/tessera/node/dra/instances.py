"""Which process of the driver speaks for the node: during an update two run, and the newest that lives publishes.

Every process holds a lock on a file of its own, named after the time it began; a lock that is free belonged to a process
that has ended.
"""

import fcntl
import secrets
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tessera.core.errors import TesseraError
from tessera.node.files import SHARED_LEFTOVERS_AGE, remove_leftovers

_HIDDEN: Final = ".new"  # a file that is not locked yet


class Instance:
    """This process among those of the driver on this node."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(4)
        self._folder = folder
        self._path = folder / f"{time.time_ns():020}-{self.token}"
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        hidden = self._folder / f".{self._path.name}{_HIDDEN}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._folder, SHARED_LEFTOVERS_AGE, f".*{_HIDDEN}")
            self._file = hidden.open("wb")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            hidden.rename(self._path)  # seen by others only now that it is locked
        except OSError as error:
            raise TesseraError(
                f"{self._folder}: the DRA driver cannot write there, so it does not start: {error.strerror or error}"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        if self._file:
            self._file.close()

    def leads(self) -> bool:
        """Whether no newer process lives; files of processes that have ended are removed on the way."""
        others = [path for path in self._folder.glob("[0-9]*") if path != self._path]
        living = [path.name for path in others if _lives(path)]
        return not any(name > self._path.name for name in living)


def _lives(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # on a disk that became read-only it stays
                path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
