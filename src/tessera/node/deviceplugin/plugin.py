"""The device plugin: from what sources say to what the kubelet knows.

Two loops, each polling once a second and doing what is to be done: one asks the sources, puts the CDI specs in place and publishes;
the other keeps every resource registered.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from tessera.core.devices.device import Device, DeviceSet, Transition, by_resource, transition
from tessera.core.devices.held import published
from tessera.core.errors import InvalidInput
from tessera.core.planning.fragmentation import rooms
from tessera.core.text import first_of
from tessera.kube.clock import either
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.node.assembly import NodeSources, Settings, node_sources
from tessera.node.cdi import CdiDirectory
from tessera.node.deviceplugin.allocations import A_POD, GRACE, Allocations, Holders
from tessera.node.deviceplugin.endpoint import PluginEndpoint
from tessera.node.deviceplugin.service import ResourceService
from tessera.node.deviceplugin.withdrawn import Withdrawn
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.events import NodeEvents, log_health
from tessera.node.files import PREFIX
from tessera.node.metrics import Metrics
from tessera.node.poller import NOT_SAVED, TIMEOUT, Poller, with_health
from tessera.node.rpc import remove_dead_sockets
from tessera.node.sources.laid_out import LaidOutSource
from tessera.node.state import DeviceState, Key, rebuilt, unknown
from tessera.protocol.configuration.devices import DeviceConfiguration
from tessera.protocol.mig.nodes import IN_USE, encode_in_use

log = logging.getLogger(__name__)

_COMPONENT: Final = "tessera-device-plugin"  # that Events name
_HOLDERS_UNKNOWN: Final = "the kubelet does not say which devices pods hold"
_REPORT_TICKS: Final = (
    5  # between two readings of what pods hold, and so between two writes of it to the node
)


class Plugin(Poller):
    """Everything between the sources of devices and the kubelet."""

    failure = "publish"
    metrics: Metrics

    def __init__(
        self,
        configuration: DeviceConfiguration,
        settings: Settings,
        client: Client | None = None,
        sources: NodeSources | None = None,
    ) -> None:
        """`sources`: where they are not those of the configuration."""
        for name in ("simulated", "nvml"):
            cards = getattr(configuration, name)
            if cards and cards.dynamic is not None:
                raise InvalidInput(
                    f"{name}.partitioning: dynamic needs `tessera dra-driver`: a device plugin cannot cut slices on demand"
                )
        metrics = Metrics()
        self._recorder = Recorder(client, _COMPONENT, instance=settings.node) if client else None
        if self._recorder is not None:
            metrics.events = self._recorder.counts
        super().__init__(
            sources or node_sources(configuration, settings, metrics, client),
            settings,
            DeviceState(settings.state_dir / "devices.json"),
            metrics,
            NodeEvents(settings.node, self._recorder.record if self._recorder else lambda _: None),
        )
        self._folder = settings.kubelet_dir / "device-plugins"
        self._cdi = CdiDirectory(settings.cdi_dir)
        self._holders = Holders(settings.state_dir / "holders.json", grace=GRACE * settings.tick)
        self._allocations = Allocations(settings.kubelet_dir, self._holders, self._send_again)
        self._claims = PreparedClaims(settings.state_dir / "dra" / "claims")
        self._handover = configuration.handover
        self._endpoints: dict[str, PluginEndpoint] = {}
        self._published = False
        self._adopted = False  # whether it was asked which other devices of the cards pods hold
        self._wanted: Sequence[Device] = ()  # by the sources, at the last poll
        self._withdrawn = Withdrawn(self._folder, self._asked)
        self._unregistered = asyncio.Event()  # set when a resource may be new
        self._registered_at = time.monotonic()  # when the loop that registers last came round

    @property
    def ready(self) -> bool:
        """Whether the kubelet knows all there is."""
        return self._published and all(endpoint.registered for endpoint in self._endpoints.values())

    @property
    def alive(self) -> bool:
        return time.monotonic() - min(self.beat, self._registered_at) < TIMEOUT

    async def run(self) -> None:
        """Work until cancelled; then end the registration. CDI specs stay: containers may yet restart."""
        remove_dead_sockets(self._folder, f"{PREFIX}*.sock")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ensure_registered())
                tasks.create_task(self.polling())
                if self._recorder is not None:
                    tasks.create_task(self._recorder.run())
                if self._sources.laid_out is not None:
                    tasks.create_task(self._sources.laid_out.run())
                    tasks.create_task(self._report_use(self._sources.laid_out))
                changed = self._sources.changed if self._sources.cut_for_real else None
                tasks.create_task(self._withdrawn.watch(self._send, changed))
        finally:
            await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    async def _report_use(self, cards: LaidOutSource) -> None:
        """Publish what depends on which devices pods hold: the metric of fragmentation, and the node's annotation."""
        while True:
            await self._allocations.settle(self._keys)
            self.metrics.room(rooms(cards.use(self._allocations.held(self._keys))))
            if cards.link is not None:
                cards.link.annotate(IN_USE, None if self._settings.hide_in_use else self._in_use())
            await asyncio.sleep(_REPORT_TICKS * self._settings.tick)

    def _in_use(self) -> str | None:
        """Which devices pods hold, as the node says it; None: it is not known."""
        in_use = self._allocations.in_use(self._keys)
        return None if in_use is None else encode_in_use(published(self.devices, in_use))

    async def _ensure_registered(self) -> None:
        while True:
            self._unregistered.clear()
            await asyncio.gather(*(endpoint.ensure_registered() for endpoint in self._endpoints.values()))
            self._registered_at = time.monotonic()
            await either(self._unregistered, self._settings.tick)

    def _begin(self, loaded: tuple[Device, ...] | None) -> None:
        super()._begin(loaded)
        self._holders.load()
        self._hold_if_lost()

    async def _put_in_place(self, wanted: list[Device]) -> Transition:
        """If what is wanted has changed, write it to disk and then publish it to the kubelet."""
        wanted = await self._without_claimed(wanted)
        try:
            if not self._known:
                await self._recover(wanted)
            elif self._sources.cut_for_real and not self._adopted:
                await self._adopt()
            keys = {device.key for device in wanted}
            if self._keys - keys:
                await self._allocations.settle(self._keys)
            # from here to the end nothing is awaited: no Allocate can come between what is decided and what is published
            held = self._allocations.held(self._keys) if self._keys - keys else {}
            self._wanted = wanted
            change = transition(self.devices, wanted, held)
            if change.devices != self.devices or not self._published or not self._cdi.intact():
                by_resource(change.devices)  # raises if an id stands twice, before anything is written
                self._put_on_disk(change.devices)
                self._publish(change.devices)
        except (InvalidInput, OSError):
            self._keep(wanted)
            raise
        return replace(change, released=self._withdrawn.released)

    async def _without_claimed(self, wanted: list[Device]) -> list[Device]:
        """What is wanted; what a claim still has on a node that moved back from DRA is unhealthy: pods must not share it."""
        taken = await asyncio.to_thread(self._claims.taken, wanted)
        return [one.unhealthy(taken[one.key]) if one.key in taken else one for one in wanted]

    async def _recover(self, wanted: Sequence[Device]) -> None:
        """Find out which devices the last run had, where its record is missing or cannot be read."""
        error, possible = self._state.error, self._sources.possible()
        counted, listed = await self._allocations.counted(), self._allocations.listed
        if counted is None and (error or self._sources.cut_for_real):
            raise InvalidInput("; and ".join(filter(None, (error, _HOLDERS_UNKNOWN))))
        if error and (strange := unknown(possible, listed)):
            raise InvalidInput(
                f"{error}; and nothing says where {first_of(strange, 3)} lies, which a pod holds"
            )
        # without a record that was there, the specs may be those of an earlier installation
        published = self._cdi.published() if error else frozenset[str]()
        self.devices, self._known = rebuilt((*possible, *wanted), counted or (), published), True
        self._holders.named(
            {key: listed.get(key, A_POD) for key in listed or counted or () if key in self._keys}
        )
        self._hold_if_lost()
        if self.devices:
            log.warning(
                "%d devices of the last run rebuilt from the kubelet's record and the CDI specs",
                len(self.devices),
            )

    async def _adopt(self) -> None:
        """Pods may hold devices that another program published, such as NVIDIA's plugin before us: they stay for their pods as well."""
        counted = await self._allocations.counted()
        if counted is None:
            raise InvalidInput(_HOLDERS_UNKNOWN)
        found = [one for one in self._sources.possible() if one.key in counted - self._keys]
        self.devices, self._adopted = (*self.devices, *found), True
        self._holders.named({one.key: self._allocations.listed.get(one.key, A_POD) for one in found})

    def _hold_if_lost(self) -> None:
        """Without the record of holders every device counts as held, until the kubelet has not counted it for long enough."""
        if self._holders.lost:
            self._holders.grant(self._keys - self._holders.all)

    @property
    def _keys(self) -> frozenset[Key]:
        return frozenset(device.key for device in self.devices)

    def _keep(self, wanted: Sequence[Device]) -> None:
        """Publish what is there, with its health as it is now: after a restart that is what the last run left on disk."""
        kept = with_health(self.devices, wanted)
        if kept == self.devices and (self._published or not kept):
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
        gone = self._withdrawn.of(keys - self._keys)
        if gone and not self._bring_back(gone):
            return ()
        mine = {device.key for device in gone}
        return {
            device.id
            for device in self.devices
            if device.key in keys
            and device.leaving
            and (device.key in mine or device.key not in self._holders.all)
        }

    def _bring_back(self, gone: Sequence[Device]) -> bool:
        """Publish devices again that a layout took a moment ago; the devices that replaced them wait for the pod."""
        held = self._allocations.held(self._keys)
        if any(one.overlaps(other) for one in gone for other in self.devices if other.key in held):
            return False
        change = transition((*self.devices, *gone), self._wanted, held | {one.key: A_POD for one in gone})
        try:
            self._put_on_disk(change.devices)
        except OSError as error:
            log.warning("devices that the kubelet chose cannot come back: %s", error)
            return False
        self._holders.grant(one.key for one in gone)
        self._publish(change.devices)
        log.info(
            "devices are back for the pod for which the kubelet chose them: %s",
            ", ".join(one.id for one in gone),
        )
        return True

    def _put_on_disk(self, devices: tuple[Device, ...]) -> None:
        """CDI specs for the runtime, and what a restart must know; both, or neither and an OSError."""
        self._cdi.write(devices)
        if not self._state.save(devices) and self.devices:
            self._cdi.write(self.devices)
            raise OSError(NOT_SAVED)

    def _send_again(self) -> bool:
        """Send the devices of one resource to the kubelet once more; False when it listens to none."""
        streams = next((one.service.streams for one in self._endpoints.values() if one.service.streams), None)
        if streams:
            streams.send()
        return bool(streams)

    def _send(self, resource: str) -> None:
        if endpoint := self._endpoints.get(resource):
            endpoint.service.streams.send()

    def _asked(self, resource: str) -> float:
        """When the kubelet last asked about a resource; infinite: it does now."""
        endpoint = self._endpoints.get(resource)
        return endpoint.service.asked if endpoint else -inf

    def _publish(self, devices: tuple[Device, ...]) -> None:
        log_health(self.devices if self._published else (), devices)
        self._withdrawn.published(self.devices, devices)
        self.devices, self._published = devices, True
        sets = by_resource(devices)
        for resource in sets.keys() - self._endpoints.keys():
            service = ResourceService(
                resource,
                self._allocations,
                self._handover,
                self.metrics,
                lambda: self.devices,
                self._recall,
                self._withdrawn.on_list,
            )
            self._endpoints[resource] = PluginEndpoint(service, self._folder, self.metrics)
        for resource, endpoint in self._endpoints.items():
            # a resource that has gone is published as an empty list: the node then has none of it at once
            endpoint.service.publish(sets.get(resource, DeviceSet(resource)))
        self.metrics.devices(devices, self._endpoints)
        self._unregistered.set()
