"""When what failed is tried again, and what is logged of it."""

import logging
from itertools import pairwise

import pytest

from tessera.kube.clock import CONFLICTS, Backoff, Failures, Once, Retries
from tests.kube.clock import FakeClock


def test_when_it_is_tried_again():
    """After one second, two, four, to five minutes, each thing by itself; what was not wanted for long is forgotten."""
    clock = FakeClock()
    retries = Retries(clock.now, 1.0, 300.0)
    assert retries.next() is None
    waits = []
    for _ in range(11):
        retries.put_off("a")
        waits.append(retries.next() or 0.0)
        assert not retries.is_due("a")
        assert retries.is_due("b")
        clock.time += waits[-1]
        assert retries.is_due("a")
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    retries.let_be("b", 60.0)
    retries.let_be("b", 1.0)
    assert retries.next() == 60.0
    clock.time += 400
    assert retries.next() is None
    retries.forget_old()
    retries.put_off("a")
    assert retries.next() == 1.0
    assert retries.has_failed("a")
    retries.forget("a")
    assert retries.is_due("a")
    assert not retries.has_failed("a")


def test_why_it_waits():
    """The reason of the last failure, while it waits; what is left alone for good has no next try."""
    clock = FakeClock()
    retries = Retries(clock.now, 2.0, 120.0)
    assert retries.put_off("a", "busy") == 2.0
    assert retries.reason_to_wait("a") == "busy"
    clock.time += 2
    assert retries.reason_to_wait("a") == ""
    assert retries.put_off("a", "still busy") == 4.0
    assert retries.reason_to_wait("a") == "still busy"
    retries.forget("a")
    assert retries.reason_to_wait("a") == ""
    retries.let_be("a", float("inf"), "broken")
    clock.time += 1e9
    assert retries.reason_to_wait("a") == "broken"
    retries.clear()
    assert retries.reason_to_wait("a") == ""


def test_an_object_under_conflicts_that_never_end():
    """At most five tries in the first minute, and one in two minutes in the end: a try may read and write."""
    clock, tries = FakeClock(), []
    retries = Retries(clock.now, *CONFLICTS)
    begin = clock.time
    while clock.time < begin + 3600:
        tries.append(clock.time - begin)
        clock.time += retries.put_off("node-1")
    assert [at for at in tries if at < 60] == [0, 2, 6, 14, 30]
    assert all(later - at >= 60 for at, later in pairwise(tries[5:]))
    assert tries[-1] - tries[-2] == 120


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(1.0, 5.0, jitter=0.0), [1, 2, 4, 5, 5]),
        (Backoff(2.0, 8.0, jitter=0.5, uniform=lambda least, most: most), [3, 6, 12, 12, 12]),
        (Backoff(2.0, 8.0, jitter=0.5, uniform=lambda least, most: least), [1, 2, 4, 4, 4]),
        (Backoff(2.0, 1.0, jitter=0.0), [1, 1, 1, 1, 1]),
    ],
)
def test_waits_double(backoff, waits):
    """From the first to the longest, a part more or less, and from the first again after a success."""
    assert [backoff.next() for _ in waits] == waits
    backoff.reset()
    assert backoff.next() == waits[0]


def test_it_is_logged_once_while_it_lasts():
    """Each subject by itself: again when the text changes, after its end, and after a while where that is wanted."""
    clock = FakeClock()
    once = Once(clock.now, repeat=600.0)
    assert not once.end()
    assert once.begin("away")
    assert once.begin("away", "node-1")
    clock.time += 599
    assert not once.begin("away")
    assert once.begin("full")
    assert once.text() == "full"
    clock.time += 1
    assert not once.begin("full")
    assert once.begin("away", "node-1")
    assert once.end()
    assert once.text() == ""
    assert once.begin("full")
    once.keep({"node-1"})
    assert once.begin("full")
    assert not once.begin("away", "node-1")
    clock.time += 600
    once.forget_old()
    assert once.text() == ""


def test_a_failure_that_lasts_is_logged_once(caplog):
    """Each kind for itself: two that last log two lines, however often they alternate; all are counted."""
    counted: list[str] = []
    failures = Failures(logging.getLogger("test"), counted.append)
    for disk in ("full", "full", "full", None, "full", "read-only"):
        failures.add("source", "source: %s", ValueError("away"))
        if disk:
            failures.add("disk", "%s: %s", ValueError(disk), subject="disk")
        failures.round_over()
    assert caplog.messages == ["source: away", "disk: full", "disk: full", "disk: read-only"]
    assert (counted.count("source"), counted.count("disk")) == (6, 5)
    failures.went_well("source")
    failures.add("source", "source: %s", ValueError("away"))
    assert caplog.messages[-1] == "source: away"
