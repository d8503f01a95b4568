"""What the device plugin and the DRA driver do alike: poll the sources, put in place what they say, and report the result.

Nothing is remembered that cannot be read again, so there is no missed event to recover from. The one exception are the devices
of the last run: they are on disk, and a start begins with them.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tessera.core.devices.device import Device, Transition
from tessera.core.errors import InvalidInput
from tessera.kube.clock import Backoff, Failures, either
from tessera.kube.errors import KubeError
from tessera.node.assembly import NodeSources, Settings
from tessera.node.events import STATE_UNREADABLE, NodeEvents
from tessera.node.metrics import NodeMetrics
from tessera.node.polling import NotPublished
from tessera.node.rpc import CallFailed
from tessera.node.sources import SourceFailed
from tessera.node.state import DeviceState

log = logging.getLogger(__name__)

TIMEOUT: Final = 60.0  # seconds: a loop that has not come round for that long hangs
_LONGEST_RETRY: Final = 5  # ticks between tries of what fails
NOT_SAVED: Final = "a restart would not know these devices, and could give a pod's slices to another pod"


class Poller(ABC):
    """Polls the sources once a second, and sooner when one has changed."""

    failure: str  # the word under which it is counted that the devices could not be put in place

    def __init__(
        self,
        sources: NodeSources,
        settings: Settings,
        state: DeviceState,
        metrics: NodeMetrics,
        events: NodeEvents,
    ) -> None:
        self.beat = time.monotonic()  # when it last came round
        self._sources = sources
        self._settings = settings
        self._state = state
        self.metrics = metrics
        self._events = events
        self.devices: tuple[Device, ...] = ()  # what is there now, leaving devices included
        self._known = False  # whether it is known which devices the last run had
        self._failures = Failures(log, metrics.failed)

    async def polling(self) -> None:
        self._begin(await asyncio.to_thread(self._state.load))
        tick = self._settings.tick
        backoff = Backoff(tick, _LONGEST_RETRY * tick, jitter=0)
        while True:
            self._sources.changed.clear()
            result = await self._poll()
            if result is not None:
                self._sources.report(result)
                self._events.record_changes(self.devices, self._sources.layout_status)
            self.beat = time.monotonic()
            if isinstance(result, NotPublished):
                # a change does not wake it: what a failing step writes may come back as a change
                await asyncio.sleep(backoff.next())
            else:
                await either(self._sources.changed, tick)
                backoff.reset()

    def _begin(self, loaded: tuple[Device, ...] | None) -> None:
        """Begin with the devices of the last run; None: there is no record of them, or none that can be read."""
        self.devices, self._known = self._sources.begin(loaded or ()), loaded is not None
        if self._state.error:
            self.metrics.failed("state")
            self._events.warn(STATE_UNREADABLE, self._state.error)

    async def _poll(self) -> Transition | NotPublished | None:
        """Ask the sources and put in place what they say; None: they could not say."""
        try:
            wanted, failure = await self._sources.ask()
            if failure:
                self._failed("source", failure)
            return await self._put_in_place(wanted)
        except SourceFailed as error:
            self._failed("source", error)
            return None
        except (InvalidInput, OSError, KubeError, CallFailed) as error:
            self._failed(self.failure, error)
            return NotPublished(str(error))
        finally:
            self._failures.round_over()

    @abstractmethod
    async def _put_in_place(self, wanted: list[Device]) -> Transition:
        """Publish what is wanted and can be; where that fails, the devices stay as they were."""

    def _failed(self, what: str, error: Exception) -> None:
        self._failures.add(what, "devices stay as they were, will try again: %s", error)


def with_health(devices: Iterable[Device], wanted: Iterable[Device]) -> tuple[Device, ...]:
    """Devices that stay as they are, with the health that the sources say now; one that they do not know is healthy."""
    health = {device.key: device.problem for device in wanted}
    return tuple(
        device if device.leaving else replace(device, problem=health.get(device.key, ""))
        for device in devices
    )
