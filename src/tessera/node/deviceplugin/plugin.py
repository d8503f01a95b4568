"""The device plugin: from what sources say to what the kubelet knows.

Two loops, each polling once a second and doing what is to be done. `polls` asks the sources, puts the CDI specs in
place, publishes, and yields what came of it; `run` keeps every resource registered. Nothing is remembered that cannot be
looked at again, so there is no missed event to recover from.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Device, DeviceSet, Handover, by_resource
from tessera.core.devices.transition import Transition, transition
from tessera.core.errors import InvalidInput
from tessera.core.text import first_of
from tessera.node.cdi import CdiDirectory
from tessera.node.deviceplugin.allocations import A_POD, Allocations, Holders
from tessera.node.deviceplugin.endpoint import Endpoint
from tessera.node.deviceplugin.service import ResourceService
from tessera.node.files import PREFIX
from tessera.node.metrics import Metrics
from tessera.node.polling import TICK, Failures, NotPublished, Pace, either, log_health, with_health
from tessera.node.rpc import remove_dead_sockets
from tessera.node.sources import Answers, Source, SourceFailed
from tessera.node.state import DeviceState, Key, rebuilt, unknown

log = logging.getLogger(__name__)

_RECALL: Final = (
    3.0  # seconds for which a device that a layout took can come back: the kubelet chose it before it knew
)
_TIMEOUT: Final = 60.0  # seconds: a loop that has not come round for that long hangs


class Plugin:
    """Everything between the sources of devices and the kubelet."""

    def __init__(
        self,
        *,
        sources: Sequence[Source],
        kubelet_dir: Path,
        cdi: CdiDirectory,
        state: DeviceState,
        holders: Holders,
        metrics: Metrics,
        possible: Callable[[], Sequence[Device]] = tuple,
        handover: Handover = Handover.CDI,
        changed: asyncio.Event | None = None,
        tick: float = TICK,
    ) -> None:
        """`possible`: every device that the cards could have, whatever their layout.

        `changed` is set by a source that has news, so that the next poll need not wait for its second.
        """
        self._sources = Answers(sources)
        self._folder = kubelet_dir / "device-plugins"
        self._cdi = cdi
        self._state = state
        self._possible = possible
        self._metrics = metrics
        self._handover = handover
        self._tick = tick
        self._holders = holders
        self._allocations = Allocations(kubelet_dir, holders, self._send_again)
        self._endpoints: dict[str, Endpoint] = {}
        self._devices: tuple[Device, ...] = ()
        self._known = False  # whether it is known which devices the last run had
        self._published = False
        self._wanted: Sequence[Device] = ()  # by the sources, at the last poll
        self._removed: dict[Key, tuple[Device, float]] = {}  # by a layout a moment ago, and when
        self._failures = Failures(log, metrics.failed)
        self._changed = changed or asyncio.Event()
        self._unregistered = asyncio.Event()  # set when a resource may be new
        self._beats = [time.monotonic(), time.monotonic()]

    @property
    def devices(self) -> tuple[Device, ...]:
        """What is published to the kubelet, leaving devices included."""
        return self._devices

    @property
    def state_error(self) -> str:
        """Why the devices of the last run could not be read, and had to be rebuilt; empty: they could."""
        return self._state.error

    @property
    def ready(self) -> bool:
        """Whether the kubelet knows all there is."""
        return self._published and all(endpoint.registered for endpoint in self._endpoints.values())

    @property
    def alive(self) -> bool:
        """Whether both loops still come round."""
        return time.monotonic() - min(self._beats) < _TIMEOUT

    async def in_use(self) -> frozenset[Key]:
        """The devices that pods hold, as far as it is known; those that are not proven free are among them."""
        keys = self._keys
        await self._allocations.settle(keys)
        return frozenset(self._allocations.held(keys))

    async def run(self) -> None:
        """Keep everything registered until cancelled; then end the registration.

        CDI specs stay: containers may yet restart.
        """
        remove_dead_sockets(self._folder, f"{PREFIX}*.sock")
        try:
            await self._ensure_registered()
        finally:
            await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    async def polls(self) -> AsyncIterator[Transition | NotPublished]:
        """Poll once a second, and sooner when a source has news; what came of it, if the sources could say."""
        loaded = self._state.load()
        self._devices, self._known = loaded or (), loaded is not None
        if self._state.error:
            self._metrics.failed("state")
        self._holders.load()
        self._hold_if_lost()
        pace = Pace(self._changed, self._tick)
        while True:
            self._changed.clear()
            result = await self._poll()
            if result is not None:
                yield result
            self._beats[0] = time.monotonic()
            await pace.rest(failed=isinstance(result, NotPublished))

    async def _ensure_registered(self) -> None:
        while True:
            self._unregistered.clear()
            await asyncio.gather(*(endpoint.ensure_registered() for endpoint in self._endpoints.values()))
            self._beats[1] = time.monotonic()
            await either(self._unregistered, self._tick)

    async def _poll(self) -> Transition | NotPublished | None:
        """Ask the sources; if the answer is news, write it to disk and then publish it to the kubelet."""
        wanted: Sequence[Device] | None = None
        try:
            wanted, failure = await self._sources.ask()
            if failure:
                self._failed("source", failure)
            if not self._known:
                await self._recover(wanted)
            if self._keys - {device.key for device in wanted}:
                await self._allocations.settle(self._keys)
            # from here to the end nothing is awaited: no Allocate can come between what is decided and what is published
            held = (
                self._allocations.held(self._keys) if self._keys - {device.key for device in wanted} else {}
            )
            self._wanted = wanted
            change = transition(self._devices, wanted, held)
            if change.devices != self._devices or not self._published or not self._cdi.intact():
                by_resource(
                    change.devices
                )  # an id that stands twice is an InvalidInput, before anything is written
                self._put_on_disk(change.devices)
                self._publish(change.devices)
        except SourceFailed as error:
            self._failed("source", error)
            return None
        except (InvalidInput, OSError) as error:
            self._failed("publish", error)
            if wanted is not None:
                self._keep(wanted)
            return NotPublished(str(error))
        finally:
            self._failures.round_over()
        return change

    async def _recover(self, wanted: Sequence[Device]) -> None:
        """Find out which devices the last run had, where its record is missing or cannot be read."""
        error, possible = self._state.error, self._possible()
        counted, listed = await self._allocations.counted(), self._allocations.listed
        if error and counted is None:
            raise InvalidInput(f"{error}; and the kubelet does not say which devices pods hold")
        if error and (strange := unknown(possible, listed)):
            raise InvalidInput(
                f"{error}; and nothing says where {first_of(strange, 3)} lies, which a pod holds"
            )
        # without a record that was there, the specs may be those of an earlier installation
        published = self._cdi.published() if error else frozenset[str]()
        self._devices, self._known = rebuilt((*possible, *wanted), counted or (), published), True
        self._holders.named(
            {key: listed.get(key, A_POD) for key in listed or counted or () if key in self._keys}
        )
        self._hold_if_lost()
        if self._devices:
            log.warning(
                "%d devices of the last run rebuilt from the kubelet's record and the CDI specs",
                len(self._devices),
            )

    def _hold_if_lost(self) -> None:
        """Without the record of holders every device counts as held, until the kubelet has not counted it for long enough."""
        if self._holders.lost:
            self._holders.grant(self._keys - self._holders.all)

    @property
    def _keys(self) -> frozenset[Key]:
        return frozenset(device.key for device in self._devices)

    def _keep(self, wanted: Sequence[Device]) -> None:
        """Publish what is there, with its health as it is now: after a restart that is what the last run left on disk."""
        kept = with_health(self._devices, wanted)
        if kept == self._devices and (self._published or not kept):
            return
        try:
            self._cdi.write(kept)
        except OSError:
            return  # a device is published only with its spec on disk
        self._publish(kept)

    def _recall(self, keys: frozenset[Key]) -> Collection[str]:
        """Of the devices that the kubelet chose, those that a layout took before the kubelet heard of it: they stay for the pod.

        One that is gone already comes back, unless a pod has been given what lies on its slices by now.
        """
        now = time.monotonic()
        gone = [
            one for key, (one, at) in self._removed.items() if key in keys - self._keys and at > now - _RECALL
        ]
        if gone and not self._bring_back(gone):
            return ()
        mine = {device.key for device in gone}
        return {
            device.id
            for device in self._devices
            if device.key in keys
            and device.leaving
            and (device.key in mine or device.key not in self._holders.all)
        }

    def _bring_back(self, gone: Sequence[Device]) -> bool:
        """Publish devices again that a layout took a moment ago; the devices that replaced them wait for the pod."""
        held = self._allocations.held(self._keys)
        if any(one.overlaps(other) for one in gone for other in self._devices if other.key in held):
            return False
        change = transition((*self._devices, *gone), self._wanted, held | {one.key: A_POD for one in gone})
        try:
            self._put_on_disk(change.devices)
        except OSError as error:
            log.warning("devices that the kubelet chose cannot come back: %s", error)
            return False
        self._holders.grant(one.key for one in gone)
        self._publish(change.devices)
        log.info("back for a pod that the kubelet chose them for: %s", ", ".join(one.id for one in gone))
        return True

    def _put_on_disk(self, devices: tuple[Device, ...]) -> None:
        """CDI specs for the runtime, and what a restart must know; both, or neither and an OSError."""
        self._cdi.write(devices)
        if not self._state.save(devices) and self._devices:
            self._cdi.write(self._devices)
            raise OSError(
                "a restart would not know these devices, and could give a pod's slices to another pod"
            )

    def _send_again(self) -> bool:
        """Send the devices of one resource to the kubelet once more; False when it listens to none."""
        streams = next((one.service.streams for one in self._endpoints.values() if one.service.streams), None)
        if streams:
            streams.send()
        return bool(streams)

    def _failed(self, what: str, error: Exception) -> None:
        self._failures.add(what, "devices stay as they were, will try again: %s", error)

    def _publish(self, devices: tuple[Device, ...]) -> None:
        log_health(self._devices if self._published else (), devices)
        now, there = time.monotonic(), {device.key for device in devices}
        self._removed = {key: one for key, one in self._removed.items() if one[1] > now - _RECALL}
        self._removed |= {
            one.key: (one, now) for one in self._devices if one.healthy and one.key not in there
        }
        self._devices, self._published = devices, True
        sets = by_resource(devices)
        for resource in sets.keys() - self._endpoints.keys():
            service = ResourceService(
                resource,
                self._allocations,
                self._holders,
                self._handover,
                self._metrics,
                lambda: self._devices,
                self._recall,
            )
            self._endpoints[resource] = Endpoint(service, self._folder, self._metrics)
        for resource, endpoint in self._endpoints.items():
            # a resource that has gone is published as an empty list: the node then has none of it at once
            endpoint.service.publish(sets.get(resource, DeviceSet(resource)))
        self._metrics.devices(devices, self._endpoints)
        self._unregistered.set()
