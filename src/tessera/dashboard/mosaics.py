"""A node's cards as tiles: where each slice lies, how large it is, and which pod holds it.

Where a kubelet writes device ids into the status of pods (Kubernetes 1.36 and later) every pod is on its very tile, and
so it is where DRA hands devices out: claims name them. Elsewhere only the numbers are known: tiles of a profile are then
taken in order, and marked as a guess. Cards that are cut on demand are drawn with what claims hold of them. Where it is known
what a card is cut into and not where on it, its tiles are drawn in the order in which they would be made, and the card says so.

How a node's cards are cut, as far as the page knows it.
The tiles of a card: devices, and the gaps between them; and devices that lie nowhere in particular.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import in_order
from tessera.core.dra.device_names import cut_now, slot_name
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.core.mig.geometry import Product, Shape
from tessera.core.mig.known import KnownLayout, LayoutSource, UnknownLayout
from tessera.core.mig.layout import NodeLayout, Slot
from tessera.core.mig.placement import every_place, room_for
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import is_whole_or_mig
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.inventory.dra import ClaimedDevice
from tessera.inventory.layouts import placed_devices
from tessera.protocol.mig.nodes import GpuNode

Claimed = Mapping[str, ClaimedDevice]  # the devices of a node that claims hold, by name


def layout_of(
    node: DashboardNode, known: KnownLayout | UnknownLayout, claimed: Claimed, *, on_demand: bool
) -> KnownLayout | UnknownLayout:
    """How a node's cards are cut, by what is known of it. `on_demand`: as claims ask for it.

    The reason is empty where there is nothing to know.
    """
    gpus = node.gpus
    if on_demand and gpus.product is not None and gpus.cards is not None:
        return KnownLayout(LayoutSource.CLAIMS, cut_now(gpus.product, gpus.cards, claimed))
    if isinstance(known, UnknownLayout):
        matters = gpus.product is not None or any(map(MigProfile.of_resource, node.node.allocatable))
        return known if matters else UnknownLayout("")
    try:
        known.layout.slots(gpus.strategy)  # which does not allow every layout
    except InvalidInput as error:
        return UnknownLayout(str(error))
    return known


MOST_LOOSE: Final = 64  # tiles of one resource; of what comes in larger numbers only the numbers are shown


class Holders:
    """Who holds what on a node, and has not been put onto a tile yet."""

    def __init__(self, pods: Iterable[DashboardPod], node: Node, claimed: Claimed) -> None:
        self._by_claim = dict(claimed)
        self.by_id: dict[tuple[str, str], str] = {}  # resource and device → pod
        self._somewhere: dict[str, list[str]] = {}  # resource → pods, as often as they hold one
        for pod in pods:
            name = f"{pod.use.namespace}/{pod.use.name}"
            for key in pod.held:
                self.by_id[key] = name
            for resource, amount in pod.use.amounts.items():
                if node.is_served(resource) or (pod.use.claim and is_whole_or_mig(resource)):
                    continue  # by claims, which name the very devices
                known = sum(one == resource for one, _ in pod.held)
                unknown = min(int(amount.value), MOST_LOOSE) - known
                self._somewhere.setdefault(resource, []).extend([name] * unknown)

    def resources(self) -> set[str]:
        """What is held and not on a tile yet."""
        return {resource for resource, _ in self.by_id} | {r for r, pods in self._somewhere.items() if pods}

    def on(self, resource: str, device: str) -> str:
        """The pod that holds this very device."""
        return self.by_id.pop((resource, device), "")

    def forget_ids(self, resources: Collection[str]) -> None:
        """Of devices whose ids do not tell where they lie, only who holds some is known."""
        for resource, device in [key for key in self.by_id if key[0] in resources]:
            self._somewhere.setdefault(resource, []).append(self.on(resource, device))

    def by_claim(self, name: str) -> str:
        """Who holds a device by a claim, by the name that DRA has for it."""
        held = self._by_claim.pop(name, None)
        return held.by if held else ""

    def claimed(self, resource: str) -> list[str]:
        """Devices of this resource that claims hold and that are not on a tile yet."""
        return sorted(name for name, held in self._by_claim.items() if resource in held.resources)

    def some(self, resource: str) -> str:
        """A pod that holds one of these; which one is not known."""
        pods = self._somewhere.get(resource)
        return pods.pop(0) if pods else ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A stretch of a card's memory slices, or a device that lies nowhere in particular."""

    what: str  # a profile, `gpu`, a resource; empty: memory that is cut into nothing
    start: int
    size: int
    resource: str = ""
    id: str = ""
    pod: str = ""
    guessed: bool = False  # some pod holds it; which one is not known
    leaving: bool = False  # no longer wanted, and stays for its pod
    out: bool = False  # the node does not offer it: it is unhealthy, or not made yet
    why: str = ""  # memory that is in no device: why, and what could be made of it


