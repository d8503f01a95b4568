"""HiGHS behind the planner: exact on what can be counted out, the same every time, honest at its bound."""

from itertools import product as cartesian

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera import solver
from tessera.core.planning.program import Program, SolverFailed, total
from tessera.solver import highs


def drawn(data) -> tuple[Program, dict[int, int]]:
    """A program of a few amounts, to which nothing at all is an answer."""
    program = Program([data.draw(st.integers(0, 4)) for _ in range(data.draw(st.integers(1, 4)))])
    weights = st.dictionaries(st.integers(0, len(program.limits) - 1), st.integers(-9, 9))
    for _ in range(data.draw(st.integers(0, 3))):
        program.at_most(data.draw(weights), data.draw(st.integers(0, 20)))
    return program, data.draw(weights)


@given(st.data())
def test_no_values_are_better(data):
    """Of all values that keep every row, none makes the goal smaller, and the bound says so."""
    program, goal = drawn(data)
    best = min(
        total(goal, values)
        for values in cartesian(*(range(limit + 1) for limit in program.limits))
        if program.holds(values)
    )
    found = highs(program, goal, [0] * len(program.limits))
    assert program.holds(found.values)
    assert total(goal, found.values) == best == found.bound
    assert highs(program, goal, [0] * len(program.limits)) == found


def hard() -> tuple[Program, dict[int, int]]:
    """A market split: some equations that no values keep, though fractions do; searching it takes many steps."""
    program = Program([1] * 24)
    slack = []
    for row in range(3):
        weights = {amount: (amount * 37 + row * 53 + amount * amount * 11) % 97 + 1 for amount in range(24)}
        half = sum(weights.values()) // 2
        more, less = program.amount(10_000), program.amount(10_000)
        slack += [more, less]
        program.at_most(weights | {more: 1, less: -1}, half)
        program.at_most(
            {amount: -weight for amount, weight in (weights | {more: 1, less: -1}).items()}, -half
        )
    return program, dict.fromkeys(slack, 1)


def test_at_the_bound_the_gap_is_told():
    """A search that is given up has an answer, a bound below it, and both are the same every time."""
    program, goal = hard()
    start = [0] * len(program.limits)
    for row in range(3):  # nothing chosen: all of each half is missing
        start[24 + 2 * row] = program.rows[2 * row].most
    assert program.holds(start)
    found = highs(program, goal, start, steps=1)
    assert program.holds(found.values)
    assert found.bound < total(goal, found.values) < total(goal, start)
    assert highs(program, goal, start, steps=1) == found


def test_without_the_library(monkeypatch):
    """What is missing is said."""
    monkeypatch.setattr(solver, "find_spec", lambda name: None)
    solver._library.cache_clear()
    with pytest.raises(SolverFailed, match="the library of highspy is not installed"):
        highs(Program([1]), {0: -1}, [0])
    monkeypatch.undo()
    solver._library.cache_clear()
    assert highs(Program([1]), {0: -1}, [0]).values == (1,)


def test_a_program_that_makes_no_sense():
    """A row that names an amount which is not there is refused, not a crash."""
    program = Program([1])
    program.at_most({7: 1}, 0)
    with pytest.raises(SolverFailed, match="refused"):
        highs(program, {0: -1}, [0])
