"""Polling once a second, and what is logged about it: the same for every protocol."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.device import Device, by_resource

log = logging.getLogger(__name__)

TICK: Final = 1.0  # seconds between polls
_LONGEST_RETRY: Final = 5  # ticks between tries of what fails


@dataclass(frozen=True, slots=True)
class NotPublished:
    """What the sources say could not be put in place: the devices are as they were, and it will be tried again."""

    reason: str


async def either(event: asyncio.Event, seconds: float | None) -> None:
    """Until the event, or for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Pace:
    """How long a loop rests between two polls: a tick, or until there is news.

    After a failure it rests longer each time, and news do not wake it: what a failing step writes may come back as news.
    """

    def __init__(self, news: asyncio.Event, tick: float) -> None:
        self._news = news
        self._tick = tick
        self._ticks = 1  # after the next failure

    async def rest(self, *, failed: bool) -> None:
        """Rest after a poll."""
        delay = self.delay(failed=failed)
        await (asyncio.sleep(delay) if failed else either(self._news, delay))

    def delay(self, *, failed: bool) -> float:
        """Seconds to rest after a poll."""
        ticks = self._ticks if failed else 1
        self._ticks = min(2 * ticks, _LONGEST_RETRY) if failed else 1
        return self._tick * ticks


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
        """The loop has come round: what did not fail this time is news when it fails again."""
        self._last, self._now = self._now, {}


def with_health(devices: Iterable[Device], wanted: Iterable[Device]) -> tuple[Device, ...]:
    """Devices that stay as they are, with the health that the sources say now; one that they do not know is healthy."""
    health = {device.key: device.problem for device in wanted}
    return tuple(
        device if device.leaving else replace(device, problem=health.get(device.key, ""))
        for device in devices
    )


def log_health(before: Iterable[Device], after: Iterable[Device]) -> None:
    """One line per resource whose devices became unhealthy or recovered."""
    earlier = {device.key: device.problem for device in before}
    for resource, devices in by_resource(after).items():
        changed = [device for device in devices if device.problem != earlier.get(device.key, "")]
        unhealthy = [f"{device.id}: {device.problem}" for device in changed if device.problem]
        healthy = [device.id for device in changed if not device.problem]
        if unhealthy:
            more = f" (and {len(unhealthy) - 3} more)" if len(unhealthy) > 3 else ""
            log.warning("%s: %d unhealthy: %s%s", resource, len(unhealthy), "; ".join(unhealthy[:3]), more)
        if healthy:
            log.info("%s: %d healthy again: %s", resource, len(healthy), ", ".join(healthy[:3]))
