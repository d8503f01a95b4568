"""How often is polled, and what is logged of it."""

import asyncio
import logging

import pytest

from tessera.node.polling import Failures, Pace


def test_a_failing_step_is_tried_less_and_less_often() -> None:
    """1, 2, 4, then every 5 ticks; a success makes it quick again."""
    pace = Pace(asyncio.Event(), 1.0)
    assert [pace.delay(failed=failed) for failed in [False, *[True] * 6, False, True]] == [
        1, 1, 2, 4, 5, 5, 5, 1, 1,
    ]  # fmt: skip


def test_a_failure_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each kind for itself: two that last log two lines, however often they alternate; all are counted."""
    counted: list[str] = []
    failures = Failures(logging.getLogger("test"), counted.append)
    for disk in ("full", "full", "full", None, "full", "read-only"):
        failures.add("source", "source: %s", ValueError("away"))
        if disk:
            failures.add("disk", "disk: %s", ValueError(disk))
        failures.round_over()
    assert caplog.messages == ["source: away", "disk: full", "disk: full", "disk: read-only"]
    assert (counted.count("source"), counted.count("disk")) == (6, 5)
