"""How loops wait between two rounds."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.kube.clock import CONFLICTS, Backoff, Clock
from tessera.kube.errors import ApiError, KubeError

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
    clock: Clock,
) -> None:
    """Reconcile whenever `changed` is set, until cancelled; retry a failure after a while."""
    conflicts = Backoff(*CONFLICTS, jitter=0.0)
    while True:
        await changed.wait()
        changed.clear()
        try:
            await reconcile()
            backoff.reset()
            conflicts.reset()
        except (KubeError, InvalidInput) as error:
            failed(error)
            is_conflict = isinstance(error, ApiError) and error.is_conflict
            await clock.sleep((conflicts if is_conflict else backoff).next())
            changed.set()
