"""A node's device plugin, put together from its configuration."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.core.planning.fragmentation import rooms
from tessera.kube.rest.client import Client
from tessera.node.cdi import CdiDirectory
from tessera.node.deviceplugin.plugin import TICK, NotPublished, Plugin
from tessera.node.holders import Holders
from tessera.node.metrics import Metrics
from tessera.node.sources import BlockingSource, InThread, Source
from tessera.node.sources.faults import FaultySource
from tessera.node.sources.simulated.source import SimulatedSource
from tessera.node.sources.static import StaticSource
from tessera.node.state import DeviceState
from tessera.protocol.configuration.devices import DeviceConfiguration, NvmlCards

_MEASURE_TICKS: Final = 15  # as often as a Prometheus usually scrapes, with a tick of a second


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are on this node."""

    node: str
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/tessera")  # as the host sees it: containers mount files from here
    host_root: Path = Path("/")
    layout_file: Path | None = None
    tick: float = TICK


class NodePlugin:
    """Sources and plugin: devices go from the first to the second, and what became of them to the simulated cards."""

    def __init__(
        self, configuration: DeviceConfiguration, settings: Settings, client: Client | None = None
    ) -> None:
        self.metrics = Metrics()
        self._settings = settings
        changed = asyncio.Event()
        self._simulated = (
            SimulatedSource(
                configuration.simulated,
                node=settings.node,
                state_dir=settings.state_dir,
                metrics=self.metrics,
                client=client,
                layout_file=settings.layout_file,
                changed=changed,
            )
            if configuration.simulated
            else None
        )
        self.sources = self._all_sources(configuration)
        self.plugin = Plugin(
            sources=self.sources,
            kubelet_dir=settings.kubelet_dir,
            cdi=CdiDirectory(settings.cdi_dir),
            state=DeviceState(settings.state_dir / "devices.json"),
            holders=Holders(settings.state_dir / "holders.json"),
            metrics=self.metrics,
            handover=configuration.handover,
            changed=changed,
            tick=settings.tick,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.plugin.run())
            tasks.create_task(self._look())
            if self._simulated is not None:
                tasks.create_task(self._simulated.run())
                tasks.create_task(self._measure(self._simulated))

    async def _look(self) -> None:
        async for result in self.plugin.looks():
            if self._simulated is None:
                continue
            if isinstance(result, NotPublished):
                self._simulated.not_settled(result.reason)
            else:
                self._simulated.settled(result)

    async def _measure(self, simulated: SimulatedSource) -> None:
        """Keep the metric of fragmentation right: what the cards could still hold, given what pods hold of them."""
        while True:
            used = await self.plugin.in_use()
            self.metrics.room(rooms(simulated.use(used)))
            await asyncio.sleep(_MEASURE_TICKS * self._settings.tick)

    def _all_sources(self, configuration: DeviceConfiguration) -> list[Source]:
        sources: list[Source] = []
        if configuration.static:
            sources.append(InThread(StaticSource(configuration.static, self._settings.host_root)))
        if self._simulated is not None:
            sources.append(self._simulated)
        if configuration.nvml:
            sources.append(InThread(self._nvml(configuration.nvml)))
        if configuration.fault_file:
            sources = [FaultySource(source, Path(configuration.fault_file)) for source in sources]
        return sources

    def _nvml(self, cards: NvmlCards) -> BlockingSource:
        from tessera.node.sources.nvml import NvmlSource
        from tessera.node.sources.nvml_library import NvmlLibrary

        return NvmlSource(
            NvmlLibrary(),
            strategy=cards.strategy,
            env_list=cards.env_list,
            cdi_kind=cards.cdi_kind,
            described=cards.described_by_us,
            host_root=self._settings.host_root,
        )
