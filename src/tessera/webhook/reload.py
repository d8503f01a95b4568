"""Files that are followed while the server runs: read again when they change, and used only when they are good.

Looking is polling: a mounted ConfigMap or Secret changes by a symbolic link two folders up being swapped, an editor
replaces the file, a person writes into it; a look at what the path leads to now notices all of these. Reading and
parsing happen in a thread.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from tessera.core.errors import InvalidInput, InvalidInputs, TesseraError

T = TypeVar("T")

_INTERVAL_SECONDS: Final = 2.0  # the kubelet itself takes about a minute to bring a change to the files


@dataclass(slots=True)
class Reloads:
    """What became of the attempts, for whoever shows metrics."""

    good: int = 0
    bad: int = 0
    last_good: float = 0.0  # Unix time
    current: bool = True  # what is in use is what is in the files


class Followed(Generic[T]):
    """One thing that is read from one or more files, and its last good value's successor."""

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        parse: Callable[..., T],  # takes the files' contents, one argument each
        use: Callable[[T], None],
        report: Callable[[str, str | None], None],  # what happened, and the error if it is one
    ) -> None:
        self.reloads = Reloads()
        self._what = what
        self._paths = tuple(paths)
        self._parse = parse
        self._use = use
        self._report = report
        self._seen: object = None

    def load(self) -> T:
        """Read for the first time; here an error is the caller's, since there is no last good value yet."""
        value = self._look()
        if value is None:
            raise RuntimeError("loaded twice")
        self._accept(value)
        return value

    async def follow(self, interval: float = _INTERVAL_SECONDS) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(interval)
            await self.check()

    async def check(self) -> None:
        """Look once: use what is new and good, keep the last good value otherwise."""
        try:
            value = await asyncio.to_thread(self._look)
            if value is not None:
                self._accept(value)
                self._report(f"{self._what} reloaded", None)
        except TesseraError as error:
            self.reloads.bad += 1
            self.reloads.current = False
            self._report(f"{self._what} not reloaded, the last good one stays in use", str(error))

    def _accept(self, value: T) -> None:
        self._use(value)
        self.reloads.good += 1
        self.reloads.last_good = time.time()
        self.reloads.current = True

    def _look(self) -> T | None:
        """The new value if the files have changed since the last look. An error is told once per change."""
        seen = tuple(_state(path) for path in self._paths)
        if seen == self._seen:
            return None
        self._seen = seen  # as it was before reading: a change while reading is a change at the next look
        contents = []
        for path in self._paths:
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise InvalidInput(f"{path}: {error.strerror or error}") from error
        try:
            return self._parse(*contents)
        except InvalidInput as error:
            where = ", ".join(map(str, self._paths))
            complaints = error.complaints if isinstance(error, InvalidInputs) else (str(error),)
            raise InvalidInputs(f"{where}: {one}" for one in complaints) from error


def _state(path: Path) -> object:
    """What changes when the file does, links followed."""
    try:
        stat = path.stat()
    except OSError as error:
        return error.errno
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
