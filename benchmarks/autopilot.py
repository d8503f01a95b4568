"""What layouts that follow demand are worth: how long tasks wait in seven simulated days, with the production policy, beside others.

The rounds are seeds, the same for every subject. Nothing of it depends on the machine. What was worked out is kept in a folder of the user's cache, by the
code that it depends on: a run that was ended goes on, and a change of the policy leaves the others alone.
"""

import argparse
import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final

import tessera
from benchmarks.days.figures import MIXES
from benchmarks.days.layouts import fitted
from benchmarks.days.tasks import Demand
from benchmarks.recuts.autopilot import Autopilot, limits_for
from benchmarks.recuts.bounds import free_cutting, moving, no_mig
from benchmarks.recuts.nos import Nos
from benchmarks.recuts.outcome import Outcome
from benchmarks.recuts.play import Idle, play
from benchmarks.recuts.pool import Pool
from benchmarks.recuts.static import best_static
from benchmarks.results import Results
from benchmarks.stage import Stage
from tessera.core.autopilot.values import Limits
from tessera.core.mig.placement import Pattern
from tessera.core.planning.changes import Way

RUN: Final = "autopilot"
SEEDS: Final = range(10)
LOADS: Final = (0.6, 0.8)
SIZES: Final = (16, 64)  # cards

OURS: Final = "autopilot, single slices"
MANAGER: Final = "autopilot, whole idle cards"
BLIND: Final = "autopilot without forecast"
CORDONED: Final = "autopilot, node cordoned meanwhile"
UNCUT: Final = "autopilot, from cards that are not cut"
FREE_CARDS: Final = "autopilot, whole idle cards, for nothing"
STATIC: Final = "best static layout"
KEPT: Final = "the layout at the start, never cut"
NOS: Final = "nos's rule"
FREE: Final = "free re-cutting, greedy"
FREE_KEPT: Final = "free re-cutting that keeps a 4g"
MOVING: Final = "free re-cutting, pods move for nothing"
NO_MIG: Final = "no MIG"

POOLED: Final = "minutes waited, mean of all seeds"
MEAN: Final = "minutes waited, mean"
P95: Final = "minutes waited, p95"
SLOWDOWN: Final = "slowdown, mean"
USE: Final = "% of the cards in use"
CUTS: Final = "re-cuts an hour"
MOST: Final = "most re-cuts in an hour, of those allowed"
NEVER: Final = "% of tasks that never start"
BY_STATIC: Final = "waiting by the best static layout's, the worst case"
BY_FREE: Final = "waiting by free re-cutting's, the worst case"
EVERY: Final = "all cases"
SWINGING, STEADY, ALL = "swinging mix", "steady mixes", "all mixes"
NOTHING: Final = 1 / 60  # minutes: where the best static layout waits no longer, there is nothing to compare
_GRID: Final = [one * 10**power for power in range(-1, 4) for one in (1, 2, 5)]  # minutes
_CACHE: Final = Path.home() / ".cache" / "tessera-benchmarks"


@dataclass(frozen=True, slots=True)
class Case:
    """Demand on some cards."""

    mix: str
    load: float
    cards: int
    services: float = 0.5
    days: float = 7

    @property
    def demand(self) -> Demand:
        return Demand(MIXES[self.mix], self.load, self.cards, self.days, self.services)

    def __str__(self) -> str:
        other = "" if self.services == 0.5 else f", services {self.services:.0%} of it"
        return f"{self.mix} mix, load {self.load}{other}, {self.cards} cards" + (
            "" if self.days == 7 else f", {self.days:.0f} days"
        )

    @property
    def fitted(self) -> list[Pattern]:
        """Cards cut for the demand in the mean: all begin with these."""
        return fitted(self.demand.erlangs, self.cards)


def _ours(case: Case, seed: int, pool: Pool, *, forecasts: bool = True) -> Outcome:
    return play(case.demand.tasks(seed), pool, Autopilot(limits_for(case.cards), forecasts=forecasts))


def _for_nothing(case: Case, seed: int, pool: Pool) -> Outcome:
    """The production policy where a re-cut takes no time, and there is no limit to them."""
    limits = Limits(recuts_per_hour=10**6, cool_down=0.0)
    return play(case.demand.tasks(seed), pool, Autopilot(limits, soon=0.0), cutting=0.0)


