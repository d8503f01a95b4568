"""A node's device plugin, put together from its configuration."""

import asyncio
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.planning.fragmentation import rooms
from tessera.kube.events.recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.node.assembly import NodeSources, Settings
from tessera.node.cdi import CdiDirectory
from tessera.node.deviceplugin.allocations import GRACE, Holders
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.events import COMPONENT, STATE_UNREADABLE, NodeNews, warning
from tessera.node.metrics import Metrics
from tessera.node.sources.simulated.source import SimulatedSource
from tessera.node.state import DeviceState
from tessera.protocol.configuration.devices import DeviceConfiguration

_MEASURE_TICKS: Final = 15  # as often as a Prometheus usually scrapes, with a tick of a second


class NodePlugin:
    """Sources and plugin: devices go from the first to the second, and what became of them to the simulated cards."""

    def __init__(
        self, configuration: DeviceConfiguration, settings: Settings, client: Client | None = None
    ) -> None:
        if configuration.simulated and configuration.simulated.dynamic is not None:
            raise InvalidInput(
                "simulated.partitioning: dynamic needs `tessera dra-driver`: a device plugin cannot cut slices on demand"
            )
        self.metrics = Metrics()
        self._settings = settings
        self._sources = sources = NodeSources(configuration, settings, self.metrics, client)
        self._simulated = sources.simulated
        self._news = NodeNews(settings.node)
        self._recorder = Recorder(client, COMPONENT, instance=settings.node) if client else None
        if self._recorder is not None:
            self.metrics.events = self._recorder.counts
        self.plugin = Plugin(
            sources=sources.all,
            kubelet_dir=settings.kubelet_dir,
            cdi=CdiDirectory(settings.cdi_dir),
            state=DeviceState(settings.state_dir / "devices.json"),
            holders=Holders(settings.state_dir / "holders.json", grace=GRACE * settings.tick),
            metrics=self.metrics,
            possible=sources.possible,
            handover=configuration.handover,
            changed=sources.changed,
            tick=settings.tick,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.plugin.run())
            tasks.create_task(self._poll())
            if self._recorder is not None:
                tasks.create_task(self._recorder.run())
            if self._simulated is not None:
                tasks.create_task(self._simulated.run())
                tasks.create_task(self._measure(self._simulated))

    async def _poll(self) -> None:
        reported = ""
        async for result in self.plugin.polls():
            self._sources.report(result)
            if self._recorder is not None:
                if (error := self.plugin.state_error) != reported:
                    self._recorder.record(warning(self._settings.node, STATE_UNREADABLE, error))
                    reported = error
                outcome = self._simulated.outcome if self._simulated else None
                for event in self._news.of(self.plugin.devices, outcome):
                    self._recorder.record(event)

    async def _measure(self, simulated: SimulatedSource) -> None:
        """Keep the metric of fragmentation right: what the cards could still hold, given what pods hold of them."""
        while True:
            used = await self.plugin.in_use()
            self.metrics.room(rooms(simulated.use(used)))
            await asyncio.sleep(_MEASURE_TICKS * self._settings.tick)
