"""Time, as a port: tests bring a clock of their own and never wait."""

import asyncio
import time
from typing import Final, Protocol


class Clock(Protocol):
    """What the reflectors and the client need of time."""

    def now(self) -> float:
        """Seconds that only ever grow; their zero means nothing."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, which may jump: for expiry dates only."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
