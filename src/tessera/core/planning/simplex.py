"""The simplex method for the relaxation of a covering, in integers.

Every entry of the tableau is an integer over one common denominator (fraction-free pivoting), so that nothing is
ever off by a rounding error, and a bound that is found is a bound.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import count
from typing import Final

from tessera.core.planning.patterns import Column

_LITTLE: Final = 1_000_000  # against which one device more in a pattern is little


class Tableau:
    """The relaxation, as it is solved.

    Columns: one per pattern, then how much of each profile stays unserved, then how much is served beyond what
    was asked, then one slack for each group, limit, floor and ceiling. To begin with nothing is served.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        demand: Sequence[int],
        cards: Sequence[int],
        limits: Sequence[tuple[int, int]],
        floors: Sequence[tuple[Sequence[int], int]],
        ceilings: Sequence[tuple[Sequence[int], int]],
        weights: Sequence[int],
        costs: Sequence[int],
    ) -> None:
        self._patterns, self._profiles = len(columns), len(demand)
        uses, profiles = self._patterns, self._profiles
        slacks = len(cards) + len(limits) + len(floors) + len(ceilings)
        width = uses + 2 * profiles + slacks + 1
        rows: list[list[int]] = []
        for i in range(profiles):
            row = [0] * width
            row[:uses] = [column.pattern[i] for column in columns]
            row[uses + i], row[uses + profiles + i], row[-1] = 1, -1, demand[i]
            rows.append(row)
        served = list(rows)
        for group, there in enumerate(cards):
            row = [0] * width
            row[:uses] = [int(column.group == group) for column in columns]
            row[-1] = there
            rows.append(row)
        for index, most in limits:
            row = [0] * width
            row[index], row[-1] = 1, most
            rows.append(row)
        for by_profile, least in floors:
            row = _combined(served, by_profile, width)
            row[uses : uses + profiles] = [0] * profiles
            row[-1] -= least
            rows.append(row)
        for by_column, most in ceilings:
            row = [0] * width
            row[:uses], row[-1] = by_column, most
            rows.append(row)
        for number, row in enumerate(rows[profiles:]):
            row[uses + 2 * profiles + number] = 1
        goal = [-entry for entry in _combined(served, weights, width)]
        goal[uses : uses + profiles] = [0] * profiles
        for index, cost in enumerate(costs):
            goal[index] += cost
        self._rows, self._goal, self._denominator = rows, goal, 1
        self._basis = [*range(uses, uses + profiles), *range(uses + 2 * profiles, width - 1)]

    def minimise(self) -> int:
        """Pivot until nothing improves; returns the number of entries rewritten."""
        size = (len(self._rows) + 1) * len(self._goal)
        work = 0
        # the steepest column first; the first one that improves when that went on for long: no cycle then
        steep = 50 * len(self._rows)
        for step in count():
            improving = [j for j, entry in enumerate(self._goal[:-1]) if entry < 0]
            if not improving:
                break
            column = min(improving, key=lambda j: (self._goal[j], j)) if step < steep else improving[0]
            self._pivot(self._leaving(column), column)
            work += size
        return work

    def _leaving(self, column: int) -> int:
        rows = [number for number, row in enumerate(self._rows) if row[column] > 0]
        return min(rows, key=lambda r: (Fraction(self._rows[r][-1], self._rows[r][column]), self._basis[r]))

    def _pivot(self, number: int, column: int) -> None:
        pivot_row = self._rows[number]
        pivot, old = pivot_row[column], self._denominator
        for row in (*self._rows, self._goal):
            if row is pivot_row:
                continue
            factor = row[column]
            if factor:
                row[:] = [
                    (entry * pivot - factor * other) // old
                    for entry, other in zip(row, pivot_row, strict=True)
                ]
            elif pivot != old:
                row[:] = [entry * pivot // old for entry in row]
        self._denominator = pivot
        self._basis[number] = column

    def uses(self) -> list[Fraction]:
        """How often each pattern is used."""
        found = [Fraction(0)] * self._patterns
        for row, column in zip(self._rows, self._basis, strict=True):
            if column < self._patterns:
                found[column] = Fraction(row[-1], self._denominator)
        return found

    def bound(self) -> int:
        """No answer in whole numbers costs less."""
        return -(self._goal[-1] // self._denominator)

    def prices(self) -> list[int]:
        """What one more of each profile is worth, scaled; what is worth nothing still counts a little."""
        start = self._patterns + self._profiles
        return [1 + entry * _LITTLE for entry in self._goal[start : start + self._profiles]]


def _combined(rows: Sequence[Sequence[int]], weights: Sequence[int], width: int) -> list[int]:
    total = [0] * width
    for row, weight in zip(rows, weights, strict=True):
        if weight:
            total = [entry + weight * other for entry, other in zip(total, row, strict=True)]
    return total
