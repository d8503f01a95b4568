"""Processes that outlive the call that started them, and are never mistaken for others when they are stopped.

Each carries the cluster's folder and its own name in its environment. So the kernel keeps the list: a process is found
again even if the process that started it was killed before it could write anything down, and an id that the kernel has given
to another process since is never taken for one of ours.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from e2e.cluster.errors import ClusterError

_CLUSTER, _NAME = "TESSERA_E2E_PROCESS_OF", "TESSERA_E2E_PROCESS_NAME"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine: the start time tells it from a later one with the same id."""

    name: str
    pid: int
    started: int  # clock ticks since boot: field 22 of /proc/PID/stat

    def as_json(self) -> dict[str, object]:
        """The process as it is written to a file."""
        return asdict(self)

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return _stat(self.pid)[1] == self.started and _runs(self.pid)

    def signal(self, number: int) -> None:
        """Send a signal to it and to the group that it leads; one that has ended already needs none."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                (os.killpg if os.getpgid(self.pid) == self.pid else os.kill)(self.pid, number)

    def stop(self, *, grace: float = 10.0) -> None:
        """End it: politely, and after the grace period for certain."""
        for number, timeout in ((signal.SIGTERM, grace), (signal.SIGKILL, 60.0)):
            if timeout:
                deadline = time.monotonic() + timeout
                self.signal(number)
                if self._ends_before(deadline):
                    return
        raise ClusterError(f"{self.name} (process {self.pid}) does not end, not even by SIGKILL")

    def _ends_before(self, deadline: float) -> bool:
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # Asked with the pidfd open: from here on the id is no other process's. (A zombie's other threads may still be ending.)
            if _stat(self.pid)[1] == self.started:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    return False
        finally:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):  # it may be another process's child
            os.waitpid(self.pid, os.WNOHANG)
        # A wrapper such as nsenter ends before the program that it started.
        while _group_runs(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def this_process() -> Process:
    """The running process itself."""
    return Process("owner", os.getpid(), _stat(os.getpid())[1])


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path,
    log: Path,
    environment: Mapping[str, str],
    die_with_parent: bool,
) -> Process:
    """Start a process that belongs to the cluster in `folder`, leads a session, and appends to a log.

    With `die_with_parent` the kernel ends it when the calling thread ends, for whatever reason: call from the
    main thread.
    """
    if die_with_parent:
        command = ["setpriv", "--pdeathsig=KILL", "--", *command]
    with log.open("ab") as output:
        output.write(f"--- {' '.join(map(str, command))}\n".encode())
        output.flush()
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, _CLUSTER: str(folder), _NAME: name},
            start_new_session=True,
        )
    child.returncode = 0  # from here on a Process looks after it: Popen need not complain that it still runs
    return Process(name, child.pid, _stat(child.pid)[1])


def processes_of(folder: Path) -> list[Process]:
    """Every running process that belongs to the cluster in a folder."""
    return [process for pid in _pids() if (process := _member(pid, folder)) is not None]


def stop_all(find: Callable[[], Iterable[Process]]) -> None:
    """Kill processes, and those that they were just starting, until none is found any more."""
    while found := list(find()):
        for process in found:
            process.signal(signal.SIGKILL)
        for process in found:
            process.stop(grace=0)


def until(condition: Callable[[], T | None], *, timeout: float, what: str) -> T:
    """Ask again and again until the answer is neither None nor False; for what cannot be watched."""
    deadline = time.monotonic() + timeout
    pause = 0.01
    while True:
        answer = condition()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() >= deadline:
            raise ClusterError(f"not within {timeout:g} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _member(pid: int, folder: Path) -> Process | None:
    started = _stat(pid)[1]
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or belongs to another account
        return None
    variables = dict(entry.split(b"=", 1) for entry in content.split(b"\0") if b"=" in entry)
    if variables.get(_CLUSTER.encode()) != os.fsencode(folder):
        return None
    process = Process(variables.get(_NAME.encode(), b"?").decode(), pid, started)
    return process if process.alive else None


def _stat(pid: int) -> tuple[str, int]:
    """State letter and start time; ("X", 0) when there is no such process."""
    fields = _stat_fields(pid)
    return (fields[0], int(fields[19])) if fields else ("X", 0)


def _group_runs(group: int) -> bool:
    """Whether a process group has a member that runs: zombies are left to their parent, which may take its time."""
    return any(fields[2] == str(group) and _runs(pid) for pid in _pids() if (fields := _stat_fields(pid)))


def _runs(pid: int) -> bool:
    """Whether a process runs. One whose first thread has ended does until its last one has: it still holds its ports."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return _stat(pid)[0] not in {"Z", "X"} or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    return False


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third, the state, on; none when there is no such process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # The second field, the program's name in brackets, may hold anything, brackets and blanks included.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
