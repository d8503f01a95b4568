"""What goes wrong in a reconciler: what ends it, what is counted, logged and tried again."""

import asyncio
from contextlib import nullcontext

import pytest

from tessera.controller.leader import LeadershipLost
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.reconciler import ReconcilerFailures, of_the_server, words
from tessera.core.errors import InvalidInput
from tessera.kube.errors import ApiError, BadResponse, Unreachable
from tests.kube.clock import FakeClock


def meet(error):
    raise error


def counted(metrics):
    return {labels["what"]: number for labels, number in metrics.failures.samples()}


def failures():
    clock, metrics = FakeClock(), ControllerMetrics()
    return ReconcilerFailures(clock, metrics), clock, metrics


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (LeadershipLost("another leads"), True),
        (asyncio.CancelledError(), True),
        (KeyboardInterrupt(), True),
        (ApiError(503, "", "etcd is away"), False),
        (InvalidInput("no number"), False),
        (ZeroDivisionError("a bug"), False),
        (ExceptionGroup("two", [ValueError(), KeyError()]), False),
    ],
)
def test_what_ends_a_reconciler(error, ends):
    """A lost Lease and a cancellation end it, and are not counted; nothing else does, a bug neither, and it is counted."""
    some, _, metrics = failures()
    with pytest.raises(type(error)) if ends else nullcontext(), some.survived("layout", "it") as tried:
        meet(error)
    assert tried.error is (None if ends else error)
    assert counted(metrics) == ({} if ends else {"layout": 1})


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ApiError(403, "Forbidden", "no"), False),
        (ApiError(429, "", "later"), True),
        (ApiError(503, "", "etcd is away"), True),
        (Unreachable("refused", "no"), True),
        (BadResponse("no JSON"), True),
        (InvalidInput("no number"), False),
        (ZeroDivisionError(), False),
    ],
)
def test_what_concerns_more_than_one_object(error, passes):
    """An API server that cannot be asked is met once, and not for each object."""
    some, _, metrics = failures()
    with (
        pytest.raises(type(error)) if passes else nullcontext(),
        some.survived("layout", "it", of_the_server),
    ):
        meet(error)
    assert bool(counted(metrics)) is not passes


def test_fault_68_a_bug_is_logged_once_an_hour_and_rests(caplog):
    """Its traceback is logged once, and again after an hour, after another error, or after it went well; what met it rests, up to half a minute. All are counted."""
    some, clock, metrics = failures()

    def logged(error):
        with some.survived("policy", "the autopilot"):
            if error is not None:
                meet(error)
        found, caplog.records[:] = [one.getMessage() for one in caplog.records], []
        return found

    bug, known = (
        "the autopilot: an unexpected error; will try again: ZeroDivisionError('x')",
        "the autopilot: no",
    )
    rests: list[float] = []
    for number in range(20):
        text = "x" if number == 0 else f"another text {number}"
        assert logged(ZeroDivisionError(text)) == ([] if rests else [bug])
        before = clock.time
        while some.rests("the autopilot"):
            clock.time += 0.1
        rests.append(clock.time - before)
    assert rests[0] < 1.1
    assert 20 < max(rests) < 40
    clock.time += 3600
    assert logged(ZeroDivisionError("x")) == [bug]
    assert logged(KeyError("y")) != []
    assert logged(None) == []
    assert not some.rests("the autopilot")
    assert logged(ZeroDivisionError("x")) == [bug]
    assert logged(InvalidInput("no")) == [f"{known}; will try again"]
    assert logged(InvalidInput("no")) == []
    assert counted(metrics) == {"policy": 25}


def test_a_bug_is_logged_with_its_traceback(caplog):
    """Who mends it sees where it was."""
    some, *_ = failures()
    with some.survived("policy", "it"):
        meet(ZeroDivisionError())
    assert "test_a_bug_is_logged_with_its_traceback" in caplog.text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidInput("coolDown: no time"), "coolDown: no time"),
        (KeyError("x"), "an unexpected error (KeyError); the controller's log has it"),
    ],
)
def test_what_a_status_says(error, text):
    """A sentence; of a bug, where to look for it, and nothing that it may have had in it."""
    assert words(error) == text
