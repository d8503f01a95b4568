"""A node's DRA driver, put together from its configuration."""

import asyncio
import logging
import time
from typing import Final

from tessera.core.dra.naming import pool_of
from tessera.core.dra.slices import DRIVER
from tessera.core.errors import TesseraError
from tessera.kube.errors import KubeError
from tessera.kube.events.recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.node.assembly import Settings, node_sources
from tessera.node.cdi import ClaimFiles
from tessera.node.dra.claims.cutting import ClaimSlices
from tessera.node.dra.claims.objects import given
from tessera.node.dra.claims.prepared import PreparedClaims
from tessera.node.dra.claims.preparing import Claims
from tessera.node.dra.claims.upkeep import forget_stale
from tessera.node.dra.driver import Driver
from tessera.node.dra.exclusive import DriverProcess
from tessera.node.dra.kubelet import ClaimService, DriverEndpoint, HealthService
from tessera.node.dra.slices.publisher import Publisher
from tessera.node.events import NodeEvents
from tessera.node.files import SHARED_LEFTOVERS_AGE, remove_leftovers
from tessera.node.metrics import DraMetrics
from tessera.node.poller import TIMEOUT
from tessera.protocol.configuration.devices import DeviceConfiguration
from tessera.protocol.kubelet.in_use import IN_USE

log = logging.getLogger(__name__)

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
