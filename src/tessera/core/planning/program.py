"""Integer programs: amounts, rows that bound sums of them, and goals, one after the other.

The planner and the defragmenter write their questions down as a `Program`. Who solves it is given to them
(`tessera.solver`): the core has no solver of its own, and checks the solver's answer. An answer that does not keep every
row, in integers, is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tessera.core.errors import TesseraError

Sum = Mapping[int, int]  # amount → weight


@dataclass(frozen=True, slots=True)
class Row:
    """A sum of amounts that may not be larger than `most`."""

    weights: Sum
    most: int


@dataclass(slots=True)
class Program:
    """Amounts, each a whole number from 0 to a limit, and the rows that they keep."""

    limits: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def amount(self, limit: int) -> int:
        self.limits.append(limit)
        return len(self.limits) - 1

    def at_most(self, weights: Sum, most: int) -> None:
        self.rows.append(Row(weights, most))

    def holds(self, values: Sequence[int]) -> bool:
        return all(0 <= value <= limit for value, limit in zip(values, self.limits, strict=True)) and all(
            total(row.weights, values) <= row.most for row in self.rows
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The best values that were found for a goal, and below what the goal cannot come."""

    values: tuple[int, ...]
    bound: int


class Solver(Protocol):
    """Makes a sum small; the same program, goal and start have the same answer."""

    def __call__(self, program: Program, goal: Sum, start: Sequence[int]) -> Found:
        """Values that are no worse than `start`, which keeps every row."""


class SolverFailed(TesseraError):
    """The solver's answer is none."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Values, and by how much each goal could be smaller at most; 0: nothing better exists."""

    values: tuple[int, ...]
    gaps: tuple[int, ...]


def minimise(program: Program, goals: Sequence[Sum], start: Sequence[int], solve: Solver) -> Solution:
    """Make the first sum smallest, then the second without loss to the first, and so on."""
    best, gaps = tuple(start), []
    bounded = Program(list(program.limits), list(program.rows))
    for goal in goals:
        reached = total(goal, best)
        if reached > sum(min(0, weight) * program.limits[amount] for amount, weight in goal.items()):
            found = solve(bounded, goal, best)
            if not bounded.holds(found.values) or total(goal, found.values) > reached:
                raise SolverFailed("the solver's answer does not keep the program's rows")
            best, reached = found.values, total(goal, found.values)
            gaps.append(max(0, reached - found.bound))
        else:
            gaps.append(0)
        bounded.at_most(goal, reached)
    return Solution(best, tuple(gaps))


def total(weights: Sum, values: Sequence[int]) -> int:
    return sum(weight * values[amount] for amount, weight in weights.items())
