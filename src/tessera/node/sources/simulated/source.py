"""The simulated cards of one node, as a whole: desired text in, devices out, and a report about what became of them."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera.core.devices.device import Device
from tessera.core.devices.transition import Transition
from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import NodeLayout
from tessera.core.planning.fragmentation import CardUse, occupied
from tessera.kube.rest.client import Client
from tessera.node.metrics import NodeMetrics
from tessera.node.polling import NotPublished
from tessera.node.sources import SourceFailed
from tessera.node.sources.layout import Decided, Layouts, NodeLayoutStatus
from tessera.node.sources.node_link import NodeLink, beside, decide, report_of, without
from tessera.node.sources.simulated.cards import CardDevices
from tessera.protocol.configuration.devices import SimulatedCards

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _There:
    """What is on the cards, whatever is desired of them."""

    layout: NodeLayout  # the devices that pods can be given
    leaving: frozenset[str]  # the ids of those that stay for their pods


class SimulatedSource:
    """Owns cards, layout and report. Every method runs in the event loop, and none waits."""

    destroys = False  # a simulated slice that is gone can come back as it was

    def __init__(
        self,
        configuration: SimulatedCards,
        *,
        node: str,
        state_dir: Path,
        metrics: NodeMetrics,
        client: Client | None = None,
        layout_file: Path | None = None,
        changed: asyncio.Event | None = None,
    ) -> None:
        """The layout comes from the file, or else from the node that `client` sees, or else from the configuration.

        `changed` is set when another layout is desired, so that the next poll need not wait for its second.
        """
        if configuration.dynamic is not None and layout_file is not None:
            raise InvalidInput(
                "--layout and partitioning: dynamic exclude each other: the cards are cut as claims ask for it"
            )
        self.status: NodeLayoutStatus | None = None  # what became of the layout; None: nothing is known yet
        self._configuration = configuration
        self._node = node
        self._strategy = configuration.strategy
        self._metrics = metrics
        self._layout_file = layout_file
        self.link = NodeLink(client, node, changed) if client and not layout_file else None
        self._layouts = Layouts(
            configuration.cards, configuration.strategy, state_dir / "layout", configuration.layout
        )
        self._cards = CardDevices(configuration, node, state_dir)
        self._decided: Decided | None = None
        self._there: _There | None = None  # None: nothing yet
        self._reported: tuple[Decided, NodeLayoutStatus, _There | None] | None = None

    async def run(self) -> None:
        """Follow the node and write reports to it until cancelled; without a cluster there is nothing to do."""
        if self.link is not None:
            await self.link.run()

    def begin(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Of the devices of the last run, those that may still be there: any."""
        return devices

    async def devices(self) -> Sequence[Device]:
        """The devices of the layout that is desired now, or of the last good one."""
        self._decided = self._decide()
        if self._decided is None:
            raise SourceFailed("the layout of the simulated cards is not known yet")
        if self._configuration.dynamic is not None:
            return self._cards.on_demand(self._configuration.dynamic)
        return self._cards.of(self._decided.layout)

    def possible(self) -> Sequence[Device]:
        return self._cards.possible()

    def report(self, result: Transition | NotPublished) -> None:
        """What became of the devices that were given last: publish it in the log, in the metrics and at the node.

        Where they could not be put in place, those that were there before still are.
        """
        decided = self._decided
        if decided is None:
            return
        if isinstance(result, Transition):
            waiting = {device.id for device in result.waiting}
            leaving = frozenset(device.id for device in result.leaving)
            self._there = _There(without(decided.layout, self._node, waiting), leaving)
        status = decided.status(result)
        self._metrics.layout(status.state)
        if status != self.status:
            log.info("layout %s%s", status.state, f": {status.reason}" if status.reason else "")
            self.status = status
        report = (decided, status, self._there)
        if self.link is not None and self._there is not None and report != self._reported:
            self._reported = report
            layout, leaving = self._there.layout, self._there.leaving
            self.link.report(report_of(self._node, layout, leaving, self._strategy, decided.desired, status))

    def use(self, held: Collection[tuple[str, str]]) -> tuple[CardUse, ...]:
        """The cards as they are cut now, and which of their devices are among these that pods hold."""
        if self._there is None:
            return ()
        layout = beside(self._there.layout, self._node, self._there.leaving)
        slots = {
            slot
            for resource, some in layout.slots(self._strategy).items()
            for slot in some
            if (resource, slot.uuid(self._node)) in held
        }
        return occupied(layout, slots)

    def _decide(self) -> Decided | None:
        if self._configuration.dynamic is not None:
            return self._layouts.refuse(self.link.desired if self.link else None)
        return decide(self._layouts, self.link, self._layout_file, self._decided)
