"""How loops wait between two rounds, and what they log and count of failures."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.kube.errors import KubeError

TICK: Final = 1.0  # seconds between polls


@dataclass(frozen=True, slots=True)
class NotPublished:
    """What the sources say could not be put in place: the devices are as they were, and it will be tried again."""

    reason: str


async def reconciling(
    changed: asyncio.Event,
    reconcile: Callable[[], Awaitable[None]],
    failed: Callable[[Exception], object],
    retry: tuple[float, float],
) -> None:
    """Reconcile whenever `changed` is set, until cancelled; retry a failure after a delay that doubles from first to last."""
    first, longest = retry
    delay = first
    while True:
        await changed.wait()
        changed.clear()
        try:
            await reconcile()
            delay = first
        except (KubeError, InvalidInput) as error:
            failed(error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, longest)
            changed.set()


class Failures:
    """Counts every failure of a loop, and logs each once for as long as it lasts."""

    def __init__(self, logger: logging.Logger, count: Callable[[str], None]) -> None:
        """`count` gets the word under which a failure is counted."""
        self._log = logger
        self._count = count
        self._last: dict[str, str] = {}  # of the last round
        self._now: dict[str, str] = {}

    def add(self, what: str, message: str, error: Exception) -> None:
        """Something went wrong that will be tried again; the message has a %s for the error."""
        self._count(what)
        self._now[what] = str(error)
        if self._last.get(what) != self._now[what]:
            self._log.warning(message, error)

    def round_over(self) -> None:
        """The loop has come round: what did not fail this time is logged when it fails again."""
        self._last, self._now = self._now, {}
