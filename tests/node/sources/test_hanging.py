"""Calls of NVML that do not come back: they hold up the card that they concern alone, and are reported."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

import pytest

from tessera.core.devices.device import Device
from tessera.node.sources import SourceFailed
from tessera.node.sources.asking import Asker
from tessera.node.sources.nvml_library import NvmlEvent, NvmlLibrary
from tests.node.sources.fake_pynvml import FakePynvml
from tests.node.sources.test_nvml import Clock, problems, resources, source

WORDS = "has not answered for more than 10 s, in {}"
WORN = "row remapping failed: the card's memory is worn out"  # the fake's cards are


class Patience:
    """Time passes only while something is waited for that hangs."""

    def __init__(self, stuck: Callable[[int], bool]) -> None:
        self.clock = Clock()
        self._stuck = stuck
        self._askers: list[Asker] = []

    def asker(self) -> Asker:
        self._askers.append(Asker(self.clock, self._wait))
        return self._askers[-1]

    def _wait(self, answer: "Future[object]", seconds: float) -> None:
        (one,) = [one for asker in self._askers for one in asker._open.values() if one.answer is answer]
        while not answer.done():
            if self._stuck(one._thread):
                self.clock.now += seconds
                return
            wait([answer], 0.001)


class Node:
    """Two cards with a slice each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = FakePynvml()
        self.fake.cards, self.fake.events = ["card", "card1"], []
        monkeypatch.setitem(sys.modules, "pynvml", self.fake)
        patience = Patience(lambda thread: thread in self.fake.stuck)
        self.clock = patience.clock
        self.nvml = NvmlLibrary(asker=patience.asker)
        self.failed: list[str] = []
        self.gpus = source(self.nvml, clock=self.clock, failed=self.failed.append)

    def poll(self, seconds: float = 1.0) -> list[Device]:
        self.clock.now += seconds
        return [*self.gpus.devices()]

    @property
    def threads(self) -> int:
        return len(self.fake.stuck)

    @contextmanager
    def hanging(self, what: str) -> Iterator[None]:
        """Calls do not come back before the end of the block; nothing is under way after it."""
        self.fake.hangs[what] = event = threading.Event()
        try:
            yield
        finally:
            del self.fake.hangs[what]
            event.set()
            while self.nvml._driver.at_work or self.nvml._readers.at_work:
                wait([Future()], 0.001)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetMigMode"])
def test_fault_50_a_read_that_hangs_holds_up_its_card_alone(
    node: Node, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The poll waits a second for it. After ten the card is unhealthy with the call's name, and counted; the other is read as ever.

    The card is not asked again before the call has come back, and healthy at the next poll then.
    """
    caplog.set_level(logging.INFO)
    before = node.poll()
    assert problems(before) == {"MIG-x": WORN, "MIG-x1": WORN}
    with node.hanging(f"card1 {call}"):
        at = node.clock.now
        assert node.poll(10) == before
        assert node.clock.now == at + 11
        assert node.poll() == before
        node.fake.answers["card"] = 15
        assert problems(node.poll()) == {"MIG-x": "does not answer: error 15", "MIG-x1": WORN}
        del node.fake.answers["card"]
        node.poll(7)
        assert problems(node.poll(0)) == {"MIG-x": WORN, "MIG-x1": WORDS.format(call)}
        assert resources(node.poll()) == resources(before)
        assert (node.threads, node.failed) == (1, ["nvml"])
        assert f"NVML, card 1: {WORDS.format(call)}; the rest goes on without it" in caplog.messages
    assert node.poll() == before
    assert node.failed == ["nvml"]
    assert "NVML, card 1: has answered" in caplog.messages


def test_fault_50_a_card_that_hangs_from_the_start(node: Node) -> None:
    """The others are offered after ten seconds; it is shown by its number, as a card that is lost is, until it answers."""
    with node.hanging("card1"):
        at = node.clock.now
        first = node.poll(0)
        assert node.clock.now == at + 10
        assert resources(first) == [("nvidia.com/mig-1g.18gb.me", "MIG-x"), ("nvidia.com/gpu", "card-1")]
        assert problems(first) == {"MIG-x": WORN, "card-1": WORDS.format("nvmlDeviceGetHandleByIndex")}
        assert node.poll(0) == first
        assert node.clock.now == at + 10
    assert [name for _, name in resources(node.poll())] == ["MIG-x", "MIG-x1"]


def test_fault_50_a_call_that_concerns_every_card(node: Node) -> None:
    """Then all of them are unhealthy with its name, and healthy when it comes back."""
    before = node.poll()
    with node.hanging("driver nvmlDeviceGetCount"):
        assert node.poll(10) == before
        node.poll(9)
        words = WORDS.format("nvmlDeviceGetCount")
        assert problems(node.poll(0)) == {"MIG-x": words, "MIG-x1": words}
        assert node.threads == 1
    assert node.poll() == before


def test_fault_50_a_driver_that_does_not_open(node: Node) -> None:
    """Nothing is known then, and that is said; it is not opened a second time meanwhile."""
    with node.hanging("driver nvmlInit"):
        for _ in range(2):
            with pytest.raises(SourceFailed, match=f"^NVML {WORDS.format('nvmlInit')}$"):
                node.poll()
        assert (node.threads, node.failed) == (1, ["nvml"])
    assert len(node.poll()) == 2
    assert node.fake.open == 1


def test_events_that_hang_do_not_keep_the_cards_from_being_read(node: Node) -> None:
    """What went wrong is heard when the call has come back."""
    node.fake.events = FakePynvml().events
    with node.hanging("events"):
        before = node.poll()
        node.fake.answers["card1"] = 15
        assert problems(node.poll(11)) == {"MIG-x": WORN, "MIG-x1": "does not answer: error 15"}
        node.fake.answers.clear()
        assert node.poll() == before
        assert node.failed == ["nvml"]
    assert node.nvml.events() == [NvmlEvent("GPU-x", None, 79)]


def test_the_library_stays_open_while_a_call_hangs(node: Node) -> None:
    """Whoever shuts it down meanwhile would take it from under the call."""
    node.poll()
    with node.hanging("card1"):
        node.poll(10)
        node.nvml.close()
        assert node.fake.open == 1
    node.nvml.close()
    assert node.fake.open == 0
    assert len(node.poll(10)) == 2


def test_an_answer_from_before_a_cut_is_void(node: Node) -> None:
    """A slow card that was cut meanwhile is asked again: what it said before is no longer so."""
    node.poll()
    with node.hanging("card1 nvmlDeviceGetMigMode"):
        node.poll(10)
        node.nvml.cards(busy={"GPU-x1"})
    node.fake.answers["card1 nvmlDeviceGetMigMode"] = 3
    assert [card.mig_enabled for card in node.nvml.cards()] == [True, False]
