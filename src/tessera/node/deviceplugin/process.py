"""A node's device plugin, put together from its configuration."""

import asyncio
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.planning.fragmentation import rooms
from tessera.kube.events.recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.node.assembly import Settings, node_sources
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.events import NodeEvents
from tessera.node.metrics import Metrics
from tessera.node.sources.simulated.source import SimulatedSource
from tessera.protocol.configuration.devices import DeviceConfiguration

_COMPONENT: Final = "tessera-device-plugin"  # that Events name
_MEASURE_TICKS: Final = 15  # as often as a Prometheus usually scrapes, with a tick of a second


class NodePlugin:
    """Sources and plugin, and the metric of what the simulated cards could still hold."""

    def __init__(
        self, configuration: DeviceConfiguration, settings: Settings, client: Client | None = None
    ) -> None:
        if configuration.simulated and configuration.simulated.dynamic is not None:
            raise InvalidInput(
                "simulated.partitioning: dynamic needs `tessera dra-driver`: a device plugin cannot cut slices on demand"
            )
        self.metrics = Metrics()
        self._settings = settings
        sources = node_sources(configuration, settings, self.metrics, client)
        self._simulated = sources.simulated
        self._recorder = Recorder(client, _COMPONENT, instance=settings.node) if client else None
        if self._recorder is not None:
            self.metrics.events = self._recorder.counts
        events = NodeEvents(settings.node, self._recorder.record if self._recorder else lambda _: None)
        self.plugin = Plugin(sources, settings, self.metrics, events, configuration.handover)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.plugin.run())
            tasks.create_task(self.plugin.polling())
            if self._recorder is not None:
                tasks.create_task(self._recorder.run())
            if self._simulated is not None:
                tasks.create_task(self._simulated.run())
                tasks.create_task(self._measure(self._simulated))

    async def _measure(self, simulated: SimulatedSource) -> None:
        """Keep the metric of fragmentation right: what the cards could still hold, given what pods hold of them."""
        while True:
            used = await self.plugin.in_use()
            self.metrics.room(rooms(simulated.use(used)))
            await asyncio.sleep(_MEASURE_TICKS * self._settings.tick)
