"""What we aim for, and what `make bench-check` guards: all of it in these two tables."""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

from benchmarks import (
    autopilot,
    cards,
    controller,
    decision,
    dra,
    free,
    full,
    https,
    instructions,
    planning,
    startup,
    storm,
    view,
)
from benchmarks.results import PARTIAL, TESSERA, USUAL, Ratio, Results


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity of one subject, by another's (empty: as it is)."""

    run: str
    what: str
    unit: str
    subject: str
    to: str = ""

    def of(self, results: Results) -> Ratio | None:
        """Its value in some results."""
        if self.to:
            return results.ratio(self.run, self.what, self.unit, self.subject, self.to)
        found = results.find(self.run, self.what, self.unit, self.subject)
        return Ratio(found.median, min(found.values), max(found.values)) if found else None

    def __str__(self) -> str:
        beside = f" : {self.to}" if self.to else ""
        return f"{self.run}, {self.what}, {self.unit}, {self.subject}{beside}"


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on it."""

    text: str
    measure: Measure
    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    @property
    def bound(self) -> str:
        """The bound as a reader wants it."""
        return f"≥ {self.at_least:.3g}" if self.at_least is not None else f"≤ {self.at_most:.3g}"


def _https(connections: int, unit: str, to: str, size: str = "4 KB") -> Measure:
    return Measure(https.RUN, https.case(size, connections), unit, TESSERA, to)


def _decision(subject: str) -> Measure:
    return Measure(decision.RUN, "4 KB", decision.UNIT, subject, decision.JSON)


def _worst(group: str, load: float, unit: str, subject: str = autopilot.OURS) -> Measure:
    return Measure(autopilot.RUN, autopilot.worst(group, load), unit, subject)


HAND_MADE: Final = 2.5  # times its throughput

AIMS: Final = (
    Aim("a 4 KB decision, by the standard library's decode of the same bytes", _decision(decision.LATER), at_most=1),
    Aim("the same for a template's first pod", _decision(decision.FIRST), at_most=1),
    Aim("throughput per core, 4 KB, 64 connections, by the usual Go webhook's", _https(64, https.THROUGHPUT, USUAL), at_least=5),
    Aim("the same at 8 connections", _https(8, https.THROUGHPUT, USUAL), at_least=5),
    Aim("the same at 64 connections with 40 KB", _https(64, https.THROUGHPUT, USUAL, "40 KB"), at_least=5),
    Aim("throughput per core, 4 KB, 64 connections, by the hand-made Go webhook's", _https(64, https.THROUGHPUT, PARTIAL), at_least=HAND_MADE),
    Aim("p99, 4 KB, 64 connections, by the usual's", _https(64, https.P99, USUAL), at_most=1),
    Aim("the same at 8 connections", _https(8, https.P99, USUAL), at_most=1),
    Aim("p99, 4 KB, 64 connections, by the hand-made's", _https(64, https.P99, PARTIAL), at_most=1),
    Aim("the same at 8 connections", _https(8, https.P99, PARTIAL), at_most=1),
    Aim("memory at most, whole webhook, 5,000 nodes, by the usual's", Measure(view.RUN, view.WEBHOOK, view.PEAK, TESSERA, USUAL), at_most=1 / 3),
    Aim("memory for the view alone, 5,000 nodes, by the usual's", Measure(view.RUN, view.WEBHOOK, view.OWN, TESSERA, USUAL), at_most=1 / 3),
    Aim("memory at most, nodes and 20,000 pods, by a Go informer's", Measure(view.RUN, view.with_pods(20_000), view.PEAK, TESSERA, USUAL), at_most=1 / 3),
    Aim("memory at most, whole webhook, 5,000 nodes, MiB", Measure(view.RUN, view.WEBHOOK, view.PEAK, TESSERA), at_most=50),
    Aim("from the start until ready, 5,000 nodes, seconds", Measure(view.RUN, view.WEBHOOK, view.SECONDS, TESSERA), at_most=2),
    Aim("p99 in a watch storm, by quiet, under full load", Measure(storm.RUN, storm.BUSY, storm.P99, storm.stormy(TESSERA), storm.quiet(TESSERA)), at_most=2),
    Aim("the same at 500 requests a second", Measure(storm.RUN, storm.CALM, storm.P99, storm.stormy(TESSERA), storm.quiet(TESSERA)), at_most=2),
    Aim("memory at most, all of 100,000 pods followed, MiB", Measure(free.RUN, free.held(), free.PEAK, TESSERA), at_most=180),
    Aim("processor time from the start until ready, the same, seconds", Measure(free.RUN, free.held(), free.SPENT, TESSERA), at_most=8),
    Aim("2,000 pod events a second, percent of a core", Measure(free.RUN, free.stormy(), free.CPU, TESSERA), at_most=25),
    Aim("a decision by what is free, by one by what is offered, nothing remembered, in the worst corpus", Measure(full.RUN, full.WORST, full.RATIO, TESSERA), at_most=full.MOST),
    Aim("the longest event while 10,000 pods wait, with a look at what is free, ms", Measure(free.RUN, free.held(free.WAITING), free.WORST, TESSERA), at_most=20),
    Aim("watches that the controller has open, all reconcilers, mode Auto", Measure(controller.RUN, controller.case(), controller.OPEN, TESSERA), at_most=11),
    Aim("one look of the autopilot at 4,000 nodes, 1,000 re-cuts an hour, s of processor time", Measure(controller.RUN, controller.case(), controller.LOOK, TESSERA), at_most=3),
    Aim("`tessera mig plan`, 40,000 cards, 60,000 pods, seconds", Measure(planning.RUN, planning.COMMAND, planning.SECONDS, TESSERA), at_most=5),
    Aim("the same, MiB", Measure(planning.RUN, planning.COMMAND, planning.PEAK, TESSERA), at_most=300),
    Aim("a look at 8 real cards with 56 slices, ms", Measure(cards.RUN, cards.LOOK, cards.MS, TESSERA), at_most=5),
    Aim("8 real cards cut into 56 slices, seconds more than NVML's own", Measure(cards.RUN, cards.RECUT, cards.MORE, TESSERA), at_most=0.5),
    Aim("the same without the wait before slices are removed", Measure(cards.RUN, cards.RECUT, cards.MORE, cards.NO_WAIT), at_most=0.5),
    Aim("a device plugin that cuts real cards, MiB more than one that reads them", Measure(cards.RUN, cards.PLUGIN, cards.GROWTH, cards.CUT), at_most=2),
    Aim("preparing a claim, median, ms", Measure(dra.RUN, dra.ONE_BY_ONE, dra.MEDIAN, dra.PREPARE), at_most=20),
    Aim("the same, p99", Measure(dra.RUN, dra.ONE_BY_ONE, dra.P99, dra.PREPARE), at_most=20),
    Aim("ending a claim, p99, ms", Measure(dra.RUN, dra.ONE_BY_ONE, dra.P99, dra.UNPREPARE), at_most=20),
    Aim("the DRA driver's resident size after that, MiB", Measure(dra.RUN, dra.AFTER, dra.RESIDENT, dra.DRIVEN), at_most=60),
    Aim("`tessera --help`, ms", Measure(startup.RUN, startup.COMMAND, startup.UNIT, TESSERA), at_most=150),
    Aim("layouts that follow demand, swinging mix, load 0.6: waiting by the best static layout's", _worst(autopilot.SWINGING, 0.6, autopilot.BY_STATIC), at_most=0.5),
    Aim("the same in the steady mixes", _worst(autopilot.STEADY, 0.6, autopilot.BY_STATIC), at_most=0.8),
    Aim("the same in all mixes, by free re-cutting's", _worst(autopilot.ALL, 0.6, autopilot.BY_FREE), at_most=1.5),
    Aim("with whole idle cards, swinging mix, by the best static layout's", _worst(autopilot.SWINGING, 0.6, autopilot.BY_STATIC, autopilot.MANAGER), at_most=0.75),
    Aim("the same in all mixes", _worst(autopilot.ALL, 0.6, autopilot.BY_STATIC, autopilot.MANAGER), at_most=1.05),
    Aim("layouts that follow demand, swinging mix, load 0.8: waiting by the best static layout's", _worst(autopilot.SWINGING, 0.8, autopilot.BY_STATIC), at_most=0.5),
    Aim("the same in the steady mixes", _worst(autopilot.STEADY, 0.8, autopilot.BY_STATIC), at_most=0.8),
    Aim("the same in all mixes, by free re-cutting's", _worst(autopilot.ALL, 0.8, autopilot.BY_FREE), at_most=1.5),
    Aim("with whole idle cards, swinging mix, by the best static layout's", _worst(autopilot.SWINGING, 0.8, autopilot.BY_STATIC, autopilot.MANAGER), at_most=0.75),
    Aim("the same in all mixes", _worst(autopilot.ALL, 0.8, autopilot.BY_STATIC, autopilot.MANAGER), at_most=1.05),
    Aim("layouts that follow demand: most re-cuts in an hour, by those allowed", Measure(autopilot.RUN, autopilot.EVERY, autopilot.MOST, autopilot.OURS), at_most=1),
    Aim("the same with whole idle cards", Measure(autopilot.RUN, autopilot.EVERY, autopilot.MOST, autopilot.MANAGER), at_most=1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guard:
    """A measure that may become worse by so much before `make bench-check` fails."""

    measure: Measure
    tolerance: float  # of the value on record
    higher_is_better: bool = False
    at_most: float = inf  # whatever is on record

    def holds(self, value: float, recorded: float) -> bool:
        """Whether a value is no worse than allowed."""
        if self.higher_is_better:
            return value >= recorded * (1 - self.tolerance)
        return value <= min(recorded * (1 + self.tolerance), self.at_most)

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        bound = f", {self.at_most:g} at most" if isfinite(self.at_most) else ""
        return f"{self.tolerance:.0%} allowed{bound}"


GUARDS: Final = (
    # Instructions do not depend on the machine's mood, only on versions.
    Guard(Measure(instructions.RUN, "4 KB", instructions.UNIT, decision.LATER, decision.JSON), 0.05),
    Guard(Measure(instructions.RUN, "4 KB", instructions.UNIT, decision.FIRST, decision.JSON), 0.05),
    Guard(_decision(decision.LATER), 0.3),
    Guard(_decision(decision.FIRST), 0.3),
    # Processor time is steadier than throughput on a machine that does other things, too.
    Guard(_https(64, https.CPU, USUAL), 0.3),
    Guard(_https(64, https.CPU, PARTIAL), 0.3),
    Guard(_https(64, https.CPU, USUAL, "40 KB"), 0.3),
    *(
        Guard(Measure(full.RUN, case, decision.UNIT, full.FULL, full.MISSING), 0.15, at_most=full.MOST)
        for case in full.CASES
    ),
    Guard(Measure(cards.RUN, cards.LOOK, cards.CPU, TESSERA, cards.BARE), 0.3),
    Guard(Measure(view.RUN, view.WEBHOOK, view.PEAK, TESSERA), 0.1),
    Guard(Measure(controller.RUN, controller.case(controller.SMALL), controller.OPEN, TESSERA), 0),
    Guard(Measure(controller.RUN, controller.case(controller.SMALL), controller.PEAK, TESSERA), 0.1),
    Guard(Measure(startup.RUN, startup.COMMAND, startup.UNIT, TESSERA, startup.PYTHON), 0.3),
    # Simulated time: the same code has the same values.
    *(
        Guard(Measure(autopilot.RUN, str(case), autopilot.POOLED, subject, autopilot.STATIC), 0.02)
        for case in autopilot.SHORT
        for subject in (autopilot.OURS, autopilot.MANAGER)
    ),
)
