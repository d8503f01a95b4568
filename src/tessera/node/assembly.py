"""Where things are on a node, and its sources, put together from the configuration: the same for every protocol."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera.core.devices.device import Device
from tessera.core.devices.transition import Transition
from tessera.kube.rest.client import Client
from tessera.node.metrics import NodeMetrics
from tessera.node.polling import TICK, NotPublished
from tessera.node.sources import InThread, Source, SourceFailed
from tessera.node.sources.faults import FaultySource
from tessera.node.sources.simulated.layout import LayoutStatus
from tessera.node.sources.simulated.source import SimulatedSource
from tessera.node.sources.static import StaticSource
from tessera.protocol.configuration.devices import DeviceConfiguration


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


class NodeSources:
    """Every source of a node, asked together; `changed` is set when one has news, so that the next poll need not wait."""

    def __init__(
        self,
        sources: Iterable[Source],
        simulated: SimulatedSource | None = None,
        changed: asyncio.Event | None = None,
    ) -> None:
        self.changed = changed or asyncio.Event()
        self.simulated = simulated
        self._sources = tuple(sources)
        self._last: dict[Source, Sequence[Device]] = {}

    async def ask(self) -> tuple[list[Device], SourceFailed | None]:
        """Every device, and the failure of a source that could not say: what it said before holds. One that never could raises."""
        failure = None
        for source in self._sources:
            try:
                self._last[source] = await source.devices()
            except SourceFailed as error:
                if source not in self._last:
                    raise
                failure = error
        return [device for source in self._sources for device in self._last[source]], failure

    def possible(self) -> Sequence[Device]:
        """Devices that an earlier layout may have had, and the sources may no longer have."""
        return self.simulated.possible() if self.simulated else ()

    @property
    def layout_status(self) -> LayoutStatus | None:
        """What became of the simulated cards' layout; None: nothing is known yet."""
        return self.simulated.status if self.simulated else None

    def report(self, result: Transition | NotPublished) -> None:
        """What became of the devices that the sources gave last: the simulated cards publish it at their node."""
        if self.simulated is not None:
            self.simulated.report(result)


def node_sources(
    configuration: DeviceConfiguration, settings: Settings, metrics: NodeMetrics, client: Client | None = None
) -> NodeSources:
    changed = asyncio.Event()
    sources: list[Source] = []
    if configuration.static:
        sources.append(InThread(StaticSource(configuration.static, settings.host_root).devices))
    simulated = None
    if configuration.simulated:
        simulated = SimulatedSource(
            configuration.simulated,
            node=settings.node,
            state_dir=settings.state_dir,
            metrics=metrics,
            client=client,
            layout_file=settings.layout_file,
            changed=changed,
        )
        sources.append(simulated)
    if configuration.nvml:
        from tessera.node.sources.nvml import NvmlSource
        from tessera.node.sources.nvml_library import NvmlLibrary

        nvml = NvmlSource(NvmlLibrary(), configuration.nvml, host_root=settings.host_root)
        sources.append(InThread(nvml.devices))
    if configuration.fault_file:
        sources = [FaultySource(source, Path(configuration.fault_file)) for source in sources]
    return NodeSources(sources, simulated, changed)
