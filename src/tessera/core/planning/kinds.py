"""Cards in the same state are one kind with a count, and nodes with the same cards one type.

What a card can take decides its kind: the patterns that fit beside what it keeps, whether it keeps something, what it loses, and whom
devices on its node serve. Cards that no demand fits on, and those that must not be cut, are of no kind. A cluster of 40,000 cards has some dozens of
kinds, and the planner's program grows with those.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from tessera.core.devices.held import Held
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.mig.placement import Instance, Pattern, maximal_patterns
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way

ANYWHERE: Final = 0  # the queue of a demand that may go to every node


@dataclass(frozen=True, slots=True)
class CardToCut:
    """A card to be cut: its product, the devices on it that stay where they are, and how it is cut now."""

    product: Product
    kept: tuple[Instance, ...] = ()
    present: CardLayout | None = None  # None: it is not known, or the card is only imagined
    fixed: bool = False  # never cut: pods may hold any of it
    whole_only: bool = (
        False  # mig-manager clears a card before it cuts it: with a device that stays, it is fixed
    )

    def __post_init__(self) -> None:
        layout = CardLayout(self.product, mig_enabled=True, instances=self.kept)
        object.__setattr__(self, "kept", layout.instances)  # the same, in order
        object.__setattr__(self, "fixed", self.fixed or (self.whole_only and bool(self.kept)))

    @property
    def idle(self) -> tuple[Instance, ...]:
        """Devices on it that need not stay."""
        return tuple(one for one in self.present.instances if one not in self.kept) if self.present else ()

    @property
    def at_stake(self) -> int:
        """The memory slices of devices that are lost at most when the card is cut; of a whole GPU all."""
        if self.present is None or self.present.mig_enabled:
            return sum(one.size for one in self.idle)
        return self.product.memory_slices


card_of = lru_cache(maxsize=4096)(CardToCut)  # the same object for the same state: each is looked at once


def cards_beside(
    layout: NodeLayout,
    strategy: Strategy,
    held: Held,
    given: Mapping[str, int] = MappingProxyType({}),
    *,
    whole_only: bool = False,
) -> tuple[CardToCut, ...]:
    """A node's cards, each with the devices that stay: those that are held, and as many as were given out.

    Where it is not known which devices of a resource pods hold, all of it stay; so a whole GPU stays whole. Where something is held or
    given out that its layout does not have, all stay.
    """
    slots = layout.slots(strategy)
    all_stay = not {*held.resources, *given} <= slots.keys()
    staying = {slot for name, some in slots.items() if all_stay or name in held.resources for slot in some}
    staying |= held.slots
    for name in sorted(given.keys() & slots.keys()):
        # no pod has one yet: which ones are for it can be chosen, on cards that stay anyway
        busy, free = {slot.card for slot in staying}, [one for one in slots[name] if one not in staying]
        staying.update(sorted(free, key=lambda one: one.card not in busy)[: given[name]])
    stay: list[list[Instance]] = [[] for _ in layout.cards]
    whole = set()
    for slot in staying:
        if slot.instance is None:
            whole.add(slot.card)
        else:
            stay[slot.card].append(slot.instance)
    return tuple(
        card_of(
            card.product,
            tuple(sorted(some, key=lambda one: one.position)),
            card,
            fixed=number in whole,
            whole_only=whole_only,
        )
        for number, (card, some) in enumerate(zip(layout.cards, stay, strict=True))
    )


@dataclass(frozen=True, slots=True)
class NodeCards:
    """A node, or the cards that no node was named for; which of the cards are its, and which queues it serves."""

    name: str | None
    cards: range
    queues: frozenset[int] = frozenset({ANYWHERE})
    way: Way = Way.ANNOTATION


@dataclass(frozen=True, slots=True)
class QueuedProfile:
    """Devices of one profile for one queue: pods that may go to the same nodes."""

    profile: MigProfile
    queue: int = ANYWHERE


@dataclass(frozen=True, slots=True)
class Column:
    """A pattern that the cards of a kind can be cut into, the memory slices that it leaves unused, and those of devices that it removes."""

    pattern: Pattern
    waste: int
    lost: int


@dataclass(frozen=True, slots=True)
class CardKind:
    columns: tuple[Column, ...]
    empty: bool
    queues: frozenset[int]


@dataclass(frozen=True, slots=True)
class Kinds:
    kinds: tuple[CardKind, ...]
    of_card: tuple[int | None, ...]  # by the card's number; None: nothing that is wanted fits on it
    types: Mapping[tuple[tuple[int, int], ...], tuple[int, ...]]  # kinds and counts → numbers of such places
    unnamed: Mapping[int, int]  # cards of each kind that no node was named for


def kinds_of(
    wanted: Mapping[QueuedProfile, int],
    profiles: tuple[MigProfile, ...],
    cards: Sequence[CardToCut],
    places: Sequence[NodeCards],
) -> Kinds:
    """Group cards and places; profiles in the order of the patterns' counts."""
    numbers: dict[CardKind, int] = {}
    # thousands of cards are few objects: each object is looked at once for each set of queues
    known: dict[tuple[int, frozenset[int]], int | None] = {}
    of_card: list[int | None] = [None] * len(cards)
    types: dict[tuple[tuple[int, int], ...], list[int]] = {}
    unnamed: Counter[int] = Counter()
    for number, place in enumerate(places):
        here: Counter[int] = Counter()
        for index in place.cards:
            key = (id(cards[index]), place.queues)
            if key not in known:
                kind = _kind(cards[index], place.queues, wanted, profiles)
                known[key] = None if kind is None else numbers.setdefault(kind, len(numbers))
            of_card[index] = found = known[key]
            if found is not None:
                here[found] += 1
        if place.name is None:
            unnamed.update(here)
        elif here:
            types.setdefault(tuple(sorted(here.items())), []).append(number)
    return Kinds(tuple(numbers), tuple(of_card), {key: tuple(some) for key, some in types.items()}, unnamed)


def _kind(
    card: CardToCut,
    queues: frozenset[int],
    wanted: Mapping[QueuedProfile, int],
    profiles: tuple[MigProfile, ...],
) -> CardKind | None:
    if card.fixed:
        return None
    most = []
    for profile in profiles:
        shape = card.product.shape(profile)
        asked = sum(count for one, count in wanted.items() if one.profile == profile and one.queue in queues)
        most.append(min(asked, shape.most) if shape else 0)
    sizes = [shape.size if (shape := card.product.shape(profile)) else 0 for profile in profiles]
    free = card.product.memory_slices - sum(instance.size for instance in card.kept)
    at_stake, whole = card.at_stake, card.present is not None and not card.present.mig_enabled
    columns = []
    for pattern in maximal_patterns(card.product, card.kept, profiles, tuple(most)):
        if any(pattern):
            waste = free - sum(size * count for size, count in zip(sizes, pattern, strict=True))
            columns.append(Column(pattern, waste, at_stake if whole else max(0, at_stake - waste)))
    return CardKind(tuple(columns), not card.kept, queues) if columns else None
