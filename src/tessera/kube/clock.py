"""Time, asked of one object: tests bring a clock of their own and never wait."""

import asyncio
import time
from typing import Final


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
