"""A control group with a memory limit, as the kubelet makes one for a container: of version 2 or 1, as the machine has it."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster import cgroups

_ROOT: Final = Path("/sys/fs/cgroup")
_numbers: Final = itertools.count()
# Version 1 counts the buffers of connections apart from all else, and only where they have a limit of their own.
_BUFFERS: Final = "memory.kmem.tcp.max_usage_in_bytes"


@dataclass(frozen=True, slots=True)
class Group:
    """What joins it may take so much memory, all together, and no swap."""

    folder: Path
    peaks: Sequence[str]  # the files that say how much it was at the most
    events: str  # the file that says how many were killed

    def command(self, *words: str) -> list[str]:
        """A command that joins the group before it is anything else."""
        return ["/bin/sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh", *words]

    @property
    def peak_mib(self) -> float:
        """The most that it has taken, the buffers of its connections included."""
        return sum(int((self.folder / name).read_text()) for name in self.peaks) / 2**20

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for want of memory."""
        lines = (self.folder / self.events).read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])


@contextlib.contextmanager
def limited(mib: int) -> Iterator[Group]:
    """A fresh group, for processes that end before this does. Only root can make one."""
    name, most = f"tessera-limited-{os.getpid()}-{next(_numbers)}", str(mib * 2**20)
    cgroups.create(name)
    try:
        if (_ROOT / "cgroup.controllers").exists():
            group = Group(_ROOT / name, ["memory.peak"], "memory.events")
            _write(group.folder, {"memory.max": most, "memory.swap.max": "0"})
        else:
            peaks = ["memory.max_usage_in_bytes", _BUFFERS]
            group = Group(_ROOT / "memory" / name, peaks, "memory.oom_control")
            kinds = ("", ".memsw", ".kmem.tcp")  # in this order: with swap it may not be less than without
            _write(group.folder, {f"memory{kind}.limit_in_bytes": most for kind in kinds})
        yield group
    finally:
        cgroups.remove(name)


def _write(folder: Path, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        (folder / name).write_text(value)