PLAYED: Final[Mapping[str, Callable[[Case, int], Outcome]]] = {
    OURS: lambda case, seed: _ours(case, seed, Pool(case.fitted)),
    MANAGER: lambda case, seed: _ours(case, seed, Pool(case.fitted, Way.MIG_MANAGER)),
    BLIND: lambda case, seed: _ours(case, seed, Pool(case.fitted), forecasts=False),
    CORDONED: lambda case, seed: _ours(case, seed, Pool(case.fitted, cordons=True)),
    UNCUT: lambda case, seed: _ours(case, seed, Pool([()] * case.cards)),
    FREE_CARDS: lambda case, seed: _for_nothing(case, seed, Pool(case.fitted, Way.MIG_MANAGER)),
    STATIC: lambda case, seed: best_static(case.demand.tasks(seed), case.cards)[0],
    KEPT: lambda case, seed: play(case.demand.tasks(seed), Pool(case.fitted), Idle()),
    NOS: lambda case, seed: play(case.demand.tasks(seed), Pool(case.fitted), Nos()),
    FREE: lambda case, seed: free_cutting(case.demand.tasks(seed), case.cards),
    FREE_KEPT: lambda case, seed: free_cutting(case.demand.tasks(seed), case.cards, kept=1),
    MOVING: lambda case, seed: moving(case.demand.tasks(seed), case.cards),
    NO_MIG: lambda case, seed: no_mig(case.demand.tasks(seed), case.cards),
}  # fmt: skip
_BY_POLICY: Final = (OURS, MANAGER, BLIND, CORDONED, UNCUT, FREE_CARDS)
_PLOTTED: Final = (OURS, MANAGER, BLIND, STATIC, NOS, FREE)

CASES: Final = tuple(Case(mix, load, cards) for cards in SIZES for mix in MIXES for load in LOADS)
# Seeds that nobody looked at before, and other demand: with less that stands still.
OTHER_SEEDS: Final = range(1000, 1005)
OTHERS: Final = tuple(Case(mix, load, 16, services=0.2) for mix in MIXES for load in LOADS)
# What `make bench-check` does again.
SHORT: Final = tuple(Case(mix, 0.8, 16, days=2) for mix in MIXES)


def run(stage: Stage, results: Results) -> None:
    """Every subject on every case; or the short form alone."""
    results.note(
        "autopilot: simulated time, so values do not depend on the machine. A re-cut takes 30 s. Limits of the autopilot: coolDown 10 minutes, recutsPerHour 20 for 16 cards, "
        "80 for 64. Half of the load is services, which never end and are not counted among the tasks, or as much as a case says. Slowdown: (wait + run) / run, a run of less than 10 s "
        "taken as 10 s. Who never starts counts with the time until seven days after the last task. The best static layout is known to be best for these very tasks; free re-cutting is greedy"
    )
    _measure(results, SHORT, range(3), (OURS, MANAGER, STATIC))
    if stage.effort.short:
        return
    small, large = ([one for one in CASES if one.cards == cards] for cards in SIZES)
    _measure(results, small, SEEDS, [*PLAYED])
    _measure(results, large, SEEDS, (OURS, MANAGER, STATIC, KEPT, FREE, NO_MIG))
    _measure(results, OTHERS, OTHER_SEEDS, (OURS, MANAGER, STATIC, KEPT, NOS, FREE))
    _worst(results)
    for mix in MIXES:
        case = Case(mix, 0.8, 16)
        some = {one: [_figures(one, case, seed) for seed in SEEDS] for one in PLAYED if one in _PLOTTED}
        results.curves[f"autopilot-{mix}"] = {one: _curve(found) for one, found in some.items()}


def _measure(results: Results, cases: Sequence[Case], seeds: Sequence[int], subjects: Sequence[str]) -> None:
    with ProcessPoolExecutor() as processes:
        list(processes.map(_figures, *zip(*product(subjects, cases, seeds), strict=True)))
    for case in cases:
        for subject in subjects:
            found = [_figures(subject, case, seed) for seed in seeds]
            results.add(
                RUN, str(case), POOLED, subject, [sum(one["values"][MEAN] for one in found) / len(found)]
            )
            for unit in found[0]["values"]:
                results.add(RUN, str(case), unit, subject, [one["values"][unit] for one in found])


