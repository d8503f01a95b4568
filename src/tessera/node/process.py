"""A node's plugin, put together from its configuration."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.core.devices.transition import Transition
from tessera.core.mig.layout import NodeLayout
from tessera.core.planning.fragmentation import occupied, rooms
from tessera.kube.rest.client import Client
from tessera.node.cdi import CdiDirectory
from tessera.node.deviceplugin.plugin import TICK, Plugin
from tessera.node.metrics import Metrics
from tessera.node.sources import Source
from tessera.node.sources.faults import FaultySource
from tessera.node.sources.simulated.cards import SimulatedSource
from tessera.node.sources.simulated.layout import LayoutFile, LayoutKeeper, Outcome
from tessera.node.sources.simulated.node_link import NodeLink
from tessera.node.sources.simulated.report import report_of
from tessera.node.sources.static import StaticSource
from tessera.node.state import Memory
from tessera.protocol.configuration.devices import DeviceConfiguration, NvmlCards, SimulatedCards

_MEASURE_TICKS: Final = 15  # as often as a Prometheus usually scrapes, with a tick of a second

log = logging.getLogger(__name__)


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
    """Sources, plugin and, where a cluster says which layout is wanted, the link to it."""

    def __init__(
        self, configuration: DeviceConfiguration, settings: Settings, client: Client | None = None
    ) -> None:
        self.metrics = Metrics()
        self._settings = settings
        self._outcome: Outcome | None = None
        self._reported: tuple[NodeLayout, Outcome, str | None, frozenset[str]] | None = None
        self._cards: SimulatedSource | None = None
        self._keeper = self._keep(configuration.simulated) if configuration.simulated else None
        self._link: NodeLink | None = None
        if client is not None and self._keeper is not None and settings.layout_file is None:
            self._link = NodeLink(client, settings.node, on_layout=self._ask, on_silence=self._keeper.recall)
        self.sources = self._all_sources(configuration)
        self.plugin = Plugin(
            sources=self.sources,
            kubelet_dir=settings.kubelet_dir,
            cdi=CdiDirectory(settings.cdi_dir),
            memory=Memory(settings.state_dir / "devices.json"),
            metrics=self.metrics,
            handover=configuration.handover,
            on_transition=self._on_transition,
            tick=settings.tick,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.plugin.run())
            if self._link is not None:
                tasks.create_task(self._link.run())
            if self._cards is not None:
                tasks.create_task(self._measure(self._cards))

    async def _measure(self, cards: SimulatedSource) -> None:
        """Keep the metric of fragmentation right: what the cards could still hold, given what pods hold of them."""
        while True:
            used = await self.plugin.in_use()
            if cards.applied is not None:
                slots = {
                    slot
                    for resource, some in cards.applied.slots(cards.strategy).items()
                    for slot in some
                    if (resource, slot.uuid(self._settings.node)) in used
                }
                self.metrics.room(rooms(occupied(cards.applied, slots)))
            await asyncio.sleep(_MEASURE_TICKS * self._settings.tick)

    def _keep(self, simulated: SimulatedCards) -> LayoutKeeper:
        return LayoutKeeper(
            simulated.cards,
            simulated.strategy,
            default=simulated.layout,
            memory=self._settings.state_dir / "layout",
        )

    def _ask(self, text: str | None) -> None:
        if self._keeper is not None:
            self._keeper.ask(text)
            self.plugin.poke()

    def _all_sources(self, configuration: DeviceConfiguration) -> list[Source]:
        sources: list[Source] = []
        if configuration.static:
            sources.append(StaticSource(configuration.static, self._settings.host_root))
        if configuration.simulated and self._keeper:
            self._cards = self._simulated(configuration.simulated, self._layout_of(self._keeper))
            sources.append(self._cards)
        if configuration.nvml:
            sources.append(self._nvml(configuration.nvml))
        if configuration.fault_file:
            sources = [FaultySource(source, Path(configuration.fault_file)) for source in sources]
        return sources

    def _layout_of(self, keeper: LayoutKeeper) -> Callable[[], NodeLayout | None]:
        """How the layout is asked for: the cluster tells it, or a file is looked at, or nobody says anything."""
        if self._link is not None:
            return lambda: keeper.layout
        path = self._settings.layout_file
        file = LayoutFile(path) if path else None

        def look() -> NodeLayout | None:
            keeper.ask(file.read() if file else None)
            return keeper.layout

        return look

    def _simulated(self, cards: SimulatedCards, layout: Callable[[], NodeLayout | None]) -> SimulatedSource:
        return SimulatedSource(
            layout,
            node=self._settings.node,
            strategy=cards.strategy,
            tools=self._settings.state_dir,
            env_list=cards.env_list,
            cdi_kind=cards.cdi_kind,
            numa_nodes=cards.numa_nodes,
        )

    def _nvml(self, cards: NvmlCards) -> Source:
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

    def _on_transition(self, change: Transition) -> None:
        """Say what became of the layout: in the metrics, and at the node."""
        keeper, cards = self._keeper, self._cards
        if keeper is None or cards is None or keeper.layout is None or cards.applied != keeper.layout:
            return  # no layout, or one so new that these are not its devices yet
        outcome = keeper.outcome(change)
        if outcome != self._outcome:
            if self._outcome is None or outcome.state is not self._outcome.state:
                self.metrics.layout(outcome.state)
            log.info("layout %s%s", outcome.state, f": {outcome.reason}" if outcome.reason else "")
            self._outcome = outcome
        leaving = frozenset(device.id for device in change.leaving)
        news = (keeper.layout, outcome, keeper.asked, leaving)
        if self._link is not None and news != self._reported:
            self._reported = news
            asked = outcome if keeper.asked else None
            self._link.report(report_of(self._settings.node, keeper.layout, keeper.strategy, asked, leaving))
