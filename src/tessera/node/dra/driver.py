"""The DRA driver: from what sources say to ResourceSlices, and claims prepared for the kubelet.

Loops that poll once a second and do what is to be done, as the device plugin's. A device that is no longer wanted is first
published to the scheduler as leaving, and goes when no claim has it: one that is taken out of the slices while it is
allocated would be counted as free.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.devices.transition import Transition, transition
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product
from tessera.kube.errors import KubeError
from tessera.kube.events.recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.node.assembly import Settings
from tessera.node.cdi import ClaimFiles
from tessera.node.dra.claims.objects import Given, claims_with, owners
from tessera.node.dra.claims.prepared import PreparedClaims, UnreadableEntry
from tessera.node.dra.claims.preparing import Claims
from tessera.node.dra.claims.upkeep import repair
from tessera.node.dra.exclusive import conflict, read_node, remembered
from tessera.node.dra.service import HealthService
from tessera.node.dra.slices.documents import Document, Offer, Offered, offer, pool_of, specs
from tessera.node.dra.slices.publisher import Publisher
from tessera.node.events import CLAIM_UNREADABLE, STATE_UNREADABLE, warning
from tessera.node.metrics import DraMetrics
from tessera.node.polling import Failures, NotPublished, Pace, log_health, with_health
from tessera.node.sources import Answers, SourceFailed
from tessera.node.state import DeviceState, rebuilt
from tessera.protocol.kubelet.dra_messages import ClaimName, DeviceCondition
from tessera.protocol.kubernetes.nodes import node_of

log = logging.getLogger(__name__)

_Key = tuple[str, str]  # resource and id

# Seconds for which a device is published as leaving before it may go: a scheduler that has not heard of it yet may give it out
_NOTICE: Final = 3.0
_MODE_EVERY: Final = 5.0  # seconds between checks for a device plugin
_SCHEDULER: Final = "the scheduler, until it has heard of it"
_UNREADABLE: Final = "a claim, perhaps, whose record cannot be read"
_SOME_CLAIM: Final = "a claim, perhaps: the API server does not say"


class Driver:
    """Decides which devices there are, and publishes them to the scheduler and to the kubelet."""

    def __init__(
        self,
        *,
        sources: Answers,
        changed: asyncio.Event,
        settings: Settings,
        client: Client,
        store: PreparedClaims,
        state: DeviceState,
        files: ClaimFiles,
        publisher: Publisher,
        health: HealthService,
        recorder: Recorder,
        metrics: DraMetrics,
        possible: Callable[[], Sequence[Device]],
        counted: Mapping[str, Product],
        evict_unhealthy: bool,
    ) -> None:
        self.conflict: str | None = None  # why nothing new is offered; None: it is not known yet
        self.beat = time.monotonic()
        self._sources = sources
        self._changed = changed
        self._settings = settings
        self._client = client
        self._store = store
        self._state = state
        self._files = files
        self._publisher = publisher
        self._health = health
        self._recorder = recorder
        self._metrics = metrics
        self._possible = possible
        self._counted = counted
        self._evict_unhealthy = evict_unhealthy
        self._devices: tuple[Device, ...] = ()
        self._known = False  # whether it is known which devices the last run had
        self._offered: tuple[Offered, ...] = ()
        self._by_name: dict[str, Device] = {}
        self._going: dict[_Key, float] = {}  # no longer wanted, and since when
        self._published: Offer | None = None
        self._documents: tuple[Document, ...] = ()  # the slices that say it
        self._mode_at = float("-inf")
        self._unreadable: set[str] = set()  # uids of claims whose record could not be read at the last poll
        self._remembered: list[str] = []
        self._failures = Failures(log, metrics.failed)

    @property
    def offered(self) -> Mapping[str, Device]:
        """The devices that there are now, by name."""
        return self._by_name

    async def polls(self, claims: Claims) -> AsyncIterator[Transition | NotPublished]:
        """Poll once a second, and sooner when a source has news; what came of it, if the sources could say."""
        loaded = await asyncio.to_thread(self._state.load)
        self._known = loaded is not None
        self._take(loaded or ())
        if self._state.error:
            self._metrics.failed("state")
            self._recorder.record(warning(self._settings.node, STATE_UNREADABLE, self._state.error))
        pace = Pace(self._changed, self._settings.tick)
        while True:
            self._changed.clear()
            result = await self._poll(claims)
            if result is not None:
                yield result
            self.beat = time.monotonic()
            await pace.rest(failed=isinstance(result, NotPublished))

    async def _poll(self, claims: Claims) -> Transition | NotPublished | None:
        try:
            wanted, failure = await self._sources.ask()
            change, not_saved = await self._change(claims, wanted)
            await self._check_mode()
            self._publish()
            claims.news()
            if not_saved:
                raise not_saved
            if failure:
                self._failed("source", failure)
        except SourceFailed as error:
            self._failed("source", error)
            return None
        except (InvalidInput, OSError, KubeError) as error:
            self._failed("look", error)
            return NotPublished(str(error))
        finally:
            self._failures.round_over()
        return change

    async def _change(self, claims: Claims, wanted: list[Device]) -> tuple[Transition, OSError | None]:
        """Take what is wanted and can be; where that cannot be saved, the devices stay as they were, and why."""
        if self._unreadable or not self._known:
            await self._repair_entries(wanted)
        if not self._known:
            await self._recover(wanted)
        maybe_held = await self._maybe_held(wanted)
        async with claims.changing:  # no claim begins between what is decided and what is published
            entries, unreadable = await asyncio.to_thread(self._store.read)
            self._metrics.claims = len(entries)
            self._report_unreadable(unreadable)
            if unreadable:  # one of them may have any device
                maybe_held |= dict.fromkeys((device.key for device in self._devices), _UNREADABLE)
            held = {(one.resource, one.id): str(entry) for entry in entries for one in entry.devices}
            change = transition(self._devices, wanted, maybe_held | held)
            devices, not_saved = change.devices, None
            try:
                if devices != self._devices:
                    await asyncio.to_thread(self._remember, devices)
            except OSError as error:
                devices, not_saved = with_health(self._devices, wanted), error
            if devices != self._devices:
                log_health(self._devices, devices)
                self._take(devices)
        return change, not_saved

    async def _recover(self, wanted: list[Device]) -> None:
        """Find out which devices the last run had, where its record is missing or cannot be read: those that claims hold."""
        known = (*self._possible(), *wanted)
        claims = owners(await claims_with(self._client, pool_of(self._settings.node)))
        entries = await asyncio.to_thread(self._store.readable)
        held = {(one.resource, one.id) for entry in entries for one in entry.devices}
        self._take(rebuilt(known, held | {one.device.key for one in offer(known) if one.name in claims}))
        self._known = True
        if self._devices:
            log.warning(
                "%d devices of the last run rebuilt from the claims that hold them", len(self._devices)
            )

    async def _repair_entries(self, wanted: list[Device]) -> None:
        """Write records of claims again that could not be read."""
        claims: Mapping[ClaimName, Sequence[Given]] = {}
        try:
            claims = await claims_with(self._client, pool_of(self._settings.node))
        except (KubeError, InvalidInput) as error:
            self._failed("claims", error)
        names = {one.name: one.device for one in offer((*self._possible(), *wanted))} | self._by_name
        await asyncio.to_thread(repair, self._store, self._files, claims, names)

    def _report_unreadable(self, unreadable: Sequence[UnreadableEntry]) -> None:
        """Report records of claims that cannot be read, for as long as it lasts."""
        self._metrics.unreadable = len(unreadable)
        for one in unreadable:
            self._failures.add("claim-state", "new claims wait: %s", one)
            if one.uid not in self._unreadable:
                self._recorder.record(
                    warning(self._settings.node, CLAIM_UNREADABLE, f"new claims wait: {one}")
                )
        self._unreadable = {one.uid for one in unreadable}

    def _remember(self, devices: tuple[Device, ...]) -> None:
        if not self._state.save(devices):
            raise OSError(
                "a restart would not know these devices, and could give a pod's slices to another pod"
            )

    def _take(self, devices: tuple[Device, ...]) -> None:
        self._devices, self._offered = devices, offer(devices)
        self._by_name = {one.name: one.device for one in self._offered}

    async def _maybe_held(self, wanted: list[Device]) -> dict[_Key, str]:
        """Devices that are no longer wanted and may not go yet: they are allocated, or may be at this moment."""
        now = time.monotonic()
        names = {one.device.key: one.name for one in self._offered}
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
        try:
            node = node_of(await read_node(self._client, self._settings.node))
        except (KubeError, InvalidInput) as error:
            if self.conflict is None:
                raise
            # what was known holds: health is published to the kubelet without an API server
            self._failed("node", error)
            return
        found = await conflict(node, self._settings.kubelet_dir, self._devices)
        if found and found != self.conflict:
            log.error("nothing new is offered: %s", found)
            self._recorder.record(
                warning(self._settings.node, "DevicePluginConflict", f"nothing new is offered: {found}")
            )
            self._metrics.failed("device-plugin")
        elif self.conflict and not found:
            log.info("no device plugin has these devices any more: they are offered")
        counted = [] if found else remembered(node, self._devices)
        if counted and counted != self._remembered:
            log.warning(
                "the kubelet still counts %s of a device plugin that is gone: until it forgets (5 minutes, or its restart) "
                "pods that ask for it as an extended resource do not start",
                ", ".join(counted),
            )
        self._remembered = counted
        self.conflict, self._mode_at = found, time.monotonic()

    def _publish(self) -> None:
        pool = pool_of(self._settings.node)
        self._metrics.devices(self._devices)
        self._health.publish(
            DeviceCondition(pool, one.name, "" if one.device.leaving else one.device.problem)
            for one in self._offered
        )
        if self.conflict and not self._publisher.synced:
            return  # it is not known yet whether anything was offered before
        if self.conflict and not self._publisher.any_there:
            self._publisher.want(())
            return
        wanted = Offer(
            self._settings.node,
            self._offered,
            self._counted,
            evict_unhealthy=self._evict_unhealthy,
            withheld=bool(self.conflict),
        )
        if (
            wanted != self._published
        ):  # making the documents of many devices takes milliseconds, in which no claim is answered
            self._published, self._documents = wanted, specs(wanted)
        self._publisher.want(self._documents)
        self._publisher.retry()

    def _failed(self, what: str, error: Exception) -> None:
        self._failures.add(what, "devices stay as they were, will try again: %s", error)
