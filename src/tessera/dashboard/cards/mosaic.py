"""A node's cards as tiles: where each slice lies, how large it is, and which pod holds it.

Where a kubelet writes device ids into the status of pods (Kubernetes 1.36 and later) every pod is on its very tile, and
so it is where DRA hands devices out: claims name them. Elsewhere only the numbers are known: tiles of a profile are then
taken in order, and marked as a guess. Cards that are cut on demand are drawn with what claims hold of them. Where it is known
what a card is cut into and not where on it, its tiles are drawn in the order in which they would be made, and the card says so.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import in_order
from tessera.core.dra.naming import slot_name
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.mig.known import KnownLayout, LayoutSource, UnknownLayout
from tessera.core.mig.layout import NodeLayout, Slot
from tessera.core.mig.placement import every_place
from tessera.dashboard.cards.holders import Holders
from tessera.dashboard.cards.layout import Claimed
from tessera.dashboard.cards.tiles import Tile, loose_tiles, tile_of, with_gaps
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.inventory.layouts import placed_devices
from tessera.protocol.mig.nodes import GpuNode

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
