"""The tiles of a card: devices, and the gaps between them; and devices that lie nowhere in particular."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.mig.geometry import Product, Shape
from tessera.core.mig.layout import NodeLayout, Slot
from tessera.core.mig.placement import room_for
from tessera.core.mig.profile import MigProfile
from tessera.dashboard.cards.holders import MOST_LOOSE, Holders


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
