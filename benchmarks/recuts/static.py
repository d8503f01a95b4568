"""The best layout that stays as it is, for tasks that are known in advance: the hardest opponent that never cuts a card.

Where tasks wait for exactly their size, the sizes do not meet: the slices of a size are servers with one queue. So the wait of each size is worked
out once for every number of slices, and what is left to choose is how many slices of each size all cards together have. That is an integer
program, and its answer is the best of all layouts.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise

from benchmarks.days.layouts import PRODUCT, PROFILES
from benchmarks.days.tasks import Task
from benchmarks.recuts.outcome import AFTER, Outcome
from tessera.core.mig.placement import maximal_patterns
from tessera.core.planning.program import Found, Program
from tessera.solver import highs

Counts = tuple[int, ...]  # slices of each size, in the order of `PROFILES`
_STEPS = 100_000  # of the solver


def serve(tasks: Sequence[Task], servers: int, end: float) -> list[float | None]:
    """When each task starts, first come, first served; None: not by the end."""
    free = [0.0] * servers
    heapify(free)
    found: list[float | None] = []
    for task in tasks:
        begun = max(task.created, free[0]) if free else end
        if begun >= end:
            found.append(None)
            continue
        heapreplace(free, begun + task.seconds)
        found.append(begun)
    return found


def waits_by_number(tasks: Sequence[Task], most: int, end: float) -> dict[int, int]:
    """The seconds that all tasks of one size wait together, by the number of slices; as many as there are services, until nobody waits."""
    found: dict[int, int] = {}
    for servers in range(sum(one.is_service for one in tasks), most + 1):
        both = zip(tasks, serve(tasks, servers, end), strict=True)
        wait = sum((end if begun is None else begun) - task.created for task, begun in both)
        found[servers] = round(wait)
        if not found[servers]:
            break
    return found


def best_counts(waits: Sequence[Mapping[int, int]], cards: int) -> Counts:
    """How many slices of each size to have, so that all together wait least; every size has its waits by number."""
    most = tuple(shape.most if (shape := PRODUCT.shape(one)) else 0 for one in PROFILES.values())
    patterns = maximal_patterns(PRODUCT, (), tuple(PROFILES.values()), most)
    program = Program()
    cut = [program.amount(cards) for _ in patterns]  # cards with this pattern
    program.at_most(dict.fromkeys(cut, 1), cards)
    goal: dict[int, int] = {}
    steps: list[list[int]] = []  # by size: whether it has one slice more
    for index, by_number in enumerate(waits):
        fewest, last = min(by_number), max(by_number)
        more = [program.amount(1) for _ in range(fewest, last)]
        for one, another in pairwise(more):
            program.at_most({another: 1, one: -1}, 0)
        for number, one in enumerate(more, fewest):
            goal[one] = by_number[number + 1] - by_number[number]
        made = {amount: -pattern[index] for amount, pattern in zip(cut, patterns, strict=True)}
        program.at_most({**dict.fromkeys(more, 1), **made}, -fewest)
        steps.append(more)
    found = _solved(program, goal)
    return tuple(
        min(some) + sum(found.values[one] for one in more) for some, more in zip(waits, steps, strict=True)
    )


def _solved(program: Program, goal: Mapping[int, int]) -> Found:
    found = highs(program, goal, [0] * len(program.limits), _STEPS)
    reached = sum(found.values[one] * weight for one, weight in goal.items())
    if not program.holds(found.values) or reached > found.bound:
        raise ValueError("the search for the best static layout did not end")
    return found


def best_static(tasks: Sequence[Task], cards: int) -> tuple[Outcome, Counts]:
    """What becomes of the tasks with the best layout that stays, and how many slices of each size that has."""
    end = tasks[-1].created + AFTER
    of_size = {size: [one for one in tasks if one.size == size] for size in PROFILES}
    most = {
        size: cards * (shape.most if (shape := PRODUCT.shape(one)) else 0) for size, one in PROFILES.items()
    }
    counts = best_counts([waits_by_number(of_size[size], most[size], end) for size in PROFILES], cards)
    started: list[float | None] = [None] * len(tasks)
    for (_, some), count in zip(of_size.items(), counts, strict=True):
        for task, begun in zip(some, serve(some, count, end), strict=True):
            started[task.number] = begun
    return Outcome(tasks, started, cards), counts
