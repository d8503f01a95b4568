"""What `make bench-check` lets through."""

import pytest
from benchmarks.aims import GUARDS, Guard, Measure

from benchmarks import full

MEASURE = Measure("run", "case", "unit", "subject")


@pytest.mark.parametrize(
    ("guard", "value", "recorded", "holds"),
    [
        (Guard(MEASURE, 0.1), 1.1, 1.0, True),
        (Guard(MEASURE, 0.1), 1.2, 1.0, False),
        (Guard(MEASURE, 0.1, higher_is_better=True), 0.8, 1.0, False),
        (Guard(MEASURE, 0.1, at_most=2), 1.9, 1.8, True),
        (Guard(MEASURE, 0.1, at_most=2), 2.1, 2.0, False),
        (Guard(MEASURE, 0.1, at_most=2), 2.1, 3.0, False),
        (Guard(MEASURE, 0.1, at_most=2), 1.5, 1.0, False),
    ],
)
def test_a_guard(guard, value, recorded, holds):
    """A value may be worse than the recorded one by the tolerance, and never beyond the bound."""
    assert guard.holds(value, recorded) is holds


def test_a_decision_by_what_is_free_is_guarded_in_every_corpus():
    """It takes at most twice what a decision by what is offered takes, on every cluster, with one profile and with two."""
    guarded = {one.measure.what for one in GUARDS if one.measure.run == full.RUN and one.at_most == 2}
    assert guarded == set(full.CASES)
    assert len(guarded) == len(full.CLUSTERS) * 4
