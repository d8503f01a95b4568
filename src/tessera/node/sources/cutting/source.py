"""The real cards of one node, as a whole: desired text in, devices out, cuts, and a report about what became of them.

What the layout does not want is no longer given out. Once the plugin has published that, and no pod holds it, it is removed, and
what the layout wants comes in its place.

A GPU instance may go when none of its devices can be in a pod's hands: the plugin no longer publishes them, and says that none can
come back for a pod that the kubelet chose it for, or has not published them for so long that none can.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from tessera.core.devices.device import RECALL, Device, Transition
from tessera.core.mig.cutting import Cut, steps
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.planning.fragmentation import CardUse
from tessera.node.polling import NotPublished
from tessera.node.sources.cutting.card import Done, Failed, Order
from tessera.node.sources.cutting.jobs import CardJobs, PostponedCut
from tessera.node.sources.cutting.journal import Journal
from tessera.node.sources.cutting.reading import (
    devices_by_instance,
    ids_on,
    is_of,
    layout_with,
    made_on,
    mapping_with,
    use_of,
)
from tessera.node.sources.cutting.real_cards import RealCards
from tessera.node.sources.layout import Decided, Layouts, NodeLayoutStatus, State, shortened, staying
from tessera.node.sources.node_link import report_with
from tessera.node.sources.nvml_card import NvmlCard
from tessera.node.state import Key
from tessera.protocol.mig.documents import read_layout
from tessera.protocol.mig.nodes import gpu_labels

log = logging.getLogger(__name__)

# seconds that the first devices wait for cards that have room for slices of their layout
_FIRST: Final = 30.0
_AFTER_REFUSAL: Final = (60.0, 1800.0)  # seconds until a card that NVML refused to cut is tried again


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


class PossibleCuts:
    """Knows what killed processes left, and which devices pods cannot have any more."""

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self._journal = journal
        self._clock = clock
        # cards that a killed process was cutting, and what they were before
        self.unfinished: dict[str, Cut] = {}
        self._begun: set[str] = set()
        # ids that are on a card and not published, and since when; minus infinity: they cannot come back
        self._absent: dict[str, float] = {}

    def begin(self, cards: Iterable[NvmlCard]) -> None:
        """Look for cards that a killed process was cutting; each once, when it is first seen and before it is cut."""
        for uuid in {card.uuid for card in cards if card.uuid} - self._begun:
            self._begun.add(uuid)
            if before := self._journal.before(uuid):
                self.unfinished[uuid] = before

    def published(
        self, cards: Iterable[NvmlCard], devices: Iterable[Device], released: frozenset[str] = frozenset()
    ) -> None:
        """These and no others are published to pods from now on, or held by them; those `released` were, and cannot come back."""
        now, there = self._clock(), {device.id for device in devices}
        ids = {name for card in cards for name in ids_on(card)}
        self._absent = {
            name: -inf if name in released else self._absent.get(name, now) for name in ids - there
        }

    def order(self, card: NvmlCard, product: Product, goal: Cut) -> Order | None:
        """What may be done to a card now; None: nothing."""
        free = self._free(card)
        if card.mig_enabled == goal.mig:
            made = made_on(card)
            todo = bool(steps(product, made, goal.instances, {instance.id for instance in made} - free))
            switch = False
        else:
            on_it = ids_on(card) - ({card.uuid} if card.mig_enabled else set())
            todo = switch = all(map(self._is_free, on_it))
        if not todo and card.uuid not in self.unfinished:
            return None
        return Order(card.uuid, product, goal, free, switch)

    def _free(self, card: NvmlCard) -> frozenset[int]:
        """The GPU instances of a card that may go."""
        by_instance = devices_by_instance(card).items()
        return frozenset(
            number for number, devices in by_instance if all(self._is_free(device.uuid) for device in devices)
        )

    def _is_free(self, name: str) -> bool:
        since = self._absent.get(name)
        return since is not None and self._clock() - since >= RECALL


@dataclass(eq=False, kw_only=True)
class CutSource(RealCards):
    """Cuts the cards as the layout says; without a file and a client they are only read."""

    def __post_init__(self) -> None:
        self.changed = self.changed or asyncio.Event()
        super().__post_init__()
        self._possible = PossibleCuts(self._journal, self.clock)
        self._cuts = CardJobs(
            self._driver,
            self._journal,
            self._lock,
            self.changed,
            self.clock,
            keeps_lock=True,
            after_refusal=_AFTER_REFUSAL,
        )
        self._path = self.state_dir / "layout"
        self._layouts = _RealLayouts((), self._path, self._present)
        self._objection = ""  # why the cards are not ours to cut
        self._filled = False  # whether the start has cut what the cards had room for
        self._all: Sequence[Device] = ()  # on the cards, wanted or not
        self._published: tuple[Device, ...] | None = None  # by the plugin; None: nothing yet

    async def run(self) -> None:
        """Follow the node and write reports to it until cancelled."""
        try:
            await super().run()
        finally:
            self._lock.release()

    async def devices(self) -> Sequence[Device]:
        """The devices that are there and that the layout wants."""
        if self._collect():
            self._gpus.invalidate()
        await self._refresh()
        await self._follow_layout()
        self._possible.begin(self._gpus.cards)
        goals = self._goals()
        if not self._filled:
            await self._fill(goals)
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
            self._possible.published(cards, result.devices, result.released)
            self._start(self._goals(), cards)
        status = self._status(decided, result)
        self._set_status(status)
        if self.link is not None and self._published is not None:
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

    async def _follow_layout(self) -> None:
        before, decided = self._decided, self._decide(self._layouts)
        if before is None or before.desired != decided.desired:
            self._cuts.forget()
        self._objection = self._lock.objection() or await self._neighbours.objection(
            self.link.labels if self.link else {}
        )

    async def _fill(self, goals: Mapping[str, Cut]) -> None:
        """Cut what the cards have room for, before anything is published: after a start of the machine that is all."""
        self._gpus.close()
        with_mig = {uuid: goal for uuid, goal in goals.items() if goal.mig}
        self._start(with_mig, [card for card in self._gpus.cards if card.mig_enabled])
        ends = self.clock() + _FIRST
        for uuid in self._cuts.busy:
            await self._cuts.wait_for(uuid, ends)
        self._collect()

    def _start(self, goals: Mapping[str, Cut], cards: Iterable[NvmlCard]) -> None:
        """Begin what may be done to the cards now."""
        orders = []
        for card in cards:
            goal = goals.get(card.uuid)
            if goal is None or card.uuid in self._cuts.busy or self._cuts.postponed(card.uuid, goal):
                continue
            if order := self._possible.order(card, self._products[card.uuid], goal):
                orders.append(order)
        if orders:
            self._gpus.close()
        for order in orders:
            self._cuts.start(order)

    def _collect(self) -> bool:
        """Take the outcomes of cuts that have ended; whether there were any."""
        outcomes = self._cuts.collect()
        for uuid, cut in outcomes.items():
            name = self._name(uuid)
            match cut:
                case Done():
                    self._possible.unfinished.pop(uuid, None)
                    log.info("%s is cut", name)
                case PostponedCut(outcome=Failed(message, lasting=True)):
                    log.error("%s cannot be cut: %s", name, message)
                case PostponedCut(outcome=Failed(message)):
                    log.error(
                        "%s cannot be cut, will be tried again in %.0f s: %s", name, cut.seconds, message
                    )
                case PostponedCut(is_news=True):
                    log.warning("%s cannot be cut yet, will be tried again: %s", name, cut.outcome.message)
        return bool(outcomes)

    def _goals(self) -> dict[str, Cut]:
        """What becomes of the cards, by UUID; those that are not in it stay as they are."""
        goals = {}
        for card in self._gpus.cards:
            goal = self._goal(card)
            if goal and not (self._why_as_it_is(card) or self._refusal(card)):
                goals[card.uuid] = goal
        return goals

    def _goal(self, card: NvmlCard) -> Cut | None:
        wanted = self._wanted(card)
        if wanted is None:  # a cut that was killed is undone
            return self._possible.unfinished.get(card.uuid)
        return Cut(wanted.instances, wanted.mig_enabled)

    def _refusal(self, card: NvmlCard) -> str:
        """NVML's message, while a card stays as it is because NVML refused to cut it; empty: it does not."""
        goal = self._goal(card)
        cut = self._cuts.postponed(card.uuid, goal) if goal else None
        return cut.outcome.message if cut and isinstance(cut.outcome, Failed) else ""

    def _wanted(self, card: NvmlCard) -> CardLayout | None:
        cards = self._decided.layout.cards if self._decided else ()
        return cards[card.index] if card.index < len(cards) else None

    def _why_as_it_is(self, card: NvmlCard) -> str:
        """Why a card is not cut, whatever is wanted; empty: it is."""
        wanted = self._wanted(card)
        return self._objection or self._obstacle(card, mig=wanted.mig_enabled if wanted else card.mig_enabled)

    def _status(self, decided: Decided, result: Transition | NotPublished) -> NodeLayoutStatus:
        if decided.refusal or isinstance(result, NotPublished):
            return decided.status(result)
        refusals = [(card.index, self._refusal(card)) for card in self._gpus.cards]
        failed = [f"card {index}: {message}" for index, message in refusals if message]
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
            # what kept a card from being cut matters no more when it is as it was wanted: a person has reset it, perhaps
            at_work = self._cuts.at_work(card.uuid) if done else self._cuts.reason(card.uuid)
            reason = at_work or self._why_as_it_is(card)
            if reason or not (done or card.uuid in leaving):
                reasons.append(f"card {card.index} {reason or 'is about to be cut'}")
        if result.leaving:
            reasons.insert(0, f"{waiting} to come after {staying(result)}")
        state = State.PENDING if reasons else State.SUCCESS
        return NodeLayoutStatus(state, shortened("; ".join(reasons)))
