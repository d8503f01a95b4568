"""When what failed is tried again."""

from tessera.controller.retries import Retries
from tests.kube.clock import FakeClock


def test_when_it_is_tried_again():
    """After one second, two, four, to five minutes, each thing by itself; what was not wanted for long is forgotten."""
    clock = FakeClock()
    retries = Retries(clock, 1.0, 300.0)
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
    retries.put_off("a")
    assert retries.next() == 1.0
    assert retries.has_failed("a")
    retries.forget("a")
    assert retries.is_due("a")
    assert not retries.has_failed("a")
