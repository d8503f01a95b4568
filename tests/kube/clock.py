"""A clock for tests: time passes when the test says so, or at once."""

import asyncio
import heapq

from tessera.kube.clock import Clock


class FakeClock(Clock):
    """Sleepers wake when the clock is advanced past their time; with `auto`, sleeping takes no time at all."""

    def __init__(self, *, auto: bool = False, wall: float = 1_800_000_000.0) -> None:
        self.time = 1000.0
        self.offset = wall - self.time
        self.auto = auto
        self.slept: list[float] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._asleep = asyncio.Event()

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time + self.offset

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.auto:
            self.time += seconds
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self.time + seconds, self._count, future))
        self._asleep.set()
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass; each sleeper that wakes runs before the next one does."""
        end = self.time + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            self.time, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        self.time = end

    async def until_asleep(self, seconds: float | None = None) -> None:
        """Wait until there is a sleeper, for so long from now on if that is given."""
        while not any(
            (seconds is None or abs(at - self.time - seconds) < 1e-6) and not future.done()
            for at, _, future in self._sleepers
        ):
            self._asleep.clear()
            await self._asleep.wait()

    async def pass_sleep(self, seconds: float) -> None:
        """Wait until there is a sleeper for so long, and let that time pass."""
        await self.until_asleep(seconds)
        await self.advance(seconds)
