"""Files that are followed while the server runs: read again when they change, and used only when they are good.

Reading and parsing happen in a thread.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from tessera.core.errors import InvalidInput, InvalidInputs, TesseraError, of_system
from tessera.kube.files import WatchedFiles

T = TypeVar("T")

_INTERVAL_SECONDS: Final = 2.0  # the kubelet itself takes about a minute to bring a change to the files


class Followed(Generic[T]):
    """One thing that is read from one or more files: the last good value stays in use until there is a new one."""

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        parse: Callable[..., T],  # takes the files' contents, one argument each
        use: Callable[[T], None],
        report: Callable[[str, str | None], None],  # what happened, and the error if it is one
    ) -> None:
        self.good = 0  # attempts, for metrics
        self.bad = 0
        self.last_good = 0.0  # Unix time
        self.current = True  # what is in use is what is in the files
        self._what = what
        self._files = WatchedFiles(*paths)
        self._parse = parse
        self._use = use
        self._report = report

    def load(self) -> T:
        """Read for the first time; here an error is the caller's, since there is no last good value yet."""
        value = self._read_changed()
        assert value is not None  # noqa: S101 # the first read always finds a change
        self._accept(value)
        return value

    async def follow(self, interval: float = _INTERVAL_SECONDS) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.check()

    async def check(self) -> None:
        """Read what has changed: use what is new and good, keep the last good value otherwise."""
        try:
            value = await asyncio.to_thread(self._read_changed)
            if value is not None:
                self._accept(value)
                self._report(f"{self._what} reloaded", None)
        except TesseraError as error:
            self.bad += 1
            self.current = False
            self._report(f"{self._what} not reloaded, the last good one stays in use", str(error))

    def _accept(self, value: T) -> None:
        self._use(value)
        self.good += 1
        self.last_good = time.time()
        self.current = True

    def _read_changed(self) -> T | None:
        """The new value if the files have changed since the last read. An error is raised once per change."""
        if not self._files.changed():
            return None
        contents = []
        for path in self._files.paths:
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise InvalidInput(f"{path}: {of_system(error)}") from error
        try:
            return self._parse(*contents)
        except InvalidInput as error:
            where = ", ".join(map(str, self._files.paths))
            raise InvalidInputs(f"{where}: {one}" for one in error.errors) from error
