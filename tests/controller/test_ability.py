"""What keeps a reconciler from its work."""

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.controller.metrics import ControllerMetrics
from tessera.controller.reconciler import Reconciler, ReconcilerParts
from tessera.kube.watch.follow import Follower
from tests.kube.clock import FakeClock


class Lacking(Reconciler):
    """A reconciler that lacks these, one after the other, and follows nothing."""

    name = "lacking"

    def __init__(self, clock: FakeClock, said: Iterator[str]) -> None:
        client: Any = SimpleNamespace(clock=clock)
        parts = ReconcilerParts(
            client=client,
            follower=Follower(client),
            recorder=client,
            metrics=ControllerMetrics(),
            fence=lambda: None,
        )
        super().__init__(parts, "cannot work: %s")
        self._said = said

    def lacks(self) -> str:
        return next(self._said)

    async def reconcile(self) -> bool:
        return False

    async def rest(self, took: float) -> None:
        """There is nothing to wait for."""


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {one.levelno for one in caplog.records} <= {logging.WARNING}
    return [message.removeprefix("cannot work: ") for message in caplog.messages]


def test_it_is_logged_once_for_as_long_as_it_lasts(caplog):
    """Each thing that is lacking is one line, however long it is waited for; what was over and is back is a line again."""

    async def main():
        said = iter(["", "no pods", "no pods", "", "no pods", "no nodes", ""])
        reconciler = Lacking(FakeClock(auto=True), said)
        await reconciler.until_able()
        assert logged(caplog) == []
        await reconciler.until_able()
        assert logged(caplog) == ["no pods"]
        await reconciler.until_able()
        assert logged(caplog) == ["no pods", "no pods", "no nodes"]

    asyncio.run(main())


def test_a_wait_that_was_cancelled_goes_on(caplog):
    """The controller waits for the first that can work, and then has each wait for itself: what was logged is not logged again."""

    async def main():
        reconciler = Lacking(FakeClock(), iter(["no pods"] * 2))
        for _ in range(2):
            waiting = asyncio.ensure_future(reconciler.until_able())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert logged(caplog) == ["no pods"]
        assert next(reconciler._said, None) is None  # it was asked both times

    asyncio.run(main())
