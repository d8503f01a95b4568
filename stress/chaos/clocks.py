"""A clock of a process that jumps while the process runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from e2e.cluster.programs import install_debian_packages
from e2e.cluster.versions import DebianPackage

HOUR: Final = 3600


class JumpingClock:
    """The wall clock as a process sees it. The clock that never goes back is left alone."""

    def __init__(self, file: Path) -> None:
        """`file`: where the offset is written, which the process reads again every second."""
        self._file = file
        self._set(0)

    @staticmethod
    def prepare() -> None:
        """Install the library that changes clocks."""
        install_debian_packages([DebianPackage("faketime", ("faketime",))], what="a wrong clock")

    @staticmethod
    def remove_leftovers() -> None:
        """Remove what the library kept in memory for processes that were killed."""
        for file in Path("/dev/shm").glob("*faketime_*"):  # noqa: S108 # where the library has it
            if not (Path("/proc") / file.name.rpartition("_")[2]).exists():
                file.unlink(missing_ok=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in its environment to see this clock."""
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    @contextmanager
    def jumped(self, seconds: int) -> Iterator[None]:
        """Inside the block, the clock is ahead by so many seconds, or behind."""
        self._set(seconds)
        try:
            yield
        finally:
            self._set(0)

    def _set(self, seconds: int) -> None:
        self._file.write_text(f"{seconds:+d}\n")
