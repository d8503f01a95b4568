"""Processes of the benchmarks: built, kept on a core, looked at."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent
FOLDER: Final = ROOT.parent / "out" / "bench"
PROGRAMS: Final = FOLDER / "bin"

# One core for the server under test, another for the load: with a single one both shares are noise.
_CORES: Final = sorted(os.sched_getaffinity(0))
SERVER_CORE: Final = _CORES[0]
LOAD_CORE: Final = _CORES[-1]


class Unavailable(Exception):
    """Something that a benchmark needs is not there; the message says what."""


def on_core(core: int, command: Iterable[str | Path]) -> list[str]:
    """The command, kept on one core."""
    return ["taskset", "--cpu-list", str(core), *map(str, command)]


def build_programs() -> None:
    """Build the Go programs; quick when nothing has changed."""
    if shutil.which("go") is None:
        raise Unavailable("the peers are written in Go, and there is no go in the PATH")
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", f"{PROGRAMS}/", "./cmd/..."]
    done = subprocess.run(command, cwd=ROOT / "peers", capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"the peers cannot be built: {done.stderr.strip()[-2000:]}")


class Running:
    """A process, and what it takes of the machine."""

    def __init__(self, command: list[str]) -> None:
        """Start it; logs go where they are not read, but they are written."""
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise Unavailable(f"{self._process.args!r} has ended")
        return line

    def check(self) -> None:
        """Raise when it has ended."""
        if self._process.poll() is not None:
            raise Unavailable(f"{self._process.args!r} has ended with {self._process.returncode}")

    def memory(self, field: str = "VmRSS") -> float:
        """Its resident size in MiB: `VmRSS` now, `VmHWM` at its peak."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
        raise Unavailable("no such process")

    def cpu_seconds(self) -> float:
        """The processor time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
