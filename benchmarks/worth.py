"""What fallback is worth: how long tasks wait in seven simulated days, with the production decisions, on demand like a production trace's.

The rounds are seeds, the same for every subject. What is measured does not depend on the machine, but for how long it took.
"""

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.days.figures import MIXES
from benchmarks.days.layouts import BALANCED, fitted, nodes_of
from benchmarks.days.tasks import Demand
from benchmarks.days.week import Pace, Variant, Week, play
from benchmarks.results import Results
from benchmarks.stage import Stage

RUN: Final = "worth"
CARDS: Final = 16
LOADS: Final = (0.7, 0.9)
FITTED, OF_NVIDIA = "cut for it", "all-balanced"
MEAN: Final = "minutes waited, mean"
P95: Final = "minutes waited, p95"
OTHER: Final = "% of tasks on another size"
NEVER: Final = "% of tasks that never start"
EVICTED: Final = "evictions for 100 tasks"
SLOWER: Final = "minutes waited, mean, where a smaller slice is slower"
LOST: Final = "minutes lost, mean, where a smaller slice is slower"
SPENT: Final = "s of processor time for the seven days"
_DRAWN: Final = {f"worth-{mix}": f"{mix} mix, load 0.9, {FITTED}" for mix in ("large", "small")}
_GRID: Final = [one * 10**power for power in range(-1, 4) for one in (1, 2, 5)]  # minutes


def case(mix: str, load: float, layout: str) -> str:
    """How a case is called."""
    return f"{mix} mix, load {load}, {layout}"


def run(stage: Stage, results: Results) -> None:
    """Every way to admit pods, on both mixes, loads and layouts."""
    seeds = range(min(stage.effort.rounds, 3))
    waits: dict[str, dict[str, list[float]]] = {}
    for mix, load in ((mix, load) for mix in ("large", "small") for load in LOADS):
        demand = Demand(MIXES[mix], load, CARDS)
        tasks = [demand.tasks(seed) for seed in seeds]
        for layout, cards in ((FITTED, fitted(demand.erlangs, CARDS)), (OF_NVIDIA, [BALANCED] * CARDS)):
            nodes, name = list(nodes_of(cards)), case(mix, load, layout)
            for variant in Variant:
                begun = time.process_time()
                weeks = [play(one, nodes, variant) for one in tasks]
                spent = (time.process_time() - begun) / len(weeks)
                for unit, values in _values(weeks).items():
                    results.add(RUN, name, unit, variant.value, values)
                if layout == FITTED:
                    slower = [play(one, nodes, variant, Pace.COMPUTE) for one in tasks]
                    results.add(RUN, name, SLOWER, variant.value, [one.mean_wait / 60 for one in slower])
                    results.add(RUN, name, LOST, variant.value, [one.mean_loss / 60 for one in slower])
                results.add(RUN, name, SPENT, variant.value, [spent])
                waits.setdefault(name, {})[variant.value] = sorted(
                    f.waited for week in weeks for f in week.fates
                )
    for picture, name in _DRAWN.items():
        results.curves[picture] = {variant: _longer_than(some) for variant, some in waits[name].items()}


def _values(weeks: Sequence[Week]) -> Mapping[str, list[float]]:
    return {
        MEAN: [one.mean_wait / 60 for one in weeks],
        P95: [one.wait(0.95) / 60 for one in weeks],
        OTHER: [one.replaced * 100 for one in weeks],
        NEVER: [one.never * 100 for one in weeks],
        EVICTED: [one.evictions / len(one.fates) * 100 for one in weeks],
    }


def _longer_than(waits: Sequence[float]) -> list[list[float]]:
    """The share of tasks that wait longer, in percent; a picture with a logarithmic axis ends at a hundredth."""
    found = [[one, (1 - bisect_right(waits, one * 60) / len(waits)) * 100] for one in _GRID]
    return [point for point in found if point[1] >= 0.01]
