"""Where things are on a node, and its sources, put together from the configuration: the same for every protocol."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera.core.devices.device import Device
from tessera.core.devices.transition import Transition
from tessera.kube.rest.client import Client
from tessera.node.polling import TICK, NotPublished
from tessera.node.sources import BlockingSource, InThread, Source
from tessera.node.sources.faults import FaultySource
from tessera.node.sources.simulated.source import LayoutMetrics, SimulatedSource
from tessera.node.sources.static import StaticSource
from tessera.protocol.configuration.devices import DeviceConfiguration, NvmlCards


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
    """Every source of a node; `changed` is set when one has news, so that the next poll need not wait."""

    def __init__(
        self,
        configuration: DeviceConfiguration,
        settings: Settings,
        metrics: LayoutMetrics,
        client: Client | None = None,
    ) -> None:
        self.changed = asyncio.Event()
        self.simulated = (
            SimulatedSource(
                configuration.simulated,
                node=settings.node,
                state_dir=settings.state_dir,
                metrics=metrics,
                client=client,
                layout_file=settings.layout_file,
                changed=self.changed,
            )
            if configuration.simulated
            else None
        )
        self.all: list[Source] = []
        if configuration.static:
            self.all.append(InThread(StaticSource(configuration.static, settings.host_root)))
        if self.simulated is not None:
            self.all.append(self.simulated)
        if configuration.nvml:
            self.all.append(InThread(_nvml(configuration.nvml, settings.host_root)))
        if configuration.fault_file:
            self.all = [FaultySource(source, Path(configuration.fault_file)) for source in self.all]

    def possible(self) -> Sequence[Device]:
        """Devices that an earlier layout may have had, and the sources may no longer have."""
        return self.simulated.possible() if self.simulated else ()

    def report(self, result: Transition | NotPublished) -> None:
        """What became of the devices that the sources gave last: the simulated cards publish it at their node."""
        if self.simulated is None:
            return
        if isinstance(result, NotPublished):
            self.simulated.not_settled(result.reason)
        else:
            self.simulated.settled(result)


def _nvml(cards: NvmlCards, host_root: Path) -> BlockingSource:
    from tessera.node.sources.nvml import NvmlSource
    from tessera.node.sources.nvml_library import NvmlLibrary

    return NvmlSource(
        NvmlLibrary(),
        strategy=cards.strategy,
        env_list=cards.env_list,
        cdi_kind=cards.cdi_kind,
        described=cards.described_by_us,
        host_root=host_root,
    )