def _worst(results: Results) -> None:
    """The largest ratios, by what the aims ask."""
    groups = {SWINGING: ("swinging",), STEADY: ("large", "small"), ALL: tuple(MIXES)}
    for (group, mixes), load, subject in product(groups.items(), LOADS, (OURS, MANAGER)):
        for unit, to in ((BY_STATIC, STATIC), (BY_FREE, FREE)):
            found = [
                ratio.median
                for case in CASES
                if case.mix in mixes
                and case.load == load
                and (ratio := results.ratio(RUN, str(case), POOLED, subject, to))
                and (static := results.find(RUN, str(case), POOLED, STATIC))
                and static.median > NOTHING
            ]
            results.add(RUN, worst(group, load), unit, subject, [max(found)] if found else [0.0])
    for subject in (OURS, MANAGER):
        every = [one.values for case in CASES if (one := results.find(RUN, str(case), MOST, subject))]
        results.add(RUN, EVERY, MOST, subject, [max(map(max, every))])


def worst(group: str, load: float) -> str:
    """How the worst case of some mixes is called."""
    return f"{group}, load {load}"


def _figures(subject: str, case: Case, seed: int) -> dict[str, dict[str, float]]:
    """What came of one week; worked out once."""
    key = f"{subject} {case} {case.services} {seed} {_code(subject)}"
    file = _CACHE / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    if not file.exists():
        outcome = PLAYED[subject](case, seed)
        allowed = limits_for(case.cards).recuts_per_hour
        values = {
            MEAN: outcome.mean_wait / 60,
            P95: outcome.wait(0.95) / 60,
            SLOWDOWN: outcome.mean_slowdown,
            USE: outcome.use * 100,
            CUTS: outcome.cuts_an_hour,
            MOST: outcome.most_cuts_in_an_hour / allowed,
            NEVER: outcome.never * 100,
        }
        longer = {str(one): 1 - bisect_right(outcome.waits, one * 60) / len(outcome.waits) for one in _GRID}
        _CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps({"values": values, "longer": longer}))
        unfinished.replace(file)
    found: dict[str, dict[str, float]] = json.loads(file.read_text())
    return found


@cache
def _code(subject: str) -> str:
    """The code that a subject's figures depend on, by its contents."""
    package, players = Path(tessera.__file__).parent, Path(__file__).parent
    files = [*(players / "days").glob("*.py"), *(players / "recuts").glob("*.py")]
    files += [package / "core/mig/geometry.py", package / "core/mig/placement.py"]
    if subject in _BY_POLICY:
        files += (package / "core/autopilot").glob("*.py")
    else:
        files.remove(players / "recuts/autopilot.py")
    return hashlib.sha256(b"".join(one.read_bytes() for one in sorted(files))).hexdigest()


def _curve(found: Sequence[Mapping[str, Mapping[str, float]]]) -> list[list[float]]:
    """The share of tasks that wait longer, in percent, mean of the seeds; a picture with a logarithmic axis ends at a hundredth."""
    points = [[one, sum(week["longer"][str(one)] for week in found) / len(found) * 100] for one in _GRID]
    return [point for point in points if point[1] >= 0.01]


def main() -> None:
    """For whoever changes the policy: pooled means on other seeds than those of the record, and their ratio to the best static layout's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autopilot", description=main.__doc__)
    parser.add_argument("--mixes", nargs="*", default=[*MIXES])
    parser.add_argument("--loads", nargs="*", type=float, default=LOADS)
    parser.add_argument("--cards", type=int, default=16)
    parser.add_argument("--services", type=float, default=0.5)
    parser.add_argument("--seeds", nargs="*", type=int, default=[100, 101, 102, 103])
    parser.add_argument("--subjects", nargs="*", default=[OURS, MANAGER, BLIND, NOS, FREE])
    asked = parser.parse_args()
    for case in (Case(mix, load, asked.cards, asked.services) for mix in asked.mixes for load in asked.loads):
        static = sum(_figures(STATIC, case, seed)["values"][MEAN] for seed in asked.seeds) / len(asked.seeds)
        print(f"{case}: {STATIC} {static:.2f} min", flush=True)
        for subject in asked.subjects:
            values = [_figures(subject, case, seed)["values"] for seed in asked.seeds]
            wait = sum(one[MEAN] for one in values) / len(values)
            by = " ".join(f"{one[MEAN]:.2f}" for one in values)
            cuts = sum(one[CUTS] for one in values) / len(values)
            ratio = f"× {wait / static:.2f}" if static else ""
            print(
                f"  {subject:36} {wait:8.2f} {ratio:8} {cuts:6.2f} re-cuts/h, most {max(one[MOST] for one in values):.0%}; by seed {by}",
                flush=True,
            )


if __name__ == "__main__":
    main()
