"""Looking once a second, and what is said about it: the same for every protocol."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from tessera.core.devices.device import Device, by_resource

log = logging.getLogger(__name__)

TICK: Final = 1.0  # seconds between looks


async def either(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or for so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def log_health(before: Iterable[Device], after: Iterable[Device]) -> None:
    """One line per resource whose devices fell ill or recovered."""
    earlier = {device.key: device.problem for device in before}
    for resource, devices in by_resource(after).items():
        changed = [device for device in devices if device.problem != earlier.get(device.key, "")]
        ill = [f"{device.id}: {device.problem}" for device in changed if device.problem]
        well = [device.id for device in changed if not device.problem]
        if ill:
            more = f" (and {len(ill) - 3} more)" if len(ill) > 3 else ""
            log.warning("%s: %d unhealthy: %s%s", resource, len(ill), "; ".join(ill[:3]), more)
        if well:
            log.info("%s: %d healthy again: %s", resource, len(well), ", ".join(well[:3]))
