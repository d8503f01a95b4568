"""Where things are on a node, and its sources, put together from the configuration: the same for every protocol."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.core.devices.device import Device, Transition
from tessera.kube.rest.client import Client
from tessera.node.metrics import NodeMetrics
from tessera.node.polling import TICK, NotPublished
from tessera.node.sources import InThread, Source, SourceFailed
from tessera.node.sources.faults import FaultySource
from tessera.node.sources.laid_out import LaidOutSource
from tessera.node.sources.layout import NodeLayoutStatus
from tessera.node.sources.simulated import SimulatedSource
from tessera.node.sources.static import StaticSource
from tessera.protocol.configuration.devices import DeviceConfiguration

if TYPE_CHECKING:
    from tessera.node.sources.cutting.on_demand import OnDemandSource


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are on this node."""

    node: str
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/tessera")  # as the host sees it: containers mount files from here
    host_root: Path = Path("/")
    layout_file: Path | None = None
    hide_in_use: bool = False  # the node's annotation does not say which devices pods hold
    pod: str = ""  # namespace/name of the pod that this process is; empty: none, or it is not known
    tick: float = TICK


class NodeSources:
    """Every source of a node, asked together; `changed` is set when one has changed, so that the next poll need not wait."""

    def __init__(
        self,
        sources: Iterable[Source],
        laid_out: LaidOutSource | None = None,
        changed: asyncio.Event | None = None,
        on_demand: "OnDemandSource | None" = None,
    ) -> None:
        """`laid_out`: the one among the sources whose cards are cut by a layout, or as claims ask for it; `on_demand`: if these are real."""
        self.changed = changed or asyncio.Event()
        self.laid_out = laid_out
        self.on_demand = on_demand
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
        return self.laid_out.possible() if self.laid_out else ()

    @property
    def cut_for_real(self) -> bool:
        """Whether what is not wanted and not held is destroyed."""
        return self.laid_out is not None and self.laid_out.destroys

    def begin(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Of the devices of the last run, those that may still be there."""
        return self.laid_out.begin(devices) if self.laid_out else devices

    @property
    def layout_status(self) -> NodeLayoutStatus | None:
        """What became of the cards' layout; None: nothing is known yet."""
        return self.laid_out.status if self.laid_out else None

    def report(self, result: Transition | NotPublished) -> None:
        """What became of the devices that the sources gave last: cards with a layout publish it at their node."""
        if self.laid_out is not None:
            self.laid_out.report(result)


def node_sources(
    configuration: DeviceConfiguration,
    settings: Settings,
    metrics: NodeMetrics,
    client: Client | None = None,
    *,
    read_only: bool = False,
) -> NodeSources:
    """`read_only`: no layout cuts a real card, whatever the configuration says; cuts for claims are the caller's."""
    changed = asyncio.Event()
    on_demand = None
    sources: list[Source] = []
    if configuration.static:
        sources.append(InThread(StaticSource(configuration.static, settings.host_root).devices))
    laid_out: LaidOutSource | None = None
    if configuration.simulated:
        laid_out = SimulatedSource(
            configuration.simulated,
            node=settings.node,
            state_dir=settings.state_dir,
            metrics=metrics,
            client=client,
            layout_file=settings.layout_file,
            changed=changed,
        )
        sources.append(laid_out)
    if configuration.nvml:
        from tessera.node.sources.nvml import NvmlSource
        from tessera.node.sources.nvml_library import NvmlLibrary

        nvml = NvmlSource(
            NvmlLibrary(), configuration.nvml, host_root=settings.host_root, failed=metrics.failed
        )
        if configuration.nvml.dynamic is not None:
            from tessera.node.sources.cutting.library import NvmlDriver
            from tessera.node.sources.cutting.on_demand import OnDemandSource

            laid_out = on_demand = OnDemandSource(
                nvml,
                NvmlDriver(),
                node=settings.node,
                state_dir=settings.state_dir,
                metrics=metrics,
                profiles=configuration.nvml.dynamic,
                switch_mode=configuration.nvml.switch_mode,
                client=client,
                layout_file=settings.layout_file,
                changed=changed,
            )
            sources.append(laid_out)
        elif configuration.nvml.cut and not read_only:
            from tessera.node.sources.cutting.library import NvmlDriver
            from tessera.node.sources.cutting.source import CutSource

            laid_out = CutSource(
                nvml,
                NvmlDriver(),
                node=settings.node,
                state_dir=settings.state_dir,
                metrics=metrics,
                switch_mode=configuration.nvml.switch_mode,
                client=client,
                layout_file=settings.layout_file,
                changed=changed,
            )
            sources.append(laid_out)
        else:
            sources.append(InThread(nvml.devices))
    if configuration.fault_file:
        sources = [FaultySource(source, Path(configuration.fault_file)) for source in sources]
    return NodeSources(sources, laid_out, changed, on_demand)
