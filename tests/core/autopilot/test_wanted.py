"""What pods want, in order, and how much each want counts."""

import pytest

from tessera.core.autopilot.values import Kind, Want
from tessera.core.autopilot.wanted import wanted
from tessera.core.mig.profile import MigProfile

PROFILE = MigProfile.parse("1g.10gb")
NOW = 1_000_000.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("hours", "priority", "kind", "weight"),
    [
        (0, 0, Kind.WAITING, 1.0),
        (6, 0, Kind.WAITING, 2.0),
        (0, 1, Kind.WAITING, 2.0),
        (0, -1, Kind.WAITING, 0.5),
        (0, 0, Kind.FELL_BACK, 0.25),
        (6, 1_000_000, Kind.WAITING, 4.0),
        (-1, 0, Kind.WAITING, 1.0),  # a clock that was ahead
    ],
)
def test_how_much_a_want_counts(hours: float, priority: int, kind: Kind, weight: float) -> None:
    """More as it grows older, twice with a priority above 0, half with one below, a quarter for a pod that
    fell back and runs."""
    want = Want(PROFILE, "team", NOW - hours * HOUR, kind=kind, priority=priority)
    assert [*wanted([want], 8, NOW).queues[PROFILE].weights] == [weight]
