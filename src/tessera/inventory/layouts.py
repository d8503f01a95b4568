"""Layouts, with what is known of the cards that they are for; those of nodes as the nodes describe them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tessera.core.devices.held import Held, Placed, believed
from tessera.core.dra.device_names import cut_now, slot_name
from tessera.core.dra.slices import DRIVER
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_COUNT_LABEL
from tessera.core.mig.geometry import Product
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.layout import LayoutEntry, NodeLayout, Slot, Strategy, resolve_alike
from tessera.core.planning.fragmentation import packed
from tessera.inventory.inventory import Inventory
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import GpuNode, MappedDevice, decode_in_use, decode_mapping, present_layout


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
    known: KnownLayout | None = None  # where no annotation describes the cards: how it is known all the same
    by_api: Callable[[str], Mapping[str, int]] = lambda _: {}  # resource → how many each pod holds

    def in_use(self, layout: NodeLayout) -> "DevicesInUse | None":
        """Which devices of a layout pods hold; None where pods are not known."""
        if self.used is None:
            return None
        if self.claimed:
            every = (slot for slots in layout.slots(self.strategy).values() for slot in slots)
            return DevicesInUse(
                frozenset(slot for slot in every if slot_name(slot) in self.claimed), certain=True
            )
        if (found := self._published(layout)) is not None:
            return found
        offered = layout.resources(self.strategy)
        numbers = {resource: min(self.used.get(resource, 0), count) for resource, count in offered.items()}
        if self.node is not None and self.held:
            known = [one for one in placed_devices(self.node, layout) if one.id in self.held]
            counts = Counter(one.resource for one in known)
            if all(counts[resource] == number for resource, number in numbers.items()):
                return DevicesInUse(frozenset(one.slot for one in known), certain=True)
        cards = packed(layout, self.used, self.strategy)
        slots = {Slot(number, one) for number, card in enumerate(cards) for one in card.used}
        slots |= {Slot(number) for number, card in enumerate(cards) if card.whole_in_use}
        return DevicesInUse(
            frozenset(slots), certain=all(number in (0, offered[r]) for r, number in numbers.items())
        )

    def _published(self, layout: NodeLayout) -> "DevicesInUse | None":
        """The same as the node's device plugin says it; None where it does not, or where it is not believed."""
        published = decode_in_use(self.node.in_use) if self.node and not self.node.by_mig_manager else None
        if published is None:
            return None
        some = (slot for slots in layout.slots(self.strategy).values() for slot in slots)
        places = {(slot.card, slot.place): slot for slot in some}
        numbers = {resource for resource, number in (self.used or {}).items() if number}
        held = believed(published, self.strategy, places, numbers, self.by_api)
        return None if held.resources else DevicesInUse(held.slots, certain=True)

    def configs(self, name: str | None) -> dict[str, tuple[LayoutEntry, ...]]:
        return {name: self.document.select(name)} if name else dict(self.document.configs)

    def layout(self, entries: tuple[LayoutEntry, ...]) -> NodeLayout:
        """The layout that the entries give the cards; as many as they name where their number is unknown."""
        if self.product is None:
            raise InvalidInput(f"{self.where}: which product are the cards? Say it with --product")
        return resolve_alike(entries, self.product, self.cards)


