"""Programs: goals one after the other, and a solver that is not trusted."""

import pytest

from tessera.core.planning.program import Found, Program, Solution, SolverFailed, minimise


def program() -> Program:
    """Two amounts from 0 to 10, of which `3 a + 2 b` may be 17 and `a + b` 7."""
    made = Program()
    a, b = made.amount(10), made.amount(10)
    made.at_most({a: 3, b: 2}, 17)
    made.at_most({a: 1, b: 1}, 7)
    return made


class Answering:
    """A solver that answers so, and knows what it was asked."""

    def __init__(self, *answers: Found) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[object, ...]] = []

    def __call__(self, program, goal, start):
        rows = [(dict(row.weights), row.most) for row in program.rows[2:]]
        self.asked.append((dict(goal), tuple(start), rows))
        return self.answers.pop(0)


def test_goals_come_one_after_the_other():
    """What was reached for a goal is a row for the goals after it; how far from the bound it is stays on record."""
    solve = Answering(Found((3, 4), -33), Found((3, 4), 3))
    answer = minimise(program(), [{0: -5, 1: -4}, {0: 1}], [0, 0], solve)
    assert solve.asked == [({0: -5, 1: -4}, (0, 0), []), ({0: 1}, (3, 4), [({0: -5, 1: -4}, -31)])]
    assert answer == Solution((3, 4), (2, 0))


@pytest.mark.parametrize(
    "values",
    [(6, 6), (-1, 0), (11, 0), (0, 0)],
)
def test_an_answer_that_breaks_a_row_is_refused(values):
    """A row, a limit, or being worse than what was there: the solver's word is not taken for it."""
    with pytest.raises(SolverFailed, match="does not keep"):
        minimise(program(), [{0: -1, 1: -1}], [1, 1], Answering(Found(values, -7)))


def test_a_goal_that_cannot_be_better_is_not_asked_about():
    """Nothing is smaller than nothing."""
    assert minimise(program(), [{0: 1}], [0, 3], Answering()) == Solution((0, 3), (0,))
    assert minimise(program(), [{}], [0, 3], Answering()) == Solution((0, 3), (0,))
