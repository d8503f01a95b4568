"""Which cards are cut now: what may go, what is at work, what is tried again, and what NVML refused.

A GPU instance may go when none of its devices can be in a pod's hands: the plugin no longer publishes them, and says that none can come
back for a pod that the kubelet chose it for, or has not published them for so long that none can.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.devices.transition import RECALL
from tessera.core.mig.cutting import Cut, steps
from tessera.core.mig.geometry import Product
from tessera.node.sources.cutting.card import Busy, Done, Failed, Order, ResetNeeded
from tessera.node.sources.cutting.jobs import AGAIN, CutJob, wake
from tessera.node.sources.cutting.journal import Journal
from tessera.node.sources.cutting.port import GpuDriver
from tessera.node.sources.cutting.reading import devices_by_instance, ids_on, made_on
from tessera.node.sources.nvml_card import NvmlCard

log = logging.getLogger(__name__)

_FIRST: Final = (
    30.0  # seconds that the first devices wait for cards that have room for slices of their layout
)
_AFTER_FAILURE: Final = (60.0, 1800.0)  # until a card that failed is tried again, likewise


@dataclass(frozen=True, slots=True)
class _Later:
    """A card that is tried again."""

    message: str
    at: float  # infinite: not before another layout is desired
    delay: float = inf


class Cuts:
    def __init__(
        self, driver: GpuDriver, journal: Journal, changed: asyncio.Event, clock: Callable[[], float]
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._changed = changed
        self._clock = clock
        self._jobs: dict[str, CutJob] = {}
        self._later: dict[str, _Later] = {}  # in use
        self._failed: dict[str, _Later] = {}
        # cards that a killed process was cutting, and what they were before
        self.unfinished: dict[str, Cut] = {}
        self._begun: set[str] = set()
        # ids that are on a card and not published, and since when; minus infinity: they cannot come back
        self._absent: dict[str, float] = {}

    @property
    def failed(self) -> dict[str, str]:
        """The cards that stay as they are for now because NVML refused, by UUID, with its message."""
        return {uuid: one.message for uuid, one in self._failed.items() if self._clock() < one.at}

    @property
    def busy(self) -> frozenset[str]:
        """The cards that are being cut."""
        return frozenset(self._jobs)

    def begin(self, cards: Iterable[NvmlCard]) -> None:
        """Look for cards that a killed process was cutting; each once, when it is first seen and before it is cut."""
        for uuid in {card.uuid for card in cards if card.uuid} - self._begun:
            self._begun.add(uuid)
            if before := self._journal.before(uuid):
                self.unfinished[uuid] = before

    def forget(self) -> None:
        """Another layout is desired: what was refused may be possible now."""
        self._failed, self._later = {}, {}

    def published(
        self, cards: Iterable[NvmlCard], devices: Iterable[Device], released: frozenset[str] = frozenset()
    ) -> None:
        """These and no others are published to pods from now on, or held by them; those `released` were, and cannot come back."""
        now, there = self._clock(), {one.id for one in devices}
        ids = {name for card in cards for name in ids_on(card)}
        self._absent = {
            name: -inf if name in released else self._absent.get(name, now) for name in ids - there
        }

    def reason(self, uuid: str) -> str:
        """What keeps a card from being cut, besides pods; empty: nothing."""
        job, later = self._jobs.get(uuid), self._later.get(uuid)
        if job is not None:
            return job.hangs or "is being cut"
        return f"will be tried again: {later.message}" if later else ""

    async def fill(
        self, goals: Mapping[str, Cut], cards: Sequence[NvmlCard], products: Mapping[str, Product]
    ) -> None:
        """Cut what the cards have room for, before anything is published: after a start of the machine that is all."""
        orders = []
        for card in cards:
            goal = goals.get(card.uuid)
            if goal is None or not (card.mig_enabled and goal.mig):
                continue
            made = made_on(card)
            todo = steps(products[card.uuid], made, goal.instances, [one.id for one in made])
            if todo or card.uuid in self.unfinished:
                orders.append(Order(card.uuid, products[card.uuid], goal))
        self._start(orders)
        ends = self._clock() + _FIRST
        for job in [*self._jobs.values()]:
            await asyncio.to_thread(job.join, max(0.0, ends - self._clock()))

    def start(
        self,
        goals: Mapping[str, Cut],
        cards: Sequence[NvmlCard],
        products: Mapping[str, Product],
        close: Callable[[], None],
    ) -> None:
        """Begin what may be done now; `close` lets go of the cards."""
        orders = []
        for card in cards:
            later, goal = self._later.get(card.uuid), goals.get(card.uuid)
            if goal is None or card.uuid in self._jobs or (later and self._clock() < later.at):
                continue
            order = self._order(card, products[card.uuid], goal)
            if order is not None:
                orders.append(order)
        if orders:
            close()
            self._start(orders)

    def _order(self, card: NvmlCard, product: Product, goal: Cut) -> Order | None:
        free = self._free(card)
        if card.mig_enabled == goal.mig:
            made = made_on(card)
            todo = bool(steps(product, made, goal.instances, {one.id for one in made} - free))
            switch = False
        else:
            on_it = ids_on(card) - ({card.uuid} if card.mig_enabled else set())
            todo = switch = all(map(self._is_free, on_it))
        if not todo and card.uuid not in self.unfinished:
            return None
        return Order(card.uuid, product, goal, free, switch)

    def _free(self, card: NvmlCard) -> frozenset[int]:
        """The GPU instances of a card that may go."""
        some = devices_by_instance(card).items()
        return frozenset(number for number, on_it in some if all(self._is_free(one.uuid) for one in on_it))

    def _is_free(self, name: str) -> bool:
        since = self._absent.get(name)
        return since is not None and self._clock() - since >= RECALL

    def _start(self, orders: Sequence[Order]) -> None:
        loop = asyncio.get_running_loop()
        for order in orders:
            job = CutJob(order, self._driver, self._journal, lambda: wake(loop, self._changed), self._clock)
            self._jobs[order.card] = job
            job.start()

    def collect(self, cards: Iterable[NvmlCard]) -> bool:
        """Take the outcomes of cuts that have ended; whether there were any."""
        names = {card.uuid: f"card {card.index}" for card in cards}
        ended = [(uuid, job.outcome) for uuid, job in self._jobs.items() if job.outcome is not None]
        for uuid, outcome in ended:
            del self._jobs[uuid]
            before, failed = self._later.pop(uuid, None), self._failed.pop(uuid, None)
            name = names.get(uuid, uuid)
            match outcome:
                case Done():
                    self.unfinished.pop(uuid, None)
                    log.info("%s is cut", name)
                case Busy(message) | ResetNeeded(message):
                    self._later[uuid] = self._next(message, before, AGAIN)
                    if before is None or before.message != message:
                        log.warning("%s cannot be cut yet, will be tried again: %s", name, message)
                case Failed(message, lasting=True):
                    self._failed[uuid] = _Later(message, inf)
                    log.error("%s cannot be cut: %s", name, message)
                case Failed(message):
                    self._failed[uuid] = again = self._next(message, failed, _AFTER_FAILURE)
                    log.error(
                        "%s cannot be cut, will be tried again in %.0f s: %s", name, again.delay, message
                    )
        return bool(ended)

    def _next(self, message: str, before: _Later | None, delays: tuple[float, float]) -> _Later:
        delay = min(2 * before.delay, delays[1]) if before else delays[0]
        return _Later(message, self._clock() + delay, delay)
