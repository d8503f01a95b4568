"""How often is polled."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tessera.core.devices.device import Device, Transition
from tessera.node.assembly import NodeSources, Settings
from tessera.node.events import NodeEvents
from tessera.node.metrics import Metrics
from tessera.node.poller import Poller
from tessera.node.state import DeviceState


class Ended(Exception):
    """The test has seen enough."""


class Trying(Poller):
    """A poller whose devices can be put in place or not, as the test says; then it ends."""

    failure = "publish"

    def __init__(self, folder: Path, *, fails: Sequence[bool]) -> None:
        sources = NodeSources([])
        events = NodeEvents("node-1", lambda _: None)
        state = DeviceState(folder / "devices.json")
        super().__init__(sources, Settings("node-1", tick=0.5), state, Metrics(), events)
        self._fails = iter(fails)

    async def _put_in_place(self, wanted: list[Device]) -> Transition:
        self._sources.changed.set()  # what is put in place may come back as news
        match next(self._fails, None):
            case True:
                raise OSError("the disk is full")
            case False:
                return Transition(())
        raise Ended


def test_a_failing_step_is_tried_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 1, 2, 4, then every 5 ticks, whatever is news; a success makes it quick again."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("tessera.node.poller.asyncio.sleep", sleep)
    with pytest.raises(Ended):
        asyncio.run(Trying(tmp_path, fails=[False, *[True] * 6, False, True]).polling())
    assert slept == [0.5, 1, 2, 2.5, 2.5, 2.5, 0.5]
