"""The real cards of one node, as a whole: desired text in, devices out, cuts, and a report about what became of them.

What the layout does not want is no longer given out. Once the plugin has published that, and no pod holds it, it is removed, and
what the layout wants comes in its place.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tessera.core.devices.device import Device
from tessera.core.devices.transition import Transition
from tessera.core.mig.cutting import Cut
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.planning.fragmentation import CardUse
from tessera.kube.rest.client import Client
from tessera.node.metrics import NodeMetrics
from tessera.node.polling import NotPublished
from tessera.node.sources import SourceFailed
from tessera.node.sources.cutting.cuts import Cuts
from tessera.node.sources.cutting.journal import BOOT_ID, Journal, Lock
from tessera.node.sources.cutting.neighbours import Neighbours
from tessera.node.sources.cutting.port import GpuDriver, Products
from tessera.node.sources.cutting.reading import (
    is_of,
    layout_with,
    made_on,
    mapping_with,
    mode_stays,
    unreadable,
    use_of,
)
from tessera.node.sources.layout import Decided, Layouts, NodeLayoutStatus, State, shortened, staying
from tessera.node.sources.node_link import NodeLink, decide, report_with
from tessera.node.sources.nvml import NvmlSource
from tessera.node.sources.nvml_card import NvmlCard
from tessera.node.state import Key
from tessera.protocol.mig.documents import read_layout
from tessera.protocol.mig.nodes import gpu_labels

log = logging.getLogger(__name__)


class _RealLayouts(Layouts):
    """Layouts of the cards that NVML has; where none is desired, no card is touched."""

    def __init__(self, cards: Sequence[Product], path: Path, present: Callable[[], Sequence[Cut]]) -> None:
        self.cards = tuple(cards)
        self._present = present
        super().__init__(cards, Strategy.MIXED, path)

    def _read(self, text: str) -> NodeLayout:
        if not text:
            return NodeLayout(())
        return read_layout(text, self.cards, [one.instances for one in self._present()])


class CutSource:
    """Owns layout, cuts and report. Every method runs in the event loop; what asks NVML does it in a thread."""

    destroys = True

    def __init__(
        self,
        gpus: NvmlSource,
        driver: GpuDriver,
        *,
        node: str,
        state_dir: Path,
        metrics: NodeMetrics,
        switch_mode: bool = False,
        client: Client | None = None,
        layout_file: Path | None = None,
        changed: asyncio.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        boot_id: Path = BOOT_ID,
    ) -> None:
        """The layout comes from the file, or else from the node that `client` sees; without either the cards are only read."""
        self.status: NodeLayoutStatus | None = None  # what became of the layout; None: nothing is known yet
        changed = changed or asyncio.Event()
        self._gpus = gpus
        self._switch_mode = switch_mode
        self._metrics = metrics
        self._layout_file = layout_file
        self.link = NodeLink(client, node, changed) if client and not layout_file else None
        self._neighbours = Neighbours(client, node, clock)
        self._lock = Lock(state_dir / "cut" / "lock")
        self._journal = Journal(state_dir / "cut", boot_id)
        self._cuts = Cuts(driver, self._journal, changed, clock)
        self._path = state_dir / "layout"
        self._layouts = _RealLayouts((), self._path, self._present)
        self._cards = Products(driver, clock)
        self._products = self._cards.known
        self._decided: Decided | None = None
        self._objection = ""  # why the cards are not ours to cut
        self._filled = False  # whether the start has cut what the cards had room for
        self._all: Sequence[Device] = ()  # on the cards, wanted or not
        self._published: tuple[Device, ...] | None = None  # by the plugin; None: nothing yet
        self._reported: object = None

    async def run(self) -> None:
        """Follow the node and write reports to it until cancelled."""
        try:
            if self.link is not None:
                await self.link.run()
        finally:
            self._lock.release()

    def begin(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Of the devices of the last run, those that may still be there: after a start of the machine no slice is."""
        if not self._journal.new_boot():
            return devices
        return tuple(one for one in devices if one.cdi_kind != self._gpus.cdi_kind or not one.model.profile)

    async def devices(self) -> Sequence[Device]:
        """The devices that are there and that the layout wants."""
        if self._cuts.collect(self._gpus.cards):
            self._gpus.invalidate()
        await self._refresh()
        await self._decide()
        self._cuts.begin(self._gpus.cards)
        goals = self._goals()
        if not self._filled:
            self._gpus.close()
            await self._cuts.fill(goals, self._gpus.cards, self._products)
            self._cuts.collect(self._gpus.cards)
            self._filled = True
            self._gpus.invalidate()
            await self._refresh()
            goals = self._goals()
        return [one for one in self._all if (goal := goals.get(one.model.parent)) is None or is_of(goal, one)]

    def possible(self) -> Sequence[Device]:
        """Every device on the cards, wanted or not: pods may hold one that another program gave them."""
        return self._all

    def report(self, result: Transition | NotPublished) -> None:
        """What became of the devices that were given last: cut what may be cut now, and publish the state."""
        decided, cards = self._decided, self._gpus.cards
        if decided is None:
            return
        if isinstance(result, Transition):
            self._published = result.devices
            self._cuts.published(cards, result.devices, result.released)
            self._cuts.start(self._goals(), cards, self._products, self._gpus.close)
        status = self._status(decided, result)
        self._metrics.layout(status.state)
        if status != self.status:
            log.info("layout %s%s", status.state, f": {status.reason}" if status.reason else "")
            self.status = status
        report = (decided, status, self._published, tuple(cards))
        if self.link is not None and self._published is not None and report != self._reported:
            self._reported = report
            mapping = mapping_with(self._published, self._products)
            labels = gpu_labels(layout_with(cards, self._products, self._published), Strategy.MIXED)
            self.link.report(report_with(mapping, labels, decided.desired, status))

    def use(self, held: Collection[Key]) -> tuple[CardUse, ...]:
        """The cards as they are cut now, and which of their devices are among these that pods hold."""
        published, cards = self._published or (), self._gpus.cards
        numbers = [card.index for card in cards if card.uuid in self._products]
        return use_of(numbers, layout_with(cards, self._products, published), published, held)

    async def _refresh(self) -> None:
        self._all = await asyncio.to_thread(self._gpus.devices, self._cuts.busy)
        await self._cards.learn(self._gpus.cards)
        products = [self._products.get(card.uuid) for card in self._gpus.cards]
        # the cards of a node are alike: another one stands for one that does not answer, which is not cut
        some = next(filter(None, products), None)
        cards = tuple(one for product in products if (one := product or some))
        if cards != self._layouts.cards:
            self._layouts, self._decided = _RealLayouts(cards, self._path, self._present), None

    def _present(self) -> Sequence[Cut]:
        return [Cut(tuple(one.instance for one in made_on(card))) for card in self._gpus.cards]

    async def _decide(self) -> None:
        before = self._decided
        self._decided = decide(self._layouts, self.link, self._layout_file, before)
        if self._decided is None:
            raise SourceFailed("the layout of the cards is not known yet")
        if before is None or before.desired != self._decided.desired:
            self._cuts.forget()
        self._objection = self._lock.objection() or await self._neighbours.objection(
            self.link.labels if self.link else {}
        )

    def _goals(self) -> dict[str, Cut]:
        """What becomes of the cards, by UUID; those that are not in it stay as they are."""
        found = {}
        for card in self._gpus.cards:
            wanted, uuid = self._wanted(card), card.uuid
            # where nothing is wanted, a cut that was killed is undone
            goal = Cut(wanted.instances, wanted.mig_enabled) if wanted else self._cuts.unfinished.get(uuid)
            if goal and not self._why_as_it_is(card) and uuid not in self._cuts.failed:
                found[uuid] = goal
        return found

    def _wanted(self, card: NvmlCard) -> CardLayout | None:
        cards = self._decided.layout.cards if self._decided else ()
        return cards[card.index] if card.index < len(cards) else None

    def _why_as_it_is(self, card: NvmlCard) -> str:
        """Why a card is not cut, whatever is wanted; empty: it is."""
        wanted = self._wanted(card)
        if self._objection or card.problem:
            return self._objection or card.problem
        if card.uuid not in self._products:
            return self._cards.why_unknown(card.uuid)
        if wanted and card.mig_enabled != wanted.mig_enabled and not self._switch_mode:
            return mode_stays(card)
        return unreadable(card)

    def _status(self, decided: Decided, result: Transition | NotPublished) -> NodeLayoutStatus:
        if decided.refusal or isinstance(result, NotPublished):
            return decided.status(result)
        names = {card.uuid: f"card {card.index}" for card in self._gpus.cards}
        failed = [f"{names.get(uuid, uuid)}: {message}" for uuid, message in self._cuts.failed.items()]
        if decided.desired and (self._objection or failed):
            return NodeLayoutStatus(State.FAILED, shortened(self._objection or "; ".join(failed)))
        waiting, reasons, leaving = 0, [], {one.model.parent for one in result.leaving}
        for card in self._gpus.cards:
            wanted = self._wanted(card)
            if wanted is None:
                continue
            made = made_on(card)
            missing = {*wanted.instances} - {one.instance for one in made if one.whole}
            waiting += len(missing)
            done = (
                not missing and len(made) == len(wanted.instances) and card.mig_enabled == wanted.mig_enabled
            )
            reason = self._cuts.reason(card.uuid) or self._why_as_it_is(card)
            if reason or not (done or card.uuid in leaving):
                reasons.append(f"card {card.index} {reason or 'is about to be cut'}")
        if result.leaving:
            reasons.insert(0, f"{waiting} to come after {staying(result)}")
        state = State.PENDING if reasons else State.SUCCESS
        return NodeLayoutStatus(state, shortened("; ".join(reasons)))
