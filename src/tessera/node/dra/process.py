"""A node's DRA driver, put together from its configuration.

The DRA driver: from what sources say to ResourceSlices, and claims prepared for the kubelet.

A device that is no longer wanted is first published to the scheduler as leaving, and goes when no claim has it: one that is taken out of the slices while it is
allocated would be counted as free.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tessera.core.devices.device import Device, Transition, transition
from tessera.core.dra.device_names import pool_of
from tessera.core.dra.slices import DRIVER
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import Slot
from tessera.kube.errors import KubeError
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.node.assembly import NodeSources, Settings, node_sources
from tessera.node.cdi import ClaimFiles
from tessera.node.dra.claim_cutting import ClaimSlices
from tessera.node.dra.claim_objects import claims_with, given, owners
from tessera.node.dra.exclusive import DriverProcess, conflict, read_node, remembered
from tessera.node.dra.kubelet import ClaimService, DriverEndpoint, HealthService
from tessera.node.dra.prepared_claims import PreparedClaims, UnreadableEntry
from tessera.node.dra.preparing import Claims
from tessera.node.dra.slice_documents import Document, Offer, offer, specs
from tessera.node.dra.slice_publisher import Publisher
from tessera.node.dra.upkeep import forget_stale, repair
from tessera.node.events import CLAIM_UNREADABLE, NodeEvents, log_health
from tessera.node.files import SHARED_LEFTOVERS_AGE, remove_leftovers
from tessera.node.metrics import DraMetrics
from tessera.node.poller import NOT_SAVED, TIMEOUT, Poller, with_health
from tessera.node.rpc import CallFailed
from tessera.node.state import DeviceState, Key, rebuilt
from tessera.protocol.configuration.devices import DeviceConfiguration
from tessera.protocol.kubelet.dra_messages import DeviceCondition
from tessera.protocol.kubernetes.nodes import node_of
from tessera.protocol.mig.nodes import IN_USE

log = logging.getLogger(__name__)

# Seconds for which a device is published as leaving before it may go: a scheduler that has not heard of it yet may give it out
_NOTICE: Final = 3.0
_MODE_EVERY: Final = 5.0  # seconds between checks for a device plugin
_SCHEDULER: Final = "the scheduler, until it has heard of it"
_UNREADABLE: Final = "a claim, perhaps, whose record cannot be read"
# an Event's reason, and the word under which it is counted
_BY_PLUGIN: Final = ("DevicePluginConflict", "device-plugin")
_CUT_BY_OTHERS: Final = ("CuttingRefused", "neighbour")
_SOME_CLAIM: Final = "a claim, perhaps: the API server does not say"


class Driver(Poller):
    """Decides which devices there are, and publishes them to the scheduler and to the kubelet."""

    failure = "look"
    metrics: DraMetrics

    def __init__(
        self,
        sources: NodeSources,
        settings: Settings,
        metrics: DraMetrics,
        events: NodeEvents,
        *,
        configuration: DeviceConfiguration,
        client: Client,
        claims: Claims,
        store: PreparedClaims,
        files: ClaimFiles,
        publisher: Publisher,
        health: HealthService,
    ) -> None:
        state = DeviceState(settings.state_dir / "dra" / "devices.json", shared=True)
        super().__init__(sources, settings, state, metrics, events)
        self.conflict: str | None = None  # why nothing new is offered; None: it is not known yet
        self._client = client
        self._claims = claims
        self._store = store
        self._files = files
        self._publisher = publisher
        self._health = health
        self._simulated = _simulated(configuration, settings.node)
        self._evict_unhealthy = configuration.evict_unhealthy
        self.offered: Mapping[str, Device] = {}  # the devices that there are now, by name
        self._going: dict[Key, float] = {}  # no longer wanted, and since when
        self._published: Offer | None = None
        self._documents: tuple[Document, ...] = ()  # the slices that say it
        self._mode_at = float("-inf")
        self._unreadable: set[str] = set()  # uids of claims whose record could not be read at the last poll
        self._remembered: list[str] = []

    def _begin(self, loaded: tuple[Device, ...] | None) -> None:
        super()._begin(loaded)
        self._take(self.devices)

    async def _put_in_place(self, wanted: list[Device]) -> Transition:
        """Take what is wanted and can be, and publish it; where that cannot be saved, the devices stay as they were."""
        if self._unreadable or not self._known:
            await self._recover(wanted)
        maybe_held = await self._maybe_held(wanted)
        async with self._claims.changing:  # no claim begins between what is decided and what is published
            entries, unreadable = await asyncio.to_thread(self._store.read)
            self.metrics.claims = len(entries)
            self._report_unreadable(unreadable)
            if unreadable:  # one of them may have any device
                maybe_held |= dict.fromkeys((device.key for device in self.devices), _UNREADABLE)
            gone = self._claims.gone(entries)
            wanted = [
                one.unhealthy(gone[one.key]) if one.key in gone and one.healthy else one for one in wanted
            ]
            held = {(one.resource, one.id): str(entry) for entry in entries for one in entry.devices}
            change = transition(self.devices, wanted, maybe_held | held)
            devices = change.devices
            saved = devices == self.devices or await asyncio.to_thread(self._state.save, devices)
            if not saved:
                devices = with_health(self.devices, wanted)
            if devices != self.devices:
                log_health(self.devices, devices)
                self._take(devices)
        await self._check_mode()
        if not (self.conflict or unreadable):
            self._claims.tidy(entries)
        self._publish()
        self._claims.notify()
        if not saved:
            raise OSError(NOT_SAVED)
        return change

    async def _recover(self, wanted: list[Device]) -> None:
        """Rebuild records of the last run that are missing or cannot be read, from the claims: of claims, and of the devices."""
        known = tuple({device.key: device for device in (*self._sources.possible(), *wanted)}.values())
        devices = offer(known)
        try:
            claims = await claims_with(self._client, pool_of(self._settings.node))
        except (KubeError, InvalidInput) as error:
            if not self._known:
                raise
            self._failed("claims", error)
            claims = {}
        await asyncio.to_thread(repair, self._store, self._files, claims, {**devices, **self.offered})
        if self._known:
            return
        entries = await asyncio.to_thread(self._store.readable)
        held = {(one.resource, one.id) for entry in entries for one in entry.devices}
        self._take(rebuilt(known, held | {devices[name].key for name in owners(claims) if name in devices}))
        self._known = True
        if self.devices:
            log.warning(
                "%d devices of the last run rebuilt from the claims that hold them", len(self.devices)
            )

    def _report_unreadable(self, unreadable: Sequence[UnreadableEntry]) -> None:
        """Report records of claims that cannot be read, for as long as it lasts."""
        self.metrics.unreadable = len(unreadable)
        for one in unreadable:
            self._failures.add("claim-state", "new claims wait for the record of claim %s: %s", one, one.uid)
            if one.uid not in self._unreadable:
                self._events.warn(CLAIM_UNREADABLE, f"new claims wait: {one}")
        self._unreadable = {one.uid for one in unreadable}

    def _take(self, devices: tuple[Device, ...]) -> None:
        self.devices, self.offered = devices, offer(devices)

    async def _maybe_held(self, wanted: list[Device]) -> dict[Key, str]:
        """Devices that are no longer wanted and may not go yet: they are allocated, or may be at this moment."""
        now = time.monotonic()
        names = {device.key: name for name, device in self.offered.items()}
        keys = names.keys() - {device.key for device in wanted}
        self._going = {key: self._going.get(key, now) for key in keys}
        held = {key: _SCHEDULER for key, since in self._going.items() if now - since < _NOTICE}
        rest = keys - held.keys()
        if not rest:
            return held
        try:
            claims = owners(await claims_with(self._client, pool_of(self._settings.node)))
        except (KubeError, InvalidInput) as error:
            self._failed("claims", error)
            return held | dict.fromkeys(rest, _SOME_CLAIM)
        return held | {key: f"claim {claims[names[key]]}" for key in rest if names[key] in claims}

    async def _check_mode(self) -> None:
        """Check every few seconds whether a device plugin has the same devices."""
        if time.monotonic() - self._mode_at < _MODE_EVERY * self._settings.tick and self.conflict is not None:
            return
        source = self._sources.on_demand
        try:
            read = await read_node(self._client, self._settings.node)
            others = await source.cut_by_others(read.metadata.labels or {}) if source else ""
            on_cards = source.on_cards if source else ()  # pods may have these slices from a device plugin
            found = others or await conflict(node_of(read), self._settings, (*self.devices, *on_cards))
        except (KubeError, InvalidInput, CallFailed) as error:
            if self.conflict is None:
                raise
            # what was known holds: health is published to the kubelet without an API server
            self._failed("node", error)
            return
        if found and found != self.conflict:
            log.error("nothing new is offered: %s", found)
            reason, what = _CUT_BY_OTHERS if others else _BY_PLUGIN
            self._events.warn(reason, f"nothing new is offered: {found}")
            self.metrics.failed(what)
        elif self.conflict and not found:
            log.info("no device plugin has these devices any more: they are offered")
        counted = [] if found else remembered(read, self.devices)
        if counted and counted != self._remembered:
            log.warning(
                "the kubelet still counts %s of a device plugin that is gone: until it forgets (5 minutes, or its restart) "
                "pods that ask for it as an extended resource do not start",
                ", ".join(counted),
            )
        self._remembered = counted
        self.conflict, self._mode_at = found, time.monotonic()
        if source:
            source.objection = found

    def _publish(self) -> None:
        pool = pool_of(self._settings.node)
        self.metrics.devices(self.devices)
        self._health.publish(
            DeviceCondition(pool, name, "" if device.leaving else device.problem)
            for name, device in self.offered.items()
        )
        if self.conflict and not self._publisher.synced:
            return  # it is not known yet whether anything was offered before
        if self.conflict and not self._publisher.current:
            self._publisher.want(())
            return
        wanted = Offer(
            self._settings.node,
            self.offered,
            self._sources.on_demand.counted if self._sources.on_demand else self._simulated,
            evict_unhealthy=self._evict_unhealthy,
            withheld=bool(self.conflict),
        )
        # making the documents of many devices takes milliseconds, in which no claim is answered
        if wanted != self._published:
            self._published, self._documents = wanted, specs(wanted)
        self._publisher.want(self._documents)
        self._publisher.retry()


def _simulated(configuration: DeviceConfiguration, node: str) -> dict[str, Product]:
    """The simulated cards that are cut on demand, by UUID."""
    cards = configuration.simulated
    if cards is None or cards.dynamic is None:
        return {}
    return {Slot(number).uuid(node): product for number, product in enumerate(cards.cards)}


_CLEAN_EVERY: Final = 60.0  # seconds
_STALE_EVERY: Final = 5  # cleanings


class NodeDriver:
    """Everything between the sources of devices, the API server and the kubelet."""

    def __init__(self, configuration: DeviceConfiguration, settings: Settings, client: Client) -> None:
        self.metrics = DraMetrics()
        self._settings = settings
        self._client = client
        self._pool = pool_of(settings.node)
        self._folder = settings.state_dir / "dra"
        self._instance = DriverProcess(self._folder / "instances")
        self._store = PreparedClaims(self._folder / "claims")
        self._files = ClaimFiles(settings.cdi_dir)
        # real cards are cut by a layout by the device plugin alone
        self._sources = node_sources(configuration, settings, self.metrics, client, read_only=True)
        on_demand = self._sources.on_demand
        self._health = HealthService()
        self._recorder = Recorder(client, DRIVER, instance=settings.node)
        self.metrics.events = self._recorder.counts
        events = NodeEvents(settings.node, self._recorder.record)
        self._publisher = Publisher(client, settings.node, self._instance.leads, self.metrics, events)
        self.claims = Claims(
            pool=self._pool,
            store=self._store,
            files=self._files,
            read=lambda claim: given(client, claim, self._pool),
            offered=lambda: self.driver.offered,
            metrics=self.metrics,
            slices=ClaimSlices(on_demand, self._store) if on_demand else None,
        )
        self.driver = Driver(
            self._sources,
            settings,
            self.metrics,
            events,
            configuration=configuration,
            client=client,
            claims=self.claims,
            store=self._store,
            files=self._files,
            publisher=self._publisher,
            health=self._health,
        )
        services = [*ClaimService(self.claims, self.metrics).handlers(), *self._health.handlers()]
        self._endpoint = DriverEndpoint(
            settings.kubelet_dir, self._instance.token, services, self.metrics, self._health.streams.close
        )
        self._endpoint_beat = time.monotonic()

    @property
    def alive(self) -> bool:
        return time.monotonic() - min(self.driver.beat, self._endpoint_beat) < TIMEOUT

    @property
    def ready(self) -> bool:
        """Whether the kubelet knows the driver, the scheduler what it offers, and the driver what claims hold."""
        known = not (self.driver.conflict or self.metrics.unreadable)
        return self._endpoint.registered and self._publisher.published and known

    async def run(self) -> None:
        """Work until cancelled; then end the registration. Slices, specs and state stay: containers may yet restart."""
        with self._instance:
            try:
                for one in await asyncio.to_thread(self._store.begin):
                    log.warning("of an earlier boot, and removed: %s", one)
            except OSError as error:
                raise TesseraError(
                    f"what claims hold cannot be written, so the DRA driver does not start: {error}"
                ) from error
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.driver.polling())
                    tasks.create_task(self._publisher.run())
                    tasks.create_task(self._ensure_registered())
                    tasks.create_task(self._recorder.run())
                    tasks.create_task(self._cleaning())
                    if self._sources.laid_out is not None:
                        if self._sources.laid_out.link is not None:  # what claims hold, their allocations say
                            self._sources.laid_out.link.annotate(IN_USE, None)
                        tasks.create_task(self._sources.laid_out.run())
            finally:
                await self._endpoint.close()
                await self.claims.drained()

    async def _ensure_registered(self) -> None:
        while True:
            await self._endpoint.ensure_registered()
            self._endpoint_beat = time.monotonic()
            await asyncio.sleep(self._settings.tick)

    # cleaning

    async def _cleaning(self) -> None:
        """Remove what killed processes left, and entries of claims that can have no container."""
        number = 0
        while True:
            try:
                if number % _STALE_EVERY == 0:
                    self.metrics.stale = await forget_stale(
                        self._client, self._pool, self._store, self._files
                    )
                await asyncio.to_thread(self._clean)
            except (KubeError, OSError) as error:
                log.warning("cleaning up failed, will try again: %s", error)
                self.metrics.failed("clean")
            number += 1
            await asyncio.sleep(_CLEAN_EVERY * self._settings.tick)

    def _clean(self) -> None:
        for folder in (self._folder, self._folder / "claims"):
            remove_leftovers(folder, SHARED_LEFTOVERS_AGE)
        self._endpoint.clean()
        with self._store.locked():
            for uid in self._files.clean(self._store.uids()):
                log.info("CDI spec of a claim that is not known removed: %s", uid)