@dataclass(frozen=True, slots=True)
class DevicesInUse:
    """The devices of a node that pods hold."""

    slots: frozenset[Slot]
    certain: bool  # else only the numbers are known, and they are taken to lie on as few cards as possible


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A node whose layout cannot be read, or whose cards are unknown."""

    where: str
    reason: str
    unknown: UnknownLayout | None = None  # no annotation describes the cards, and no other source does


def node_layouts(
    inventory: Inventory,
    product: Product | None = None,
    cards: int | None = None,
    *,
    with_used: bool = False,
    only: Collection[str] = (),
    every: bool = False,
) -> list[Source | Unreadable]:
    """The layouts of nodes that describe how their cards are cut, or should be; with what is used, also of those cut on demand.

    `every`: also of nodes whose layout only other sources describe. What the caller says about the cards has precedence over what a
    node says.
    """
    claimed = inventory.dra.holders()
    found: list[Source | Unreadable] = []
    for name, node in inventory.gpus.items():
        on_demand = with_used and inventory.dra.pools.is_cut_on_demand(inventory.capacity[name])
        described = node.mapping is not None or (node.layout is not None and not node.by_mig_manager)
        if not (on_demand or described or every) or (only and name not in only):
            continue
        used = None if not with_used else {} if on_demand else inventory.used(name)
        known = None if on_demand or described else inventory.known(name, product, cards)
        if isinstance(known, UnknownLayout):
            found.append(Unreadable(f"node {name}", str(known), known))
            continue
        try:
            source = (
                _known(node, known, claimed.get(name, ()))
                if known
                else _source(node, product, cards, claimed.get(name, ()), on_demand=on_demand)
            )
        except InvalidInput as error:
            found.append(Unreadable(f"node {name}", str(error)))
        else:
            by_api = partial(inventory.capacity.holders, name)
            held = inventory.held.get(name, ())
            found.append(replace(source, used=used, held=held, by_api=by_api))
    return found


_MORE: Final = "more than there is"  # what pods hold of a resource beyond the layout: no device of it


@dataclass(frozen=True, slots=True)
class _Offered:
    """What a layout makes."""

    layout: NodeLayout  # kept, so that no other has its cards' ids
    counts: Mapping[str, int]
    places: Mapping[Placed, Slot]
    names: Mapping[str, Slot]  # as Tessera's DRA driver calls them


class HeldDevices:
    """What is held of nodes: single devices where that is certain, else all of a resource.

    Tessera's device plugin says which devices pods hold. It is believed for a resource where it agrees with the API, see
    `core.devices.held`. With Tessera's DRA driver the allocations of claims name them. NVIDIA's mig-manager clears cards, so on its nodes nothing is known.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._claimed = inventory.dra.holders()
        # thousands of nodes are cut in a few ways
        self._offered: dict[tuple[object, ...], _Offered] = {}

    def on(self, name: str, known: KnownLayout) -> Held:
        """What is held of a node whose cards are cut like this."""
        inventory, node = self._inventory, self._inventory.gpus[name]
        used, layout = inventory.used(name), known.layout
        there = self._of(layout, node.strategy)
        resources = {resource for resource, number in used.items() if number}
        if any(number > there.counts.get(resource, 0) for resource, number in used.items()):
            resources.add(_MORE)
        exact, slots = known.placed and not node.by_mig_manager, set[Slot]()
        served = {one for one in there.counts if inventory.capacity[name].is_served(one)}
        published = decode_in_use(node.in_use) if exact else None
        if published is not None:
            by_pods = believed(
                published,
                node.strategy,
                there.places,
                resources - served,
                partial(inventory.capacity.holders, name),
            )
            resources = {*by_pods.resources, *(resources & served)}
            slots |= by_pods.slots
        if claims := self._claimed.get(name):
            by_claims = [slot for device in claims if (slot := there.names.get(device))]
            counts = Counter(layout.name(slot.instance, node.strategy) for slot in by_claims)
            ours = all(one.driver == DRIVER for one in claims.values()) and len(by_claims) == len(claims)
            if not (exact and ours):
                resources |= counts.keys()
            else:
                slots |= {*by_claims}
                resources -= {one for one in served if counts[one] == used.get(one, 0)}
        return Held(frozenset(resources), frozenset(slots))

    def _of(self, layout: NodeLayout, strategy: Strategy) -> _Offered:
        key = (*map(id, layout.cards), layout.plain, strategy)
        if key not in self._offered:
            some = [slot for slots in layout.slots(strategy).values() for slot in slots]
            self._offered[key] = _Offered(
                layout,
                layout.resources(strategy),
                {(slot.card, slot.place): slot for slot in some},
                {slot_name(slot): slot for slot in some},
            )
        return self._offered[key]


def _known(node: GpuNode, known: KnownLayout, claimed: Collection[str]) -> Source:
    layout, where = known.layout, f"node {node.name}"
    of = layout.cards[0].product
    return Source(
        where,
        mig.document_of(layout),
        of,
        len(layout.cards),
        node.strategy,
        layout,
        node=node,
        claimed=claimed,
        known=known,
    )


def _source(
    node: GpuNode, product: Product | None, cards: int | None, claimed: Collection[str], *, on_demand: bool
) -> Source:
    product, cards = product or node.product, cards or node.cards
    if product is None:
        raise InvalidInput(f"{node.no_product}; set it with --product")
    document, present = _cut_on_demand(product, cards, claimed) if on_demand else _described(node)
    pending = (node.reason or "the node gives no reason") if node.state == "pending" else ""
    where, strategy = f"node {node.name}", node.strategy
    return Source(
        where, document, product, cards, strategy, present, node=node, pending=pending, claimed=claimed
    )


def _cut_on_demand(
    product: Product, cards: int | None, claimed: Collection[str]
) -> tuple[mig.MigDocument, NodeLayout]:
    """Cards that are cut as claims ask for it: what claims hold now, and free room beside it."""
    if cards is None:
        raise InvalidInput(f"no label {GPU_COUNT_LABEL}; set it with --cards")
    now = cut_now(product, cards, claimed)
    return mig.document_of(now), now


def _described(node: GpuNode) -> tuple[mig.MigDocument, NodeLayout | None]:
    """The layout that is desired, else the present one; and the present one, where the node reports it."""
    try:
        present = present_layout(node) if node.mapping is not None else None
    except InvalidInput:
        if node.layout is None:
            raise
        present = None  # the desired layout is still worth a look
    if node.layout is None and present is not None:
        return mig.document_of(present), present
    return mig.read(node.layout or "", mig.RUNAI_CONFIG), present


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """A device of a node, and where it lies."""

    resource: str
    slot: Slot
    id: str
    leaving: bool = False  # of an earlier layout: it stays for its pod


def placed_devices(gpus: GpuNode, layout: NodeLayout) -> Iterator[PlacedDevice]:
    """The devices of a layout: with the ids from the node, else with those of a simulated node."""
    mapped = _mapped(gpus)
    for resource, slots in layout.slots(gpus.strategy).items():
        for slot in slots:
            known = mapped.get((slot.card, slot.instance.position)) if slot.instance else None
            if known is None:
                yield PlacedDevice(resource, slot, slot.uuid(gpus.name))
            else:
                yield PlacedDevice(resource, slot, known.device_uuid, known.leaving)


def _mapped(gpus: GpuNode) -> dict[tuple[int, int], MappedDevice]:
    """Card and position → the device there, as the node reports it."""
    try:
        mapping = decode_mapping(gpus.mapping) if gpus.mapping else {}
    except InvalidInput:
        return {}
    return {(card, one.position): one for card, devices in mapping.items() for one in devices}
