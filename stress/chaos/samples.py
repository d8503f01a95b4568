"""What processes use, and when it is too much."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

GROWTH: Final = 1.15  # of the memory after the warm-up
SLACK_MIB: Final = 8.0  # in addition: a process that has just started has not seen everything
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


class MemorySpan(NamedTuple):
    """The memory of a role after the warm-up, and at the end."""

    early_mib: float
    late_mib: float

    def __str__(self) -> str:
        return f"{self.early_mib:.0f} MiB, {self.late_mib:.0f} MiB at the end"

    @property
    def has_grown(self) -> bool:
        return self.late_mib > self.early_mib * GROWTH + SLACK_MIB


def memory_span(memory_kib: Sequence[int]) -> MemorySpan | None:
    """What samples in the order of time say of memory; None where they are too few."""
    if len(memory_kib) < FEWEST_SAMPLES:
        return None
    third = len(memory_kib) // 3
    early, late = max(memory_kib[:third]), statistics.median(memory_kib[-third:])
    return MemorySpan(early / 1024, late / 1024)


def complaints_about_memory(role: str, memory_kib: Sequence[int]) -> list[str]:
    """What to say where a role's memory was not flat."""
    span = memory_span(memory_kib)
    if span is None or not span.has_grown:
        return []
    return [f"memory of the {role} grew from {span.early_mib:.0f} to {span.late_mib:.0f} MiB"]


def processor_shares(before: Mapping[str, Use], after: Mapping[str, Use], seconds: float) -> dict[str, float]:
    """The part of a processor that each process used meanwhile. One that came meanwhile has none."""
    return {
        name: (use.processor - before[name].processor) / seconds
        for name, use in after.items()
        if name in before
    }


def complaints_about_idle(shares: Mapping[str, float], requests: float = 0.0) -> list[str]:
    """What to say of processes, and of requests to the API server in a second, while nothing happened."""
    complaints = [
        f"{name} used {share:.0%} of a processor while nothing happened"
        for name, share in shares.items()
        if share > IDLE_PROCESSOR
    ]
    if requests > IDLE_REQUESTS:
        complaints.append(f"the API server got {requests:.0f} requests a second while nothing happened")
    return complaints


def complaints_about_log(log: Path, seconds: float) -> list[str]:
    """What a log says that no log should say."""
    text = log.read_bytes()
    lines = text.count(b"\n")
    complaints = (
        [f"{log.name} has {lines} lines after {seconds:.0f} s"] if lines > MOST_LINES * seconds else []
    )
    words = [word for word in ("Traceback", "Segmentation") if word.encode() in text]
    return [*complaints, *(f"{word} in {log.name}" for word in words)]
