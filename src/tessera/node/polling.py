"""How loops wait between two rounds."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.kube.errors import KubeError
from tessera.kube.failures import Backoff

TICK: Final = 1.0  # seconds between polls


@dataclass(frozen=True, slots=True)
class NotPublished:
    """What the sources say could not be put in place: the devices are as they were, and it will be tried again."""

    reason: str


async def reconciling(
    changed: asyncio.Event,
    reconcile: Callable[[], Awaitable[None]],
    failed: Callable[[Exception], object],
    backoff: Backoff,
) -> None:
    """Reconcile whenever `changed` is set, until cancelled; retry a failure after a while."""
    while True:
        await changed.wait()
        changed.clear()
        try:
            await reconcile()
            backoff.reset()
        except (KubeError, InvalidInput) as error:
            failed(error)
            await asyncio.sleep(backoff.next())
            changed.set()
