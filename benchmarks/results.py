"""What was measured: values by round, and ratios of them.

A value alone says little on a machine that is half as fast a minute later. Whatever is compared is measured in turns,
round by round, and compared within the round: a ratio has one value for each round, and its spread.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

TESSERA: Final = "Tessera"
USUAL: Final = "Go, usual"
PARTIAL: Final = "Go, partial"
NAIVE: Final = "Go, naive"
AIOHTTP: Final = "Python, aiohttp"
UVICORN: Final = "Python, uvicorn"


@dataclass(frozen=True, slots=True)
class Series:
    """One thing measured of one subject, once a round."""

    run: str  # the benchmark
    what: str  # the case: "4 KB, 64 connections"
    unit: str  # and the quantity: "requests/s"
    subject: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value to show."""
        return median(self.values)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one subject compares with another: the median of the rounds, and their extremes."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = 2 if self.median < 20 else 0
        if self.low == self.high:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


@dataclass(slots=True)
class Results:
    """Everything of one run of the tool."""

    machine: dict[str, str] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)
    curves: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)  # picture → line → points
    notes: list[str] = field(
        default_factory=list
    )  # what a reader must know, each with its benchmark in front
    measured: dict[str, str] = field(default_factory=dict)  # benchmark → when, and of which commit

    def add(self, run: str, what: str, unit: str, subject: str, values: Iterable[float]) -> None:
        """Keep the values of one series."""
        self.series.append(Series(run, what, unit, subject, tuple(values)))

    def add_all(self, run: str, what: str, found: Mapping[str, Mapping[str, Iterable[float]]]) -> None:
        """Keep what was measured in turns: subject → quantity → values by round."""
        for subject, quantities in found.items():
            for unit, values in quantities.items():
                self.add(run, what, unit, subject, values)

    def note(self, text: str) -> None:
        """Tell the reader, once."""
        if text not in self.notes:
            self.notes.append(text)

    def find(self, run: str, what: str, unit: str, subject: str) -> Series | None:
        """One series, if it was measured."""
        wanted = (run, what, unit, subject)
        return next((s for s in self.series if (s.run, s.what, s.unit, s.subject) == wanted), None)

    def ratio(self, run: str, what: str, unit: str, subject: str, to: str) -> Ratio | None:
        """One subject's values by another's, round by round."""
        values = self.rounds(run, what, unit, subject, to)
        return Ratio(median(values), min(values), max(values)) if values else None

    def rounds(self, run: str, what: str, unit: str, subject: str, to: str) -> list[float]:
        """One subject's values by another's, of each round."""
        one, other = self.find(run, what, unit, subject), self.find(run, what, unit, to)
        if one is None or other is None:
            return []
        return [a / b for a, b in zip(one.values, other.values, strict=False) if b]

    def runs(self) -> list[str]:
        """The benchmarks that were run, in their order."""
        return list(dict.fromkeys(one.run for one in self.series))

    def replace_runs(self, newer: "Results") -> None:
        """Take over what was measured anew, and keep the rest."""
        again = set(newer.runs())
        self.series = [one for one in self.series if one.run not in again] + newer.series
        self.curves |= newer.curves
        self.measured |= newer.measured
        self.machine = newer.machine
        self.notes = [one for one in self.notes if _run_of(one) not in again] + newer.notes

    def save(self, file: Path) -> None:
        """Write everything as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1, default=_rounded) + "\n")

    @classmethod
    def load(cls, file: Path) -> "Results":
        """Read what `save` wrote."""
        document: dict[str, Any] = json.loads(file.read_text())
        series = [Series(**{**one, "values": tuple(one["values"])}) for one in document.pop("series")]
        return cls(series=series, **document)


def _run_of(note: str) -> str:
    return note.partition(":")[0].partition(",")[0]


def _rounded(value: object) -> object:
    raise TypeError(f"{value!r} does not belong into results")


def in_turns(
    rounds: int, measures: Mapping[str, Callable[[], dict[str, float]]], *, warm: bool = False
) -> dict[str, dict[str, list[float]]]:
    """Measure several subjects in turns, each round in another order: subject → quantity → values by round."""
    found: dict[str, dict[str, list[float]]] = {subject: {} for subject in measures}
    subjects = list(measures)
    for number in range(-1 if warm else 0, rounds):
        for subject in subjects[number % len(subjects) :] + subjects[: number % len(subjects)]:
            for quantity, value in measures[subject]().items():
                if number >= 0:
                    found[subject].setdefault(quantity, []).append(value)
    return found
