"""How much more the cards could hold: as they are cut, beside that, and if empty ones were re-cut."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.core.mig.geometry import MAX_SLICES, Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Slot, Strategy
from tessera.core.mig.placement import Instance, maximal_patterns
from tessera.core.mig.profile import MigProfile


@dataclass(frozen=True, slots=True)
class CardUse:
    """A card as it is cut, and those of its devices that are in use."""

    layout: CardLayout
    used: tuple[Instance, ...] = ()
    whole_in_use: bool = False  # a pod has all of it


@dataclass(frozen=True, slots=True)
class Room:
    """How many more devices of one profile there could be, were nothing else asked for."""

    free: int  # cut already, and not in use
    beside: int  # would fit on slices that no layout uses
    recut: int  # what there would be in all if cards that are not in use were cut for this profile alone

    @property
    def lost(self) -> int:
        """What the present layouts cost: devices that only a re-cut would bring."""
        return self.recut - self.free - self.beside


def rooms(cards: Iterable[CardUse]) -> dict[MigProfile, Room]:
    """Room for every profile that the cards' products have, smallest profile first."""
    found: dict[MigProfile, Room] = {}
    for card, number in Counter(cards).items():  # thousands of cards are cut and used in a few ways
        for profile in card.layout.product.profiles:
            before = found.get(profile, Room(0, 0, 0))
            here = _room(card, profile)
            found[profile] = Room(
                before.free + number * here.free,
                before.beside + number * here.beside,
                before.recut + number * here.recut,
            )
    return {profile: found[profile] for profile in sorted(found)}


def _room(card: CardUse, profile: MigProfile) -> Room:
    product, layout = card.layout.product, card.layout
    if card.whole_in_use:
        return Room(0, 0, 0)
    if not layout.mig_enabled:
        return Room(0, 0, _most(product, (), profile))
    free = sum(i.profile == profile for i in layout.instances) - sum(i.profile == profile for i in card.used)
    beside = _most(product, layout.instances, profile)
    return Room(free, beside, free + beside if card.used else _most(product, (), profile))


def _most(product: Product, kept: Sequence[Instance], profile: MigProfile) -> int:
    patterns = maximal_patterns(product, tuple(kept), (profile,), (product.memory_slices,))
    return max(pattern[0] for pattern in patterns)


def occupied(layout: NodeLayout, used: Collection[Slot]) -> tuple[CardUse, ...]:
    """The cards of a node of which is known which devices are in use."""
    return tuple(
        CardUse(
            card,
            used=tuple(one for one in card.instances if Slot(number, one) in used),
            whole_in_use=Slot(number) in used,
        )
        for number, card in enumerate(layout.cards)
    )


def packed(
    layout: NodeLayout, used: Mapping[str, int], strategy: Strategy = Strategy.MIXED
) -> tuple[CardUse, ...]:
    """The cards of a node of which only is known how many devices of each resource are in use.

    Which ones they are, the node's kubelet alone knows. They are taken to lie together on as few cards as possible,
    so what could be re-cut is the most there can be.
    """
    slots = layout.slots(strategy)
    left = {resource: min(used.get(resource, 0), len(slots[resource])) for resource in slots}
    offered: list[dict[str, list[Slot]]] = [{} for _ in layout.cards]
    for resource, some in slots.items():
        for slot in some:
            offered[slot.card].setdefault(resource, []).append(slot)
    taken: list[list[Slot]] = [[] for _ in layout.cards]
    while any(left.values()):
        # the card that takes the most of what is left; of those alike, the first
        card = max(range(len(offered)), key=lambda number: _takes(offered[number], left))
        for resource, here in offered[card].items():
            taken[card] += here[: left[resource]]
            left[resource] -= min(left[resource], len(here))
        offered[card] = {}
    return tuple(
        CardUse(
            card,
            tuple(slot.instance for slot in some if slot.instance is not None),
            whole_in_use=any(slot.instance is None for slot in some),
        )
        for card, some in zip(layout.cards, taken, strict=True)
    )


def _takes(offered: Mapping[str, Sequence[Slot]], left: Mapping[str, int]) -> int:
    """How many memory slices of what is left a card would take; a whole card is worth all it could have."""
    return sum(
        slot.instance.size if slot.instance else MAX_SLICES
        for resource, some in offered.items()
        for slot in some[: left[resource]]
    )
