"""What processes use, and when it is too much."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GROWTH: Final = 1.15  # of the memory after the warm-up
SLACK_KIB: Final = (
    8 * 1024
)  # what may come in addition: a process that has just started has not seen everything
FEWEST_SAMPLES: Final = 6
IDLE_PROCESSOR: Final = 0.25  # of one processor, while nothing happens
IDLE_REQUESTS: Final = 20.0  # in a second to the API server, without Leases, while nothing happens
MOST_LINES: Final = 40.0  # of log in a second, on average over the run

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Use:
    """What a process uses at some time."""

    memory_kib: int
    processor: float  # seconds since it began


def read_use(pid: int) -> Use | None:
    """What a process uses now; None where it has ended."""
    try:
        status = (Path("/proc") / str(pid) / "status").read_text()
        stat = (Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return None
    resident = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    ticks = stat.rpartition(") ")[2].split()
    return Use(int(resident[0]), (int(ticks[11]) + int(ticks[12])) / _TICKS) if resident else None


def growth(role: str, memory_kib: Sequence[int]) -> str:
    """What to say where a role's memory was not flat: the end is compared with what there was after the warm-up."""
    if len(memory_kib) < FEWEST_SAMPLES:
        return ""
    third = len(memory_kib) // 3
    early, late = max(memory_kib[:third]), statistics.median(memory_kib[-third:])
    if late <= early * GROWTH + SLACK_KIB:
        return ""
    return f"memory of the {role} grew from {early / 1024:.0f} to {late / 1024:.0f} MiB"


def too_busy(before: Mapping[str, Use], after: Mapping[str, Use], seconds: float) -> list[str]:
    """The processes that used too much of a processor while nothing happened."""
    shares = {
        name: (use.processor - before[name].processor) / seconds
        for name, use in after.items()
        if name in before
    }
    return [
        f"{name} used {share:.0%} of a processor while nothing happened"
        for name, share in shares.items()
        if share > IDLE_PROCESSOR
    ]


def too_many_requests(requests: float, seconds: float) -> list[str]:
    """What to say of requests to the API server while nothing happened."""
    if requests <= IDLE_REQUESTS * seconds:
        return []
    return [f"the API server got {requests:.0f} requests in {seconds:.0f} s while nothing happened"]


def complaints_about_log(log: Path, seconds: float) -> list[str]:
    """What a log says that no log should say."""
    text = log.read_bytes()
    lines = text.count(b"\n")
    complaints = (
        [f"{log.name} has {lines} lines after {seconds:.0f} s"] if lines > MOST_LINES * seconds else []
    )
    words = [word for word in ("Traceback", "Segmentation") if word.encode() in text]
    return [*complaints, *(f"{word} in {log.name}" for word in words)]
