"""Processes are found by whose they are, and stopped for certain."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.cluster.processes import Process, processes_of, start, stop_all, until

_STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]
#: Its first thread ends at once, and so looks like a zombie. The other one ends later.
_FIRST_THREAD_ENDS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


@pytest.fixture
def begin(tmp_path):
    """Start processes of one cluster; none is left at the end."""

    def started(name, command):
        return start(
            name,
            command,
            folder=tmp_path,
            log=tmp_path / f"{name}.log",
            environment={"PATH": "/usr/bin:/bin"},
            die_with_parent=True,
        )

    yield started
    stop_all(lambda: processes_of(tmp_path))


def test_a_process_is_found_by_its_folder(begin, tmp_path):
    """Any process finds it, by the folder alone; another folder's processes are not its own."""
    process = begin("sleeper", ["sleep", "100"])
    # Until it has become the program, it looks like its parent.
    assert until(lambda: processes_of(tmp_path) or None, timeout=10, what="it is found") == [process]
    assert processes_of(tmp_path / "other") == []


def test_a_stubborn_process_is_killed(begin, tmp_path):
    """One that ignores SIGTERM goes after the grace period, with its children."""
    process = begin("stubborn", _STUBBORN)
    log = tmp_path / "stubborn.log"
    until(lambda: log.read_text().endswith("ready\n"), timeout=10, what="it ignores SIGTERM")
    process.stop(grace=0.1)
    assert not process.alive
    assert processes_of(tmp_path) == []


def test_a_reused_id_is_left_alone():
    """A process of the same id that started at another time is another process."""
    with subprocess.Popen(["sleep", "100"]) as bystander:
        imposter = Process("imposter", bystander.pid, started=1)
        assert not imposter.alive
        imposter.signal(signal.SIGKILL)
        imposter.stop(grace=0)
        assert bystander.poll() is None
        bystander.kill()


def test_what_has_ended_is_stopped_already(begin):
    """To stop what has ended does nothing."""
    process = begin("short", ["true"])
    process.stop()
    process.stop()
    assert not process.alive
    with pytest.raises(ChildProcessError):  # and it was reaped
        os.waitpid(process.pid, os.WNOHANG)


def test_a_process_runs_until_its_last_thread_has_ended(begin, tmp_path):
    """A zombie with other threads still holds its ports, and one that is killed may be one for a while."""
    process = begin("threads", [sys.executable, "-c", _FIRST_THREAD_ENDS])
    until(lambda: " Z " in _stat(process), timeout=10, what="its first thread has ended")
    assert process.alive
    assert not process._ends_before(0)
    process.stop()
    assert not process.alive


def _stat(process):
    return Path(f"/proc/{process.pid}/stat").read_text()
