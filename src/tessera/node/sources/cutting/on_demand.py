"""Real cards that are cut as claims ask for it: every place that NVML has for a profile is offered, and a card has the slices of its claims.

The DRA driver says what claims hold with each cut it asks for. Anything else on a card may go, as far as no program uses it: a cut that was
killed left it, or another program made it.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.devices.device import Card, Device, DeviceType, Place, Span, Transition
from tessera.core.devices.preference import blocks_of
from tessera.core.mig.cutting import Cut
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.mig.placement import Instance, every_place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import CardUse
from tessera.node.polling import NotPublished
from tessera.node.sources.cutting.card import Done, Order
from tessera.node.sources.cutting.jobs import CardJobs, PostponedCut
from tessera.node.sources.cutting.reading import (
    CardClaims,
    free_on,
    made_on,
    place_on,
    slice_at,
)
from tessera.node.sources.cutting.real_cards import RealCards
from tessera.node.sources.layout import refused
from tessera.node.sources.node_link import report_with
from tessera.node.sources.nvml_card import NvmlCard
from tessera.node.state import Key
from tessera.protocol.mig.nodes import gpu_labels

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class OnDemandSource(RealCards):
    """Cuts the cards as claims ask for it."""

    profiles: Collection[MigProfile] = ()  # what may be cut; none: all that a card has

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_layout_file()
        # why the cards are not ours to cut, besides what claims had cut; the driver says it, and it begins with not knowing
        self.objection = "it is not known yet whether other programs have the cards"
        self._jobs = CardJobs(self._driver, self._journal, self._lock, asyncio.Event(), self.clock)
        self._offered: dict[str, tuple[object, list[Device]]] = {}  # by UUID: made of what, and which
        self._reading = asyncio.Lock()  # NVML is read by one at a time
        self._seen: set[str] = set()  # cards that were cleaned up since we started

    # what the driver asks, as of any source

    async def run(self) -> None:
        """Follow the node and write reports to it until cancelled."""
        try:
            if self.link is not None:
                await self.link.run()
            else:
                await asyncio.Event().wait()
        finally:
            self._jobs.stop()

    async def devices(self) -> Sequence[Device]:
        """Each card as a whole and every place of the profiles, as far as MIG mode allows it."""
        await self._collect()
        await self.refresh()
        return [device for card in self._gpus.cards for device in self._of(card)]

    def use(self, held: Collection[Key]) -> tuple[CardUse, ...]:
        """Nothing: a device plugin has no such cards."""
        return ()

    def report(self, result: Transition | NotPublished) -> None:
        """Refuse any layout that the node asks for, and say what its cards are."""
        if self.link is None or not self.link.synced:
            return
        cards = [self._products[card.uuid] for card in self._gpus.cards if card.uuid in self._products]
        decided = refused(
            self.link.desired, NodeLayout(tuple(CardLayout(product) for product in cards)), "nvml"
        )
        status = decided.status(result)
        self._set_status(status)
        labels = gpu_labels(decided.layout, Strategy.MIXED)
        self.link.report(report_with({}, labels, decided.desired, status))

    # what is asked of real cards that claims cut

    @property
    def on_cards(self) -> Sequence[Device]:
        """The slices that are on the cards now, whichever program made them."""
        return [self._gpus.device(card, mig) for card in self._gpus.cards for mig in card.mig_devices]

    @property
    def counted(self) -> dict[str, Product]:
        """The cards that are cut on demand, by UUID, and what they are."""
        cards = [card for card in self._gpus.cards if self._is_cut(card)]
        return {card.uuid: self._products[card.uuid] for card in cards}

    async def cut_by_others(self, labels: Mapping[str, str]) -> str:
        """Which other program cuts the cards, given the node's labels; empty: none."""
        return await self._neighbours.objection(labels)

    def found(self, device: Device) -> Device | None:
        """A device as its card was seen last; None: it was not there."""
        card = self._card(device.model.parent)
        if card is None or not device.place:
            return None
        if device.model.type is DeviceType.GPU:
            return None if card.mig_enabled else device
        mig = slice_at(card, device.model.profile, device.place.span.start)
        return replace(self._gpus.device(card, mig), place=device.place) if mig else None

    def knows(self, uuid: str) -> bool:
        return self._card(uuid) is not None

    def has(self, uuid: str, instance: Instance) -> bool:
        """Whether a card had a slice when it was seen last."""
        card = self._card(uuid)
        return card is not None and any(one.instance == instance for one in made_on(card))

    def answers(self, uuid: str) -> bool:
        """Whether it is known what is on a card."""
        card = self._card(uuid)
        return card is not None and not card.problem and uuid not in self._jobs.busy

    def untidy(self, wanted: Mapping[str, CardClaims]) -> list[str]:
        """Cards that have slices which no claim holds, or were not cleaned up since we started."""
        found = []
        for card in self._gpus.cards:
            held = wanted[card.uuid]
            left = {at for _, at in free_on(card, held)} - {*held.instances}
            if card.mig_enabled and (left or card.uuid not in self._seen) and self.answers(card.uuid):
                found.append(card.uuid)
        return found

    async def cut(
        self,
        uuid: str,
        wanted: CardClaims,
        timeout: float,
        *,
        make: Sequence[Instance] = (),
        only: Collection[Instance] | None = None,
    ) -> str:
        """Take from a card what no claim holds, and make these slices on it: NVML's message, or why it was not done; empty: it is so.

        `only`: of the slices that no claim holds just these may go. Never called twice at a time for one card. A call that hangs
        goes on by itself after the timeout.
        """
        ends = self.clock() + timeout
        if at_work := await self._wait_for_card(uuid, ends):
            return at_work
        with self._jobs.alone() as objection:
            if objection := objection or (self.objection if only is None else ""):
                return objection
            await self.refresh(force=True)
            order = self._order(uuid, wanted, make, only)
            if isinstance(order, str):
                return f"{self._name(uuid)} {order}"
            if cut := self._jobs.postponed(uuid, order.goal):
                return f"{self._name(uuid)}: {cut.outcome.message}"
            if not (order.goal.mig or self._is_mig(uuid) or self._journal.before(uuid)):
                return ""  # a whole card that is to be one
            async with self._reading:
                self._gpus.close()
            job = self._jobs.start(order)
            if at_work := await self._wait_for_card(uuid, ends):
                return at_work
            return f"{self._name(uuid)}: {job.message}" if job.message else ""

    # ----

    async def _wait_for_card(self, uuid: str, ends: float) -> str:
        """Wait for what is at work on the card, and collect its result; what is still at work when the time is over."""
        await self._jobs.wait_for(uuid, ends)
        await self._collect()
        at_work = self._jobs.at_work(uuid)
        return f"{self._name(uuid)} {at_work}" if at_work else ""

    async def _collect(self) -> None:
        ended = self._jobs.collect()
        for uuid, cut in ended.items():
            self.metrics.cuts.add("done" if isinstance(cut, Done) else "failed")
            if isinstance(cut, PostponedCut) and cut.is_news:
                message = cut.outcome.message
                log.warning("%s: not all is cut, will be tried again: %s", self._name(uuid), message)
        if ended:
            self._seen.update(ended)
            await self.refresh(force=True)

    def _order(
        self, uuid: str, wanted: CardClaims, make: Sequence[Instance], only: Collection[Instance] | None
    ) -> Order | str:
        card = self._card(uuid)
        if card is None:
            return "is not there"
        mig = bool(make) or (card.mig_enabled and not wanted.whole)
        if obstacle := self._obstacle(card, mig=mig):
            return obstacle
        free = {number: at for number, at in free_on(card, wanted) if only is None or at in only}
        made = made_on(card)
        kept = [one.instance for one in made if one.id not in free]
        # what other claims hold and is not there is none of this cut's business: NVML may refuse it
        stay = [one.instance for one in made if one.id not in free or one.instance in wanted.instances]
        goal = Cut((*make, *(at for at in stay if at not in make)), mig)
        return Order(uuid, self._products[uuid], goal, frozenset(free), self.switch_mode and not kept)

    def _is_mig(self, uuid: str) -> bool:
        card = self._card(uuid)
        return card is not None and card.mig_enabled

    async def refresh(self, *, force: bool = False) -> None:
        """Read the cards; `force`: even if that was done a moment ago. Raises `SourceFailed`."""
        async with self._reading:
            if force:
                self._gpus.invalidate()
            await asyncio.to_thread(self._gpus.refresh, self._jobs.busy)
            for uuid, product in (await self._cards.learn(self._gpus.cards)).items():
                if unknown := sorted({*self.profiles} - {*product.profiles}):
                    names = ", ".join(map(str, unknown))
                    log.warning(
                        "%s has no profile %s; it has %s", self._name(uuid), names, product.profile_names
                    )

    def _is_cut(self, card: NvmlCard) -> bool:
        """Whether places on the card are offered."""
        product = self._products.get(card.uuid)
        return product is not None and bool(product.shapes) and (card.mig_enabled or self.switch_mode)

    def _of(self, card: NvmlCard) -> list[Device]:
        """The card, and every place on it, with what is wrong with them."""
        problem = self._gpus.problem(card, None, whole=False)
        problems = {
            (m.profile, m.start): message
            for m in card.mig_devices
            if (message := self._gpus.problem(card, m))
        }
        made_of: object = (card, problem, problems)
        known = self._offered.get(card.uuid)
        if known is None or known[0] != made_of:
            known = self._offered[card.uuid] = (made_of, self._made(card, problem, problems))
        return known[1]

    def _made(
        self, card: NvmlCard, problem: str, problems: Mapping[tuple[str, int | None], str]
    ) -> list[Device]:
        whole, product = self._gpus.device(card), self._products.get(card.uuid)
        if product is None or not self._is_cut(card):
            return [whole]
        on = Card(card.index, blocks_of(product))
        places = [
            place_on(
                replace(whole, problem=problems.get((str(one.profile), one.position), problem)),
                on,
                product,
                one,
            )
            for one in every_place(product)
            if not self.profiles or one.profile in self.profiles
        ]
        itself = replace(whole, place=Place(on, Span(0, product.memory_slices)))
        return [itself, *places] if self.switch_mode else places
