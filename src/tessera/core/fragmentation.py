"""How much more the cards could hold: as they are cut, beside that, and if empty ones were cut anew."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tessera.core.geometry import Product
from tessera.core.layout import CardLayout
from tessera.core.patterns import maximal_patterns
from tessera.core.placement import Instance
from tessera.core.profile import MigProfile


@dataclass(frozen=True, slots=True)
class CardUse:
    """A card as it is cut, and those of its devices that somebody uses."""

    layout: CardLayout
    used: tuple[Instance, ...] = ()
    whole_in_use: bool = False  # a card with MIG off that somebody has


@dataclass(frozen=True, slots=True)
class Room:
    """How many more devices of one profile there could be, were nothing else asked for."""

    free: int  # cut already, and nobody uses them
    beside: int  # would fit on slices that no layout uses
    recut: int  # what there would be in all if cards that nobody uses were cut for this profile alone

    @property
    def lost(self) -> int:
        """What the present layouts cost: devices that only cutting anew would bring."""
        return self.recut - self.free - self.beside


def rooms(cards: Iterable[CardUse]) -> dict[MigProfile, Room]:
    """Room for every profile that the cards' products have, smallest profile first."""
    found: dict[MigProfile, Room] = {}
    for card in cards:
        for profile in card.layout.product.profiles:
            before = found.get(profile, Room(0, 0, 0))
            here = _room(card, profile)
            found[profile] = Room(
                before.free + here.free, before.beside + here.beside, before.recut + here.recut
            )
    return {profile: found[profile] for profile in sorted(found)}


def _room(card: CardUse, profile: MigProfile) -> Room:
    product, layout = card.layout.product, card.layout
    if not layout.mig_enabled:
        return Room(0, 0, 0 if card.whole_in_use else _most(product, (), profile))
    free = sum(i.profile == profile for i in layout.instances) - sum(i.profile == profile for i in card.used)
    beside = _most(product, layout.instances, profile)
    return Room(free, beside, free + beside if card.used else _most(product, (), profile))


def _most(product: Product, kept: Sequence[Instance], profile: MigProfile) -> int:
    patterns = maximal_patterns(product, tuple(kept), (profile,), (product.memory_slices,))
    return max(pattern[0] for pattern in patterns)
