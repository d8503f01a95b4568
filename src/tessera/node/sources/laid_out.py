"""What sources have in common whose cards are cut: they follow their node, and report there."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera.core.devices.device import Device, Transition
from tessera.core.errors import InvalidInput
from tessera.core.planning.fragmentation import CardUse
from tessera.kube.rest.client import Client
from tessera.node.metrics import NodeMetrics
from tessera.node.polling import NotPublished
from tessera.node.sources import SourceFailed
from tessera.node.sources.layout import Decided, Layouts, NodeLayoutStatus, file_text
from tessera.node.sources.node_link import NodeLink
from tessera.node.state import Key

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class LaidOutSource(ABC):
    """Owns cards, layout and report. Every method runs in the event loop."""

    destroys = True  # whether what is not wanted and not held is destroyed

    node: str
    state_dir: Path
    metrics: NodeMetrics
    client: Client | None = None  # sees the node, which says the layout
    layout_file: Path | None = None  # says the layout instead of the node
    changed: asyncio.Event | None = None  # set when the next poll need not wait for its second

    def __post_init__(self) -> None:
        self.status: NodeLayoutStatus | None = None  # what became of the layout; None: nothing is known yet
        self.link = (
            NodeLink(self.client, self.node, self.changed) if self.client and not self.layout_file else None
        )
        self._decided: Decided | None = None

    async def run(self) -> None:
        """Follow the node and write reports to it until cancelled; without a cluster do nothing."""
        if self.link is not None:
            await self.link.run()

    def begin(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Of the devices of the last run, those that may still be there: any."""
        return devices

    @abstractmethod
    async def devices(self) -> Sequence[Device]:
        """What ought to be there now, and how it is; asked every second."""

    def possible(self) -> Sequence[Device]:
        """Devices that an earlier layout may have had, or that pods may have of another program."""
        return ()

    @abstractmethod
    def report(self, result: Transition | NotPublished) -> None:
        """Publish what became of the devices that were given last: in the log, in the metrics, at the node."""

    @abstractmethod
    def use(self, held: Collection[Key]) -> tuple[CardUse, ...]:
        """The cards as they are cut now, and which of their devices are among these that pods hold."""

    def _refuse_layout_file(self) -> None:
        if self.layout_file is not None:
            raise InvalidInput(
                "--layout and partitioning: dynamic exclude each other: the cards are cut as claims ask for it"
            )

    def _decide(self, layouts: Layouts) -> Decided:
        """The layout that is desired now, or the last good one.

        While the API server is silent it is that of the last run.
        """
        if self.link is None:
            text = file_text(self.layout_file) if self.layout_file else None
            self._decided = layouts.decide(text, self._decided)
        elif self.link.synced:
            self._decided = layouts.decide(self.link.desired, self._decided)
        elif self.link.silent and self._decided is None:
            self._decided = layouts.recall()
        if self._decided is None:
            raise SourceFailed("the layout of the cards is not known yet")
        return self._decided

    def _set_status(self, status: NodeLayoutStatus) -> None:
        self.metrics.layout(status.state)
        if status != self.status:
            log.info("layout %s%s", status.state, f": {status.reason}" if status.reason else "")
            self.status = status
