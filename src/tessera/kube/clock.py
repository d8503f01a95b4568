"""Time, asked of one object: tests bring a clock of their own and never wait. How long to wait after a failure, and for the first of several things.

Also how two clocks differ: this machine's, and the API server's.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

# as client-go's reflector: 0.8 s, doubling, to 30 s; a quarter more or less, so that many clients do not move as one
_FIRST: Final = 0.8
_LONGEST: Final = 30.0
_JITTER: Final = 0.25

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


class Backoff:
    """Waits that double from failure to failure and begin again after a success."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._next = _FIRST

    def next(self) -> float:
        """Seconds to wait now."""
        wait = self._next * self._uniform(1 - _JITTER, 1 + _JITTER)
        self._next = min(2 * self._next, _LONGEST)
        return wait

    def reset(self) -> None:
        self._next = _FIRST


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
