"""What the webhook counts, and how Prometheus reads it.

The hot path adds to plain integers; names, labels and text exist only while somebody scrapes. The text format is
written here in a few lines: importing a client library for it would cost a tenth of the memory that the whole
webhook may use.
"""

import enum
import math
import os
import platform
import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tessera.core.admission.decision import REJECTIONS
from tessera.webhook.http.messages import Answer, Route

Number = int | float
Labels = Mapping[str, str]
CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

# 50 µs, where admissions are, to 1 s, where something is very wrong
_BOUNDS: Final = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0)
_BOUNDS_NS: Final = [round(bound * 1e9) for bound in _BOUNDS]
_MOST_SERIES: Final = 200  # of one metric; label values come from pods, and a scrape must stay small


class Outcome(enum.IntEnum):
    """How one admission ended."""

    UNCHANGED = 0
    PATCHED = 1
    REJECTED = 2
    INVALID = 3  # not a review that could be answered: 400
    ERROR = 4  # an exception in the decision, or no complete view: the configured verdict


@dataclass(frozen=True, slots=True)
class Family:
    """One metric at the moment of a scrape."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Iterable[tuple[str, Labels, Number]]  # suffix, labels, value

    def lines(self) -> Iterable[str]:
        """The metric in the text format."""
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"
        for suffix, labels, value in self.samples:
            inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield (
                f"{self.name}{suffix}{{{inside}}} {_number(value)}\n"
                if inside
                else (f"{self.name}{suffix} {_number(value)}\n")
            )


def counter(name: str, text: str, value: Number) -> Family:
    """A counter without labels."""
    return Family(name, "counter", text, [("", {}, value)])


def gauge(name: str, text: str, value: Number) -> Family:
    """A gauge without labels."""
    return Family(name, "gauge", text, [("", {}, value)])


class Counts:
    """A counter with labels whose values come from outside: past a number of series, everything else is "other".

    Values that are known beforehand are shown from the beginning, as 0: Prometheus sees no increase in a series that
    begins with 1.
    """

    __slots__ = ("_values", "labels")

    def __init__(self, *labels: str, known: Iterable[tuple[str, ...]] = ()) -> None:
        self.labels = labels
        self._values: dict[tuple[str, ...], int] = dict.fromkeys(known, 0)

    def add(self, *values: str) -> None:
        """One more of these."""
        known = self._values
        if values not in known and len(known) >= _MOST_SERIES:
            values = ("other",) * len(self.labels)
        known[values] = known.get(values, 0) + 1

    def family(self, name: str, text: str) -> Family:
        """The metric."""
        return Family(
            name,
            "counter",
            text,
            [("", dict(zip(self.labels, k, strict=True)), v) for k, v in self._values.items()],
        )


class Metrics:
    """The counters of admission, and a list of whoever else has something to show."""

    def __init__(self, version: str) -> None:
        self.fallbacks = Counts("from", "to")
        self.rejections = Counts("reason", known=((code,) for code in REJECTIONS))
        self.injected = 0
        self._version = version
        self._outcomes = [0] * len(Outcome)
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._nanoseconds = 0
        self._sources: list[Callable[[], Iterable[Family]]] = [self._own, _process]

    def add_source(self, source: Callable[[], Iterable[Family]]) -> None:
        """Have this called for its metrics at every scrape."""
        self._sources.append(source)

    def count(self, outcome: Outcome, nanoseconds: int) -> None:
        """One admission, and how long it took. The hot path."""
        self._outcomes[outcome] += 1
        self._buckets[bisect_left(_BOUNDS_NS, nanoseconds)] += 1
        self._nanoseconds += nanoseconds

    def text(self) -> bytes:
        """Everything, in the text format."""
        return "".join(
            line for source in self._sources for family in source() for line in family.lines()
        ).encode()

    def route(self) -> Route:
        """`GET /metrics`."""
        return Route(lambda _: Answer(200, self.text(), CONTENT_TYPE))

    def _own(self) -> Iterable[Family]:
        yield Family(
            "gpu_webhook_requests_total",
            "counter",
            "Admission reviews by outcome.",
            [("", {"outcome": one.name.lower()}, self._outcomes[one]) for one in Outcome],
        )
        yield Family(
            "gpu_webhook_request_duration_seconds",
            "histogram",
            "Time from a whole review to its answer, inside the webhook.",
            self._histogram(),
        )
        yield self.fallbacks.family(
            "gpu_webhook_fallback_total", "GPU requests rewritten, by profile asked and given."
        )
        yield self.rejections.family("gpu_webhook_rejections_total", "Pods rejected, by reason.")
        yield counter(
            "gpu_webhook_injected_pods_total", "Pods that were given resources for their GPUs.", self.injected
        )
        yield Family(
            "gpu_webhook_build_info",
            "gauge",
            "Always 1; the labels say what is running.",
            [("", {"version": self._version, "python": platform.python_version()}, 1)],
        )

    def _histogram(self) -> Iterable[tuple[str, Labels, Number]]:
        total = 0
        for bound, count in zip((*map(repr, _BOUNDS), "+Inf"), self._buckets, strict=True):
            total += count
            yield "_bucket", {"le": bound}, total
        yield "_sum", {}, self._nanoseconds / 1e9
        yield "_count", {}, total


def _process() -> Iterable[Family]:
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