def tile_of(slot: Slot, layout: NodeLayout, resource: str, device: str, pod: str, *, leaving: bool) -> Tile:
    if (one := slot.instance) is not None:
        return Tile(str(one.profile), one.position, one.size, resource, device, pod, leaving=leaving)
    slices = layout.cards[slot.card].product.memory_slices
    return Tile("gpu", 0, slices, resource, device, pod, leaving=leaving)


def with_gaps(tiles: Sequence[Tile], product: Product) -> Iterator[Tile]:
    shapes = [shape for tile in tiles for shape in product.shapes if str(shape.profile) == tile.what]
    edge = 0
    for tile in sorted(tiles, key=lambda tile: tile.start):
        if tile.start > edge:
            yield _gap(edge, tile.start - edge, product, shapes)
        yield tile
        edge = tile.start + tile.size
    if edge < product.memory_slices:
        yield _gap(edge, product.memory_slices - edge, product, shapes)


def _gap(start: int, size: int, product: Product, others: Sequence[Shape]) -> Tile:
    """Memory that is in no device: what could be made of it, or why nothing can."""
    if largest := room_for(product, start, size, others):
        why = f"nothing is cut here; there is room for {largest.profile}"
    elif sum(shape.compute for shape in others) == product.compute_slices:
        why = f"no device can use this memory: all {product.compute_slices} compute slices of the card are in devices"
    else:
        why = "no profile has a place here beside the other devices of the card"
    return Tile("", start, size, why=why)


def loose_tiles(resource: str, count: int, holders: Holders) -> Iterator[Tile]:
    """Devices without a place: those whose holder is known, then the others."""
    if count > MOST_LOOSE:
        return
    what, size = _called(resource)
    ids = [device for of, device in holders.by_id if of == resource]
    known = [(device, holders.on(resource, device)) for device in ids]
    known += [(device, holders.by_claim(device)) for device in holders.claimed(resource)]
    for at, (device, pod) in enumerate(known):
        yield Tile(what, at, size, resource, device, pod, leaving=at >= count)
    for at in range(len(known), count):
        pod = holders.some(resource)
        yield Tile(what, at, size, resource, pod=pod, guessed=bool(pod))


def _called(resource: str) -> tuple[str, int]:
    """A device's name on its tile, and how wide that is."""
    profile = MigProfile.of_resource(resource)
    if profile is not None:
        return str(profile), profile.compute
    return ("gpu", 7) if is_whole_or_mig(resource) else (resource.rpartition("/")[2], 1)


_USUAL: Final = (LayoutSource.CLAIMS, LayoutSource.MAPPING)  # the page does not name these
# where Tessera makes the devices, so that their ids tell where they lie
_TESSERAS: Final = (*_USUAL, LayoutSource.ANNOTATION)


@dataclass(frozen=True, slots=True)
class Card:
    number: int
    name: str
    slices: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Mosaic:
    """All that a node has to hand out."""

    cards: tuple[Card, ...]
    source: str  # where it is known from how the cards are cut; empty: it is not, or the node reports it, or claims say so
    placed: bool  # False: where on a card its slices lie is not known
    loose: Mapping[str, tuple[Tile, ...]]  # devices of cards that are not described, by resource


def mosaic_of(
    node: DashboardNode, seen: KnownLayout | UnknownLayout, pods: Iterable[DashboardPod], claimed: Claimed
) -> Mosaic:
    """Lay out a node's devices, and put its pods onto them."""
    holders = Holders(pods, node.node, claimed)
    known = seen if isinstance(seen, KnownLayout) else None
    cards = tuple(_cards(node, known.layout, holders, by_ids=known.source in _TESSERAS)) if known else ()
    drawn = {tile.resource for card in cards for tile in card.tiles}
    counts = {
        resource: _offered(node.node, resource)
        for resource in {**node.node.allocatable, **node.node.dra}
        # what cards may be cut into is room on them, which is drawn
        if resource not in drawn
        and not (cards and node.node.is_served(resource) and is_whole_or_mig(resource))
    }
    for resource in holders.resources():
        counts.setdefault(resource, 0)
    loose = {
        resource: tiles
        for resource, count in in_order(counts).items()
        if (tiles := tuple(loose_tiles(resource, count, holders)))
    }
    source = str(known.source) if known and known.source not in _USUAL else ""
    return Mosaic(cards, source, known is None or known.placed, loose)


