"""Which fault comes next, and how a part of the run goes through its faults. What goes wrong is collected."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.client import HTTPException
from subprocess import SubprocessError
from typing import Final

from e2e.cluster.errors import ClusterError

#: How breaking and mending may fail.
BROKEN: Final = (ClusterError, OSError, HTTPException, SubprocessError)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks. It is broken while the context is open, and mended at the end."""

    name: str
    strike: Callable[[], AbstractContextManager[object]]
    least: float = 0.5  # seconds that it lasts
    most: float = 4.0


class Schedule:
    """Chooses faults. Each comes as often as the others, in an order that a seed fixes."""

    def __init__(self, names: Sequence[str], seed: int, tries: Counter[str]) -> None:
        """Choose among these names; `tries`: how often each was tried, also by other parts of the run."""
        self._names = tuple(names)
        self._chance = random.Random(seed)
        self._tries = tries

    def choose_fault(self) -> str:
        """A fault that was tried as seldom as any. It counts as tried from now on."""
        fewest = min(self._tries[name] for name in self._names)
        chosen = self._chance.choice([name for name in self._names if self._tries[name] == fewest])
        self._tries[chosen] += 1
        return chosen

    def rarest(self) -> int:
        """How often the fault was tried that was tried least."""
        return min(self._tries[name] for name in self._names)


@dataclass(slots=True)
class Report:
    """What was tried in the whole run, and what did not hold."""

    seed: int
    tries: Counter[str] = field(default_factory=Counter)
    parts: dict[str, set[str]] = field(default_factory=dict)  # by fault
    checks: Counter[str] = field(default_factory=Counter)  # how often each promise was looked at
    findings: list[str] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)

    def add(self, part: str, complaint: str) -> None:
        """Note what did not hold, and print it. The same complaint counts once."""
        finding = f"{part}: {complaint}"
        if finding not in self.findings:
            self.findings.append(finding)
            print(f"{self.seconds():7.1f} s  {part}: DID NOT HOLD: {complaint}", flush=True)

    def say(self, part: str, text: str) -> None:
        """Print what happens."""
        print(f"{self.seconds():7.1f} s  {part}: {text}", flush=True)

    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    def table(self) -> str:
        """How often each fault was tried and each promise was checked."""
        rows = [(name, str(tried), ", ".join(sorted(self.parts[name]))) for name, tried in self.tries.items()]
        lines = _columns([("fault", "times tried", "part"), *sorted(rows)])
        checks = [(name, str(number)) for name, number in self.checks.items()]
        return "\n".join([*lines, "", *_columns([("promise", "times checked"), *sorted(checks)])])


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


class Disturbance:
    """One part of the run: its faults, one after the other."""

    def __init__(self, part: str, faults: Sequence[Fault], report: Report, chance: random.Random) -> None:
        self._part = part
        self._faults = {fault.name: fault for fault in faults}
        self._report = report
        self._chance = chance
        self._schedule = Schedule(list(self._faults), report.seed, report.tries)
        for name in self._faults:
            report.parts.setdefault(name, set()).add(part)

    def run(self, minutes: float, least: int, calm: Callable[[], None] = lambda: None) -> None:
        """Go on for so many minutes, and until each fault was tried often enough, but never twice as long.

        `calm` is called after each round, when each fault was tried once more.
        """
        started, rounds = time.monotonic(), self._schedule.rarest()
        while (passed := time.monotonic() - started) < minutes * 60 or self._schedule.rarest() < least:
            if passed > minutes * 120:
                self._report.add(
                    self._part, f"a fault was tried {self._schedule.rarest()} times, not {least}"
                )
                return
            self._try_fault(self._faults[self._schedule.choose_fault()])
            if self._schedule.rarest() > rounds:
                rounds = self._schedule.rarest()
                calm()

    def _try_fault(self, fault: Fault) -> None:
        self._report.say(self._part, fault.name)
        try:
            with fault.strike():
                time.sleep(self._chance.uniform(fault.least, fault.most))
        except BROKEN as error:
            self._report.add(self._part, f"{fault.name!r} did not end: {error}")
        time.sleep(self._chance.uniform(0.3, 3.0))
