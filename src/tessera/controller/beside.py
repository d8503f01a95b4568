"""Long work that only computes, done in a thread beside the loop: the Lease is renewed and probes are answered meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_LONGEST: Final = 120.0  # seconds; the longest work takes some 10 (the first look at 4,000 nodes)
_EARLIER: Final = 10.0  # seconds in which work ends whose caller was cancelled


class TooLong(Exception):
    """Work that was given up: a bug. Its thread still runs."""


class Beside:
    """Does one thing at a time. What it computes from must not change meanwhile; what it finds is lost where the caller is cancelled."""

    def __init__(self) -> None:
        self._work: asyncio.Future[Any] | None = None  # the last

    async def do(self, work: Callable[[], T]) -> T:
        """What the work finds, or raises; `TooLong` after two minutes, and as long as earlier work has not ended."""
        if self._work is not None:  # it was given up, or its caller was cancelled
            await _done(self._work, _EARLIER)
        self._work = task = asyncio.ensure_future(asyncio.to_thread(work))
        task.add_done_callback(lambda one: one.cancelled() or one.exception())  # perhaps nobody asks for it
        await _done(task, _LONGEST)
        self._work = None
        return task.result()


async def _done(task: "asyncio.Future[Any]", seconds: float) -> None:
    if not (await asyncio.wait([task], timeout=seconds))[0]:
        raise TooLong(f"what runs beside the loop has not ended after {seconds:g} s")