def _offered(node: Node, resource: str) -> int:
    """How many of a resource a node has to give, by a device plugin or by DRA."""
    if node.is_served(resource):
        return node.dra[resource]
    amount = node.allocatable.get(resource)
    return int(amount.value) if amount else 0


def _cards(node: DashboardNode, layout: NodeLayout, holders: Holders, *, by_ids: bool) -> Iterator[Card]:
    planned = _planned(node.gpus, layout, holders, by_ids=by_ids)
    staying = _leaving(node.gpus.name, layout, holders)
    if not by_ids:
        holders.forget_ids({tile.resource for tiles in planned.values() for tile in tiles})
    for number, stays in staying.items():
        planned[number] = [tile for tile in planned[number] if not any(_overlap(tile, one) for one in stays)]
    _mark_unoffered(planned, node)
    for number, card in enumerate(layout.cards):
        tiles = [_guess(tile, holders) for tile in planned[number]] + staying.get(number, [])
        slices = card.product.memory_slices
        yield Card(number, card.product.short_name, slices, tuple(with_gaps(tiles, card.product)))


def _planned(gpus: GpuNode, layout: NodeLayout, holders: Holders, *, by_ids: bool) -> dict[int, list[Tile]]:
    """The tiles of a layout, by card; on those whose ids are known, the pods that hold them."""
    planned: dict[int, list[Tile]] = {number: [] for number in range(len(layout.cards))}
    for one in placed_devices(gpus, layout):
        pod = holders.on(one.resource, one.id) or holders.by_claim(slot_name(one.slot))
        device = one.id if by_ids or pod else ""
        tile = tile_of(one.slot, layout, one.resource, device, pod, leaving=one.leaving)
        # a pod holds what is leaving, for certain: such tiles are the first to be guessed
        planned[one.slot.card].append(_guess(tile, holders) if one.leaving else tile)
    return planned


def _leaving(node: str, layout: NodeLayout, holders: Holders) -> dict[int, list[Tile]]:
    """Devices of an earlier layout that pods still hold. The ids of simulated devices tell where they lay."""
    found: dict[int, list[Tile]] = {}
    held = [key for key in holders.by_id if is_whole_or_mig(key[0])]
    slots = _every_slot(node, layout) if held else {}
    for resource, device in held:
        if (slot := slots.get(device)) is not None:
            pod = holders.on(resource, device)
            tile = tile_of(slot, layout, resource, device, pod, leaving=True)
            found.setdefault(slot.card, []).append(tile)
    return found


def _mark_unoffered(planned: dict[int, list[Tile]], node: DashboardNode) -> None:
    """Where a node has fewer devices than tiles, the last free ones are not there; which ones, only it knows."""
    counts = Counter(tile.resource for tiles in planned.values() for tile in tiles if not tile.leaving)
    for resource, count in counts.items():
        missing = count - _offered(node.node, resource)
        for tiles in reversed(planned.values()):
            for at in reversed(range(len(tiles))):
                tile = tiles[at]
                if missing > 0 and tile.resource == resource and not (tile.pod or tile.leaving):
                    tiles[at] = replace(tile, out=True)
                    missing -= 1


def _every_slot(node: str, layout: NodeLayout) -> dict[str, Slot]:
    """Every device that these cards could ever have, by its id."""
    slots = [Slot(number) for number in range(len(layout.cards))]
    slots += [Slot(n, one) for n, card in enumerate(layout.cards) for one in every_place(card.product)]
    return {slot.uuid(node): slot for slot in slots}


def _guess(tile: Tile, holders: Holders) -> Tile:
    if tile.pod or tile.out or not (pod := holders.some(tile.resource)):
        return tile
    return replace(tile, pod=pod, guessed=True)


def _overlap(one: Tile, other: Tile) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size
