"""Simulated GPUs: cards of a product, cut by a layout, visible in containers.

Every device brings a variable that describes it and a stand-in `nvidia-smi` that prints what those variables say; so
a container sees exactly its devices, whichever of them it got.

The simulated cards of one node, as a whole: desired text in, devices out, and a report about what became of them.
"""

import importlib.resources
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Card, Device, DeviceType, Edits, Model, Mount, Place, Span, Transition
from tessera.core.devices.preference import blocks_of
from tessera.core.mig.layout import CardLayout, NodeLayout, Slot, Strategy
from tessera.core.mig.placement import every_place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import CardUse, occupied
from tessera.core.resources import WHOLE_GPU
from tessera.node.files import PREFIX, put
from tessera.node.polling import NotPublished
from tessera.node.sources.laid_out import LaidOutSource
from tessera.node.sources.layout import Layouts
from tessera.node.sources.node_link import beside, report_of, without
from tessera.protocol.configuration.devices import SimulatedCards

SMI_IN_CONTAINER: Final = "/usr/bin/nvidia-smi"  # where NVIDIA's runtime puts the real one
_VARIABLE: Final = "TESSERA_DEVICE_"  # nvidia-smi.sh looks for it
_SMI: Final = (importlib.resources.files(__package__) / "nvidia-smi.sh").read_bytes()


class CardDevices:
    """Makes the devices of one node's cards."""

    def __init__(self, configuration: SimulatedCards, node: str, tools: Path) -> None:
        self._configuration = configuration
        self._node = node
        self._smi = tools / f"{PREFIX}nvidia-smi"
        self._made: tuple[NodeLayout, list[Device]] | None = None
        self._on_demand: list[Device] | None = None

    def of(self, layout: NodeLayout) -> Sequence[Device]:
        """The devices that a layout makes; the tool that they mount is put in place first."""
        self._put_tool()
        if self._made is None or self._made[0] is not layout:
            slots = layout.slots(self._configuration.strategy)
            made = [
                self._device(layout, resource, slot) for resource, those in slots.items() for slot in those
            ]
            self._made = (layout, made)
        return self._made[1]

    def on_demand(self, profiles: Collection[MigProfile]) -> Sequence[Device]:
        """Each card as a whole, and every place of these profiles, not cut yet."""
        self._put_tool()
        if self._on_demand is None:
            names = {"", *map(str, profiles)}  # a whole card has no profile
            self._on_demand = [
                replace(device, model=replace(device.model, cut=not device.model.profile))
                for device in self.possible()
                if device.model.profile in names
            ]
        return self._on_demand

    def possible(self) -> Sequence[Device]:
        """Every device that any layout could make of the cards."""
        cards = self._configuration.cards
        layout = NodeLayout(tuple(CardLayout(card) for card in cards))
        single = self._configuration.strategy is Strategy.SINGLE
        return [
            self._device(
                layout, WHOLE_GPU if place is None or single else place.profile.resource, Slot(number, place)
            )
            for number, product in enumerate(cards)
            for place in (None, *every_place(product))
        ]

    def _put_tool(self) -> None:
        try:
            put(self._smi, _SMI, mode=0o755)
        except OSError:
            if not self._smi.exists():  # that of an earlier version will do
                raise

    def _device(self, layout: NodeLayout, resource: str, slot: Slot) -> Device:
        product, numa_nodes = layout.cards[slot.card].product, self._configuration.numa_nodes
        gpu = Slot(slot.card).uuid(self._node)
        described = [product.name, gpu, str(product.memory_mib)]
        variable = f"{_VARIABLE}{slot.card:04}"
        if slot.instance is None:
            name, span = gpu, Span(0, product.memory_slices)
            model = Model(DeviceType.GPU, product.name, "", gpu, product.memory_mib)
        else:
            name = slot.uuid(self._node)
            span = Span(slot.instance.position, slot.instance.size)
            shape = product.shape(slot.instance.profile)
            memory = shape.memory_mib if shape else 0
            described += [str(slot.instance.profile), name, str(memory)]
            variable += f"_{span.start:02}"
            model = Model(DeviceType.MIG, product.name, str(slot.instance.profile), gpu, memory)
        return Device(
            name,
            resource=resource,
            cdi_kind=self._configuration.cdi_kind,
            edits=Edits(
                env=((variable, "|".join(described)),), mounts=(Mount(SMI_IN_CONTAINER, str(self._smi)),)
            ),
            env_list=self._configuration.env_list,
            place=Place(Card(slot.card, blocks_of(product)), span),
            numa=(slot.card * numa_nodes // len(layout.cards),) if numa_nodes else (),
            model=model,
        )


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
