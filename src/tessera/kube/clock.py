"""Time, asked of one object: tests bring a clock of their own and never wait. And what goes by it.

That is how to wait for the first of several things, when failed work is tried again, and how often the log hears of it.
Also how two clocks differ: this machine's, and the API server's.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Container, Coroutine, Hashable
from contextlib import suppress
from math import inf
from typing import Any, Final, NamedTuple

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


# as client-go's reflector: 0.8 s, doubling, to 30 s; a quarter more or less, so that many clients do not move as one
_FIRST: Final = 0.8
_LONGEST: Final = 30.0
_JITTER: Final = 0.25

# Seconds, doubling from the first to the second, for an object whose writes the API server answers with a conflict. A try
# may read and write: that makes at most ten requests in the first minute, and one a minute in the end.
CONFLICTS: Final = (2.0, 120.0)


class Backoff:
    """Waits that double from failure to failure and begin again after a success."""

    def __init__(
        self,
        first: float = _FIRST,
        longest: float = _LONGEST,
        jitter: float = _JITTER,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`first` and `longest`: seconds; `jitter`: which part of a wait may be more or less."""
        self._first = self._next = min(first, longest)
        self._longest = longest
        self._jitter = jitter
        self._uniform = uniform

    def next(self) -> float:
        """Seconds to wait now."""
        wait = self._next * (self._uniform(1 - self._jitter, 1 + self._jitter) if self._jitter else 1.0)
        self._next = min(2 * self._next, self._longest)
        return wait

    def reset(self) -> None:
        self._next = self._first


class _Wait(NamedTuple):
    until: float
    seconds: float  # how long the last wait after a failure was; the next is twice as long
    reason: str


class Retries:
    """When what failed is tried again, and why it waits: each thing by itself, so that none waits for another."""

    def __init__(self, now: Callable[[], float], first: float, longest: float) -> None:
        """`now`: a clock that never jumps; `first` and `longest`: seconds from a failure to the next try, doubling."""
        self._now = now
        self._first, self._longest = first, longest
        self._waits: dict[Hashable, _Wait] = {}

    def put_off(self, what: Hashable, reason: str = "") -> float:
        """It failed: leave it alone, longer each time; returns for how many seconds."""
        wait = self._waits.get(what)
        seconds = self._first if wait is None else min(2 * wait.seconds, self._longest)
        self._waits[what] = _Wait(self._now() + seconds, seconds, reason)
        return seconds

    def let_be(self, what: Hashable, seconds: float, reason: str = "") -> None:
        """Leave it alone for so long at least; after the next failure the first wait is short again."""
        wait = self._waits.get(what)
        until = self._now() + seconds
        self._waits[what] = _Wait(max(wait.until, until) if wait else until, self._first / 2, reason)

    def forget(self, what: Hashable) -> None:
        """It went well."""
        self._waits.pop(what, None)

    def clear(self) -> None:
        self._waits.clear()

    def is_due(self, what: Hashable) -> bool:
        wait = self._waits.get(what)
        return wait is None or wait.until <= self._now()

    def has_failed(self, what: Hashable) -> bool:
        """Whether it was put off lately."""
        return what in self._waits

    def reason_to_wait(self, what: Hashable) -> str:
        """Why it is left alone now; empty when it is due."""
        return "" if self.is_due(what) else self._waits[what].reason

    def next(self) -> float | None:
        """Seconds until something is due; None where nothing waits."""
        now = self._now()
        return min((wait.until - now for wait in self._waits.values() if wait.until > now), default=None)

    def forget_old(self) -> None:
        """Forget what was due long ago: it was done, or is not needed."""
        oldest = self._now() - self._longest
        self._waits = {what: wait for what, wait in self._waits.items() if wait.until > oldest}


class _Said(NamedTuple):
    text: str
    at: float
    in_round: int


class Once:
    """What is logged once for as long as it lasts: a text by subject, and again when the text changes.

    The caller logs: `if once.begin(why): log.warning(…)`, and where its end is worth a line, `if once.end(): log.info(…)`.
    """

    def __init__(self, now: Callable[[], float] = SYSTEM_CLOCK.now, repeat: float = inf) -> None:
        """`repeat`: seconds after which the same text is logged again."""
        self._now = now
        self._repeat = repeat
        self._round = 0
        self._said: dict[Hashable, _Said] = {}

    def begin(self, text: str, subject: Hashable = "") -> bool:
        """From now on this is so; returns whether to log it."""
        now, said = self._now(), self._said.get(subject)
        is_new = said is None or said.text != text or now >= said.at + self._repeat
        at = now if said is None or is_new else said.at
        self._said[subject] = _Said(text, at, self._round)
        return is_new

    def end(self, subject: Hashable = "") -> bool:
        """It is over, and is logged when it begins again; returns whether it had begun."""
        return self._said.pop(subject, None) is not None

    def text(self, subject: Hashable = "") -> str:
        """What is so; empty when it is over."""
        said = self._said.get(subject)
        return said.text if said else ""

    def keep(self, subjects: Container[Hashable]) -> None:
        """All other subjects are over."""
        self._said = {subject: said for subject, said in self._said.items() if subject in subjects}

    def round_over(self) -> None:
        """What has not begun again since the last round was over is over."""
        self._said = {subject: said for subject, said in self._said.items() if said.in_round == self._round}
        self._round += 1

    def forget_old(self) -> None:
        """Free the memory of what would be logged again anyway."""
        now = self._now()
        self._said = {subject: said for subject, said in self._said.items() if now < said.at + self._repeat}


class Failures:
    """What goes wrong in a loop that goes on: each failure is counted, and is logged once for as long as it lasts."""

    def __init__(
        self,
        logger: logging.Logger,
        count: Callable[[str], object],
        now: Callable[[], float] = SYSTEM_CLOCK.now,
        repeat: float = inf,
    ) -> None:
        """`count` gets the word under which a failure is counted; `repeat`: seconds until the same is logged again."""
        self._log = logger
        self._count = count
        self._once = Once(now, repeat)

    def add(self, what: str, message: str, error: Exception, subject: str = "") -> None:
        """Something failed that will be tried again. The message has a %s for the subject, if there is one, and one for the error."""
        if self._begins(what, str(error), subject or what):
            self._log.warning(message, *([subject] if subject else []), error)

    def went_well(self, subject: str) -> None:
        """What goes wrong from now on is logged."""
        self._once.end(subject)

    def round_over(self) -> None:
        """The loop has come round: what did not fail this time is logged when it fails again."""
        self._once.round_over()

    def _begins(self, what: str, text: str, subject: str) -> bool:
        self._count(what)
        if is_new := self._once.begin(text, subject):
            self._once.forget_old()
        return is_new
