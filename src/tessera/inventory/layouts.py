"""Layouts, with what is known of the cards that they are for; those of nodes as the nodes describe them."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tessera.core.dra.naming import cut_now, slot_name
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_COUNT_LABEL, GPU_PRODUCT_LABEL
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import LayoutEntry, NodeLayout, Slot, Strategy, entries_of, resolve
from tessera.core.planning.fragmentation import packed
from tessera.inventory.devices import placed_devices
from tessera.inventory.inventory import Inventory
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import GpuNode, present_layout


@dataclass(frozen=True, slots=True)
class Source:
    """A layout document, and what is known of the cards that it is for."""

    where: str
    document: mig.MigDocument
    product: Product | None = None
    cards: int | None = None
    strategy: Strategy = Strategy.MIXED
    present: NodeLayout | None = None  # how a node's cards are cut, whatever is desired
    used: Mapping[str, int] | None = None  # devices that pods hold, by resource; None: unknown
    node: GpuNode | None = None
    held: Collection[str] = ()  # the ids of those devices, as far as kubelets write them down
    pending: str = ""  # why a node's cards are not cut as desired yet
    claimed: Collection[str] = ()  # the names of devices that claims hold, where DRA hands them out

    def in_use(self, layout: NodeLayout) -> "InUse | None":
        """Which devices of a layout pods hold; None where pods are not known."""
        if self.used is None:
            return None
        if self.claimed:
            every = (slot for slots in layout.slots(self.strategy).values() for slot in slots)
            return InUse(frozenset(slot for slot in every if slot_name(slot) in self.claimed), certain=True)
        offered = layout.resources(self.strategy)
        numbers = {resource: min(self.used.get(resource, 0), count) for resource, count in offered.items()}
        if self.node is not None and self.held:
            known = [one for one in placed_devices(self.node, layout) if one.id in self.held]
            counts = Counter(one.resource for one in known)
            if all(counts[resource] == number for resource, number in numbers.items()):
                return InUse(frozenset(one.slot for one in known), certain=True)
        cards = packed(layout, self.used, self.strategy)
        slots = {Slot(number, one) for number, card in enumerate(cards) for one in card.used}
        slots |= {Slot(number) for number, card in enumerate(cards) if card.whole_in_use}
        return InUse(
            frozenset(slots), certain=all(number in (0, offered[r]) for r, number in numbers.items())
        )

    def configs(self, name: str | None) -> dict[str, tuple[LayoutEntry, ...]]:
        """The configuration of that name, or all there are."""
        return {name: self.document.select(name)} if name else dict(self.document.configs)

    def layout(self, entries: tuple[LayoutEntry, ...]) -> NodeLayout:
        """The layout that the entries give the cards; as many as they name where their number is unknown."""
        if self.product is None:
            raise InvalidInput(f"{self.where}: which product are the cards? Say it with --product")
        named = [number for entry in entries for number in entry.cards or ()]
        return resolve(entries, [self.product] * (self.cards or max(named, default=0) + 1))


@dataclass(frozen=True, slots=True)
class InUse:
    """The devices of a node that pods hold."""

    slots: frozenset[Slot]
    certain: bool  # else only the numbers are known, and they are taken to lie on as few cards as possible


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A node whose layout cannot be read, or whose cards are unknown."""

    where: str
    reason: str


def node_layouts(
    inventory: Inventory,
    product: Product | None = None,
    cards: int | None = None,
    *,
    with_used: bool = False,
    only: Collection[str] = (),
) -> list[Source | Unreadable]:
    """The layouts of nodes that describe how their cards are cut, or should be; with what is used, also of those cut on demand.

    What the caller says about the cards has precedence over what a node says.
    """
    claimed = inventory.dra.devices_held()
    on_demand = {
        name
        for name in inventory.gpus
        if with_used and inventory.dra.is_cut_on_demand(inventory.capacity[name])
    }
    return [
        _cut_on_demand(node, product or node.product, cards or node.cards, claimed.get(name, ()))
        if name in on_demand
        else _of_node(
            node,
            product or node.product,
            cards or node.cards,
            inventory.used(name) if with_used else None,
            inventory.held.get(name, ()),
            claimed.get(name, ()),
        )
        for name, node in inventory.gpus.items()
        if (node.layout is not None or node.mapping is not None or name in on_demand)
        and (not only or name in only)
    ]


def _cut_on_demand(
    node: GpuNode, product: Product | None, cards: int | None, claimed: Collection[str]
) -> Source | Unreadable:
    """A node whose cards are cut as claims ask for it: what claims hold now, and free room beside it."""
    where = f"node {node.name}"
    if product is None or cards is None:
        return Unreadable(
            where, _unknown(node) if product is None else f"no label {GPU_COUNT_LABEL}; set it with --cards"
        )
    try:
        now = cut_now(product, cards, claimed)
    except InvalidInput as error:
        return Unreadable(where, str(error))
    document = mig.MigDocument(mig.Format.RUNAI, {mig.SELECTED: entries_of(now)})
    return Source(where, document, product, cards, node.strategy, now, {}, node, claimed=claimed)


def _unknown(node: GpuNode) -> str:
    called = f'unknown product "{node.label}"' if node.label else f"no label {GPU_PRODUCT_LABEL}"
    return f"{called}; set it with --product"


def _of_node(
    node: GpuNode,
    product: Product | None,
    cards: int | None,
    used: Mapping[str, int] | None,
    held: Collection[str],
    claimed: Collection[str],
) -> Source | Unreadable:
    where = f"node {node.name}"
    if product is None:
        return Unreadable(where, _unknown(node))
    try:
        present = present_layout(node) if node.mapping is not None else None
    except InvalidInput as error:
        if node.layout is None:
            return Unreadable(where, str(error))
        present = None  # the desired layout is still worth a look
    try:
        document = (
            mig.MigDocument(mig.Format.RUNAI, {mig.SELECTED: entries_of(present)})
            if node.layout is None and present is not None
            else mig.read(node.layout or "", mig.RUNAI_CONFIG)
        )
    except InvalidInput as error:
        return Unreadable(where, str(error))
    pending = (node.reason or "the node gives no reason") if node.state == "pending" else ""
    return Source(where, document, product, cards, node.strategy, present, used, node, held, pending, claimed)
