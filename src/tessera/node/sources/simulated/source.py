"""The simulated cards of one node, as a whole: desired text in, devices out, and a report about what became of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tessera.core.devices.device import Device
from tessera.core.devices.transition import Transition
from tessera.core.mig.layout import NodeLayout
from tessera.core.planning.fragmentation import CardUse, occupied
from tessera.node.polling import NotPublished
from tessera.node.sources.laid_out import LaidOutSource
from tessera.node.sources.layout import Layouts
from tessera.node.sources.node_link import beside, report_of, without
from tessera.node.sources.simulated.cards import CardDevices
from tessera.protocol.configuration.devices import SimulatedCards


@dataclass(frozen=True, slots=True)
class _There:
    """What is on the cards, whatever is desired of them."""

    layout: NodeLayout  # the devices that pods can be given
    leaving: frozenset[str]  # the ids of those that stay for their pods


@dataclass(eq=False, kw_only=True)
class SimulatedSource(LaidOutSource):
    """Simulated cards. A layout that nobody desires comes from the configuration. No method waits."""

    destroys = False  # a simulated slice that is gone can come back as it was

    _configuration: SimulatedCards = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        cards = self._configuration
        if cards.dynamic is not None:
            self._refuse_layout_file()
        self._layouts = Layouts(cards.cards, cards.strategy, self.state_dir / "layout", cards.layout)
        self._cards = CardDevices(cards, self.node, self.state_dir)
        self._there: _There | None = None  # None: nothing yet

    async def devices(self) -> Sequence[Device]:
        """The devices of the layout that is desired now, or of the last good one."""
        if self._configuration.dynamic is not None:
            self._decided = self._layouts.refuse(self.link.desired if self.link else None)
            return self._cards.on_demand(self._configuration.dynamic)
        return self._cards.of(self._decide(self._layouts).layout)

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
            self._there = _There(without(decided.layout, self.node, waiting), leaving)
        status = decided.status(result)
        self._set_status(status)
        if self.link is not None and self._there is not None:
            layout, leaving = self._there.layout, self._there.leaving
            self.link.report(
                report_of(self.node, layout, leaving, self._configuration.strategy, decided.desired, status)
            )

    def use(self, held: Collection[tuple[str, str]]) -> tuple[CardUse, ...]:
        """The cards as they are cut now, and which of their devices are among these that pods hold."""
        if self._there is None:
            return ()
        layout = beside(self._there.layout, self.node, self._there.leaving)
        slots = {
            slot
            for resource, some in layout.slots(self._configuration.strategy).items()
            for slot in some
            if (resource, slot.uuid(self.node)) in held
        }
        return occupied(layout, slots)
