"""Covering demand with patterns, exactly: a small integer program and its branch and bound.

There are cards in groups (the cards of a group are alike), and for each group patterns, each a count of every
profile that one card can hold. Wanted is how often to use which pattern, such that what stays unserved weighs
least, then that by a second weight, then that fewest cards are used. Bounds come from the relaxation, which
`simplex` solves exactly. The work is bounded by a count of operations, not by a clock: the same question has the
same answer on every machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tessera.core.patterns import Pattern
from tessera.core.simplex import Tableau

# Entries of the tableau that may be rewritten before the search settles for the best it has: a few seconds
_WORK: Final = 120_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """A pattern that the cards of a group can be cut into."""

    group: int
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be small: a weight for each unserved device and for each card that is used."""

    unserved: tuple[int, ...]
    cards: tuple[int, ...]  # by group


@dataclass(frozen=True, slots=True)
class Cover:
    """How often each column is used, and for how many of the goals, from the first on, nothing better exists."""

    uses: tuple[int, ...]
    proven: int


@dataclass(frozen=True, slots=True)
class Covering:
    """The question: demand by profile, cards by group, columns, and goals in the order of their importance."""

    demand: tuple[int, ...]
    cards: tuple[int, ...]
    columns: tuple[Column, ...]
    goals: tuple[Goal, ...]

    def unserved(self, uses: Sequence[int]) -> tuple[int, ...]:
        """Demand that these columns leave."""
        left = list(self.demand)
        for column, count in zip(self.columns, uses, strict=True):
            if count:
                for index, held in enumerate(column.pattern):
                    left[index] -= held * count
        return tuple(max(0, count) for count in left)

    def cost(self, uses: Sequence[int], goal: Goal) -> int:
        """How much of what the goal wants small there is."""
        left = sum(weight * count for weight, count in zip(goal.unserved, self.unserved(uses), strict=True))
        return left + sum(goal.cards[column.group] * n for column, n in zip(self.columns, uses, strict=True))


def solve(question: Covering, start: Sequence[int]) -> Cover:
    """The best uses of the columns; never worse than `start`, which must be possible."""
    best, proven, work = tuple(start), 0, _WORK
    reached: list[int] = []
    for number in range(len(question.goals)):
        search = _Search(question, number, tuple(reached), best, work)
        best, work = search.run()
        proven += search.complete
        reached.append(question.cost(best, question.goals[number]))
    return Cover(best, proven)


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the search: columns that are used already, and columns that may be used only so often more."""

    used: tuple[tuple[int, int], ...] = ()
    limits: tuple[tuple[int, int], ...] = ()


class _Search:
    """Depth-first branch and bound for one goal, among the answers that are best for the goals before it."""

    def __init__(
        self, question: Covering, number: int, reached: tuple[int, ...], best: tuple[int, ...], work: int
    ) -> None:
        self._question = question
        self._goals = question.goals[: number + 1]
        self._reached = reached
        self._best = best
        self._work = work
        self._patterns = [column.pattern for column in question.columns]
        self._groups = [column.group for column in question.columns]
        # one number for all goals so far; each weighs more than the ones after it can ever add up to
        self._scale = [1]
        nothing = [0] * len(question.columns)
        for goal in reversed(self._goals[1:]):
            most = question.cost(nothing, goal) + sum(map(int.__mul__, goal.cards, question.cards))
            self._scale.insert(0, self._scale[0] * (most + 1))
        self._bar = self._total(best)
        self.complete = True

    def run(self) -> tuple[tuple[int, ...], int]:
        """The best answer, and the work that is left."""
        stack = [_Node()]
        while stack:
            if self._work <= 0:
                self.complete = False
                break
            stack.extend(self._expand(stack.pop()))
        return self._best, self._work

    def _total(self, uses: Sequence[int]) -> int:
        costs = (self._question.cost(uses, goal) for goal in self._goals)
        return sum(scale * cost for scale, cost in zip(self._scale, costs, strict=True))

    def _expand(self, node: _Node) -> Iterator[_Node]:
        """Bound a node, try to round it to an answer, and split it; the more promising half comes last."""
        uses = [0] * len(self._question.columns)
        for index, count in node.used:
            uses[index] += count
        relaxed, bound, prices = self._relax(uses, node.limits)
        if bound >= self._bar:
            return
        self._round(uses, relaxed, prices)
        fractional = [index for index, value in enumerate(relaxed) if value.denominator > 1]
        if not fractional or bound >= self._bar:
            return
        index = max(fractional, key=lambda i: (relaxed[i], -i))
        floor = relaxed[index].numerator // relaxed[index].denominator
        limits = dict(node.limits)
        used = dict(node.used)
        used[index] = used.get(index, 0) + floor + 1
        fewer = {**limits, index: floor}
        if index in limits:
            limits[index] -= floor + 1
        yield _Node(node.used, tuple(fewer.items()))
        yield _Node(tuple(used.items()), tuple(limits.items()))

    def _round(self, used: Sequence[int], relaxed: Sequence[Fraction], prices: Sequence[int]) -> None:
        """Round the relaxed answer down, then fill up greedily by what the relaxation says devices are worth."""
        uses = [count + int(value) for count, value in zip(used, relaxed, strict=True)]
        left = list(self._question.unserved(uses))
        free = list(self._question.cards)
        for column, count in zip(self._question.columns, uses, strict=True):
            free[column.group] -= count
        while True:
            worth = [
                sum(
                    price * min(held, want) for price, held, want in zip(prices, c.pattern, left, strict=True)
                )
                if free[c.group] > 0
                else 0
                for c in self._question.columns
            ]
            gain = max(worth, default=0)
            if gain <= 0:
                break
            index = worth.index(gain)
            uses[index] += 1
            free[self._question.columns[index].group] -= 1
            left = [
                max(0, n - held) for n, held in zip(left, self._question.columns[index].pattern, strict=True)
            ]
        total = self._total(uses)
        if total < self._bar:
            self._best, self._bar = tuple(uses), total

    def _relax(
        self, used: Sequence[int], limits: Sequence[tuple[int, int]]
    ) -> tuple[list[Fraction], int, list[int]]:
        """The rest without the demand for whole numbers: its uses, a bound on the total, prices of devices."""
        question = self._question
        left = question.unserved(used)
        free = list(question.cards)
        for column, count in zip(question.columns, used, strict=True):
            free[column.group] -= count
        weights = [
            sum(scale * goal.unserved[i] for scale, goal in zip(self._scale, self._goals, strict=True))
            for i in range(len(left))
        ]
        costs = [
            sum(scale * goal.cards[c.group] for scale, goal in zip(self._scale, self._goals, strict=True))
            for c in question.columns
        ]
        floors = [
            (goal.unserved, reached)
            for goal, reached in zip(self._goals, self._reached, strict=False)
            if not any(goal.cards)
        ]
        tableau = Tableau(self._patterns, self._groups, left, free, limits, floors, weights, costs)
        self._work -= tableau.minimise()
        paid = sum(cost * count for cost, count in zip(costs, used, strict=True))
        return tableau.uses(), paid + tableau.bound(), tableau.prices()
