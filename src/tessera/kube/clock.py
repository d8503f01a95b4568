"""Time, asked of one object: tests bring a clock of their own and never wait. Also how to wait for the first of several things.

And how two clocks differ: this machine's, and the API server's.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

_SPANS: Final = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


class Clock:
    """The machine's own clock."""

    def now(self) -> float:
        """Seconds that only ever grow; their zero means nothing."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970, which may jump: for expiry dates only."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK: Final = Clock()


def offset_between(date: float, asked: float, answered: float) -> float:
    """By how many seconds the API server is ahead of us: `date` is its clock, at some moment between two of ours."""
    return min(0.0, date - asked) or max(0.0, date - answered)


def offset_in_words(offset: float) -> str:
    """How this machine's clock and the API server's differ, which is so many seconds ahead."""
    length, name = next((one for one in _SPANS if abs(offset) >= 2 * one[0]), _SPANS[-1])
    side = "behind" if offset > 0 else "ahead of"
    return f"this machine's clock is {abs(offset) / length:.0f} {name} {side} the API server's"


async def either(event: asyncio.Event, seconds: float | None) -> None:
    """Until the event, or for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def first_of(*work: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
    """Wait until one of these is done, but no longer than `timeout` seconds; the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in tasks:
            one.cancel()
