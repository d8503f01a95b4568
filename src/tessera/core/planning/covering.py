"""Covering demand with patterns, exactly: a small integer program and its branch and bound.

There are cards in groups (the cards of a group are alike), and for each group patterns, each a count of every
profile that one card can hold. Wanted is how often to use which pattern, such that what stays unserved weighs
least, and then that what is used costs least, by one goal after the other. Bounds come from the relaxation, which
`simplex` solves exactly. The work is bounded by a count of operations, not by a clock: the same question has the
same answer on every machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tessera.core.planning.patterns import Column
from tessera.core.planning.simplex import Tableau

# Entries of the tableau that may be rewritten before the search settles for the best it has: a few seconds
_WORK: Final = 120_000_000


@dataclass(frozen=True, slots=True)
class Unserved:
    """A goal: that what stays unserved is little, by a weight for each profile."""

    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Used:
    """A goal: that the columns that are used cost little, by a weight for each column."""

    weights: tuple[int, ...]


Goal = Unserved | Used


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
        counts = self.unserved(uses) if isinstance(goal, Unserved) else uses
        return sum(weight * count for weight, count in zip(goal.weights, counts, strict=True))


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
        before = list(zip(question.goals, reached, strict=False))
        # what was reached before holds: of the unserved there is no less, and of the used there may be no more
        self._floors = [(goal.weights, least) for goal, least in before if isinstance(goal, Unserved)]
        self._ceilings = [(goal, most) for goal, most in before if isinstance(goal, Used)]
        goals = [goal for goal, _ in before if isinstance(goal, Unserved)] + [question.goals[number]]
        # one number for these goals; each weighs more than the ones after it can ever add up to
        scales = [1]
        for goal in reversed(goals[1:]):
            scales.insert(0, scales[0] * (self._most(goal) + 1))
        self._goals = list(zip(scales, goals, strict=True))
        self._work = work
        self._best = best
        self._bar = self._total(best)
        self.complete = True

    def _most(self, goal: Goal) -> int:
        """More than that no answer costs."""
        amounts = self._question.demand if isinstance(goal, Unserved) else (sum(self._question.cards),)
        weights = goal.weights if isinstance(goal, Unserved) else (max(goal.weights, default=0),)
        return sum(weight * amount for weight, amount in zip(weights, amounts, strict=True))

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
        return sum(scale * self._question.cost(uses, goal) for scale, goal in self._goals)

    def _expand(self, node: _Node) -> Iterator[_Node]:
        """Bound a node, try to round it to an answer, and split it; the more promising half comes last."""
        uses = [0] * len(self._question.columns)
        for index, count in node.used:
            uses[index] += count
        if any(self._question.cost(uses, goal) > most for goal, most in self._ceilings):
            return
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
        if total < self._bar and all(self._question.cost(uses, g) <= most for g, most in self._ceilings):
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
        weights, costs = [0] * len(left), [0] * len(question.columns)
        for scale, goal in self._goals:
            into = weights if isinstance(goal, Unserved) else costs
            into[:] = [entry + scale * weight for entry, weight in zip(into, goal.weights, strict=True)]
        ceilings = [(goal.weights, most - question.cost(used, goal)) for goal, most in self._ceilings]
        tableau = Tableau(question.columns, left, free, limits, self._floors, ceilings, weights, costs)
        self._work -= tableau.minimise()
        paid = sum(cost * count for cost, count in zip(costs, used, strict=True))
        return tableau.uses(), paid + tableau.bound(), tableau.prices()
