"""What Prometheus reads: metrics in the text format, and those that every process has.

Counting adds to plain integers; names, labels and text exist only during a scrape. The text format is a few lines:
importing a client library for it costs 2.6 MiB of memory and some 30 ms (Python 3.11, prometheus-client 0.26).
"""

import math
import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal, TypeVar

Number = int | float
K = TypeVar("K", bound=tuple[str, ...])
Labels = Mapping[str, str]
Kind = Literal["counter", "gauge", "histogram"]
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MOST_SERIES: Final = 200  # of one metric; label values come from pods, and a scrape must stay small


@dataclass(frozen=True, slots=True)
class Family:
    """One metric at the moment of a scrape."""

    name: str
    kind: Kind
    help: str
    samples: Iterable[tuple[str, Labels, Number]]  # suffix, labels, value

    def lines(self) -> Iterable[str]:
        """The metric in the text format."""
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"
        for suffix, labels, value in self.samples:
            inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            braces = f"{{{inside}}}" if inside else ""
            yield f"{self.name}{suffix}{braces} {_number(value)}\n"


def counter(name: str, text: str, value: Number) -> Family:
    return Family(name, "counter", text, [("", {}, value)])


def gauge(name: str, text: str, value: Number) -> Family:
    return Family(name, "gauge", text, [("", {}, value)])


def labelled(name: str, kind: Kind, text: str, labels: Iterable[str], values: Mapping[K, Number]) -> Family:
    """A metric with a value for each combination of labels."""
    names = tuple(labels)
    return Family(
        name, kind, text, [("", dict(zip(names, key, strict=True)), value) for key, value in values.items()]
    )


def histogram(name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Family:
    """A histogram: how many values were at most each bound but more than the one before, the last of any size; their sum."""
    most = (*map(repr, bounds), "+Inf")
    buckets = [("_bucket", {"le": one}, n) for one, n in zip(most, accumulate(counts), strict=True)]
    return Family(name, "histogram", text, [*buckets, ("_sum", {}, total), ("_count", {}, sum(counts))])


class Counts:
    """A counter with labels whose values come from outside: past a number of series, everything else is "other".

    Values that are known beforehand are shown from the beginning, as 0: Prometheus sees no increase in a series that
    begins with 1.
    """

    def __init__(self, *labels: str, known: Iterable[tuple[str, ...]] = ()) -> None:
        self.labels = labels
        self._values: dict[tuple[str, ...], int] = dict.fromkeys(known, 0)

    def add(self, *values: str) -> None:
        known = self._values
        if values not in known and len(known) >= _MOST_SERIES:
            values = ("other",) * len(self.labels)
        known[values] = known.get(values, 0) + 1

    def samples(self) -> Iterable[tuple[Labels, int]]:
        return [(dict(zip(self.labels, key, strict=True)), value) for key, value in self._values.items()]

    def family(self, name: str, text: str) -> Family:
        return labelled(name, "counter", text, self.labels, self._values)


def exposition(families: Iterable[Family]) -> bytes:
    """Metrics in the text format."""
    return "".join(line for family in families for line in family.lines()).encode()


def process_metrics() -> Iterable[Family]:
    """The metrics that every process shows under the same names."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    pages, resident = Path("/proc/self/statm").read_text().split()[:2]
    page = resource.getpagesize()
    yield counter("process_cpu_seconds_total", "CPU time spent.", usage.ru_utime + usage.ru_stime)
    yield gauge("process_resident_memory_bytes", "Resident memory size.", int(resident) * page)
    yield gauge("process_virtual_memory_bytes", "Virtual memory size.", int(pages) * page)
    yield gauge("process_start_time_seconds", "When the process started, Unix time.", _started())
    yield gauge("process_open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd")))  # noqa: PTH208
    yield gauge("process_max_fds", "Most file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _started() -> float:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: Number) -> str:
    if isinstance(value, int):
        return str(int(value))
    return repr(value) if math.isfinite(value) else ("NaN" if math.isnan(value) else f"{'+-'[value < 0]}Inf")
