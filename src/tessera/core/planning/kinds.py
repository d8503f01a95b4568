"""Cards in the same state are one kind with a count, and nodes with the same cards one type.

What a card can take decides its kind: the patterns that fit beside what it keeps, whether it is empty, and whom
devices on its node serve. Cards that no demand fits on are of no kind. A cluster of 40,000 cards has some dozens of
kinds, and the planner's program grows with those.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.mig.placement import Instance, Pattern, maximal_patterns
from tessera.core.mig.profile import MigProfile

ANYWHERE: Final = 0  # the queue of a demand that may go to every node


@dataclass(frozen=True, slots=True)
class Card:
    """A card to be cut: its product, and the devices on it that stay where they are."""

    product: Product
    kept: tuple[Instance, ...] = ()

    def __post_init__(self) -> None:
        layout = CardLayout(self.product, mig_enabled=True, instances=self.kept)
        object.__setattr__(self, "kept", layout.instances)  # the same, in order


card_of = lru_cache(maxsize=4096)(Card)  # the same object for the same state: each is looked at once


def cards_beside(layout: NodeLayout, strategy: Strategy, held: frozenset[str]) -> tuple[Card, ...]:
    """A node's cards, each with the devices that stay: those of resources of which some are held.

    Where something is held that the layout does not tell of, all stay.
    """
    slots = layout.slots(strategy)
    unknown = sorted(held - slots.keys())
    stay: list[list[Instance]] = [[] for _ in layout.cards]
    for slot in (slot for resource in (slots if unknown else held) for slot in slots[resource]):
        if slot.instance is None:
            raise InvalidInput(
                f"its layout is not known for {unknown[0]}, which pods hold"
                if unknown
                else "whole GPUs are in use, and the API does not say which ones"
            )
        stay[slot.card].append(slot.instance)
    return tuple(
        card_of(card.product, tuple(sorted(some, key=lambda one: one.position)))
        for card, some in zip(layout.cards, stay, strict=True)
    )


@dataclass(frozen=True, slots=True)
class NodeCards:
    """A node, or the cards that no node was named for; which of the cards are its, and which queues it serves."""

    name: str | None
    cards: range
    queues: frozenset[int] = frozenset({ANYWHERE})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Devices of one profile for one queue: pods that may go to the same nodes."""

    profile: MigProfile
    queue: int = ANYWHERE


@dataclass(frozen=True, slots=True)
class Column:
    """A pattern that the cards of a kind can be cut into, and the memory slices that it leaves unused."""

    pattern: Pattern
    waste: int


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
    wanted: Mapping[Wanted, int],
    profiles: tuple[MigProfile, ...],
    cards: Sequence[Card],
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
    card: Card, queues: frozenset[int], wanted: Mapping[Wanted, int], profiles: tuple[MigProfile, ...]
) -> CardKind | None:
    most = []
    for profile in profiles:
        shape = card.product.shape(profile)
        asked = sum(count for one, count in wanted.items() if one.profile == profile and one.queue in queues)
        most.append(min(asked, shape.most) if shape else 0)
    sizes = [shape.size if (shape := card.product.shape(profile)) else 0 for profile in profiles]
    free = card.product.memory_slices - sum(instance.size for instance in card.kept)
    columns = tuple(
        Column(pattern, free - sum(size * count for size, count in zip(sizes, pattern, strict=True)))
        for pattern in maximal_patterns(card.product, card.kept, profiles, tuple(most))
        if any(pattern)
    )
    return CardKind(columns, not card.kept, queues) if columns else None
