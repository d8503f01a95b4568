"""Long work beside the loop."""

import asyncio
import threading
import time

import pytest

from tessera.controller import reconciler
from tessera.controller.reconciler import Beside, TooLong


def test_the_loop_goes_on_meanwhile():
    """Work of a second holds nothing up: what else the loop has to do comes within moments."""

    def work():
        time.sleep(1.0)  # in a thread
        return "found"

    async def main():
        working, ticks = asyncio.ensure_future(Beside().do(work)), 0
        while not working.done():
            await asyncio.sleep(0.005)
            ticks += 1
        assert await working == "found"
        assert ticks > 20

    asyncio.run(main())


def test_what_it_raises():
    """The caller meets it, and the next work is done."""

    async def main():
        one = Beside()
        with pytest.raises(ZeroDivisionError):
            await one.do(lambda: 1 / 0)
        assert await one.do(lambda: 1) == 1

    asyncio.run(main())


def test_a_caller_that_is_cancelled():
    """What was found is lost, also where it raises; the next work begins when that has ended: never two at a time."""

    async def main():
        one, gate, running = Beside(), threading.Event(), list[str]()

        def first():
            running.append("first")
            gate.wait(10)
            running.append("first ended")
            raise ZeroDivisionError

        caller = asyncio.ensure_future(one.do(first))
        while not running:
            await asyncio.sleep(0.001)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        following = asyncio.ensure_future(one.do(lambda: running.append("second")))
        await asyncio.sleep(0.01)
        assert running == ["first"]
        gate.set()
        await following
        assert running == ["first", "first ended", "second"]

    asyncio.run(main())


def test_work_that_does_not_end(monkeypatch):
    """It is given up, and nothing else is begun as long as its thread runs."""
    monkeypatch.setattr(reconciler, "_LONGEST_WORK", 0.01)
    monkeypatch.setattr(reconciler, "_EARLIER", 0.01)

    async def main():
        one, gate = Beside(), threading.Event()
        with pytest.raises(TooLong):
            await one.do(lambda: gate.wait(10))
        with pytest.raises(TooLong):
            await one.do(lambda: None)
        gate.set()
        monkeypatch.setattr(reconciler, "_EARLIER", 10)
        assert await one.do(lambda: 1) == 1

    asyncio.run(main())
