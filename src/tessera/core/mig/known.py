"""How a node's cards are cut, as far as it is known, and from where; what counts of devices say about cards.

Counts say how a node's cards are cut where there is exactly one way: 56 × 1g.10gb on eight cards of 80 GB. Where cards differ, counts
do not show which card is which; most mixtures leave several ways besides. Then nothing is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final

from tessera.core.cache import cache_short
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, DoesNotFit, NodeLayout
from tessera.core.mig.placement import Pattern, every_pattern, has_one_placement
from tessera.core.mig.profile import MigProfile
from tessera.core.text import counts_in_words, number_of

_MOST_STEPS: Final = 20_000  # of the search for a second way: a fraction of a second
_MOST_CARDS: Final = 64  # of a node; servers have 16 at most

Profiles = tuple[tuple[MigProfile, int], ...]  # counts, in the order of profiles, none of them zero


class LayoutSource(StrEnum):
    """Where a layout is known from, as people read it."""

    MAPPING = "annotation run.ai/mig-mapping"
    ANNOTATION = "annotation run.ai/mig.config"
    MIG_MANAGER = "label nvidia.com/mig.config with mig-manager's ConfigMap"
    DISCOVERY = "labels of GPU Feature Discovery"
    CAPACITY = "the node's capacity"
    CLAIMS = "what claims hold"


@dataclass(frozen=True, slots=True)
class KnownLayout:
    """What each of a node's cards is cut into, for certain."""

    source: LayoutSource
    layout: NodeLayout
    placed: bool = True  # False: where on a card its slices lie is not certain
    note: str = ""  # what another source says that does not agree, in one sentence


@dataclass(frozen=True, slots=True)
class UnknownLayout:
    """Why it is not known how a node's cards are cut: one sentence, without the node's name."""

    reason: str  # the same for nodes that differ in numbers alone
    detail: str = ""  # the numbers

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


def is_placed(layout: NodeLayout) -> bool:
    """Whether what the cards are cut into leaves only one place for each slice."""
    return all(
        has_one_placement(card.product, tuple(one.profile for one in card.instances)) for card in layout.cards
    )


def not_alike(devices: str, cards: int) -> UnknownLayout:
    """Cards that differ: counts do not say which is which."""
    reason = "its cards are not cut alike, and counts do not tell which card is which"
    return UnknownLayout(reason, f"it has {devices} on {number_of(cards, 'card')}")


@cache_short(1024, 64, lambda *given: len(given[2]))
def card_alike(product: Product, cards: int, counts: Profiles) -> CardLayout | UnknownLayout:
    """What every one of the cards is cut into, where counts leave only this one way; a card may be without devices.

    `counts`: of each profile, none of them zero.
    """
    if absent := [profile for profile, _ in counts if product.shape(profile) is None]:
        return UnknownLayout(f"it has {absent[0]}, which is no profile of {product.name}")
    mean = tuple(number // cards for _, number in counts)
    try:
        card = CardLayout.cut(product, [p for p, number in counts for _ in range(number // cards)])
    except DoesNotFit:
        card = None
    if card is None or any(number % cards for _, number in counts):
        return not_alike(counts_in_words(counts), cards)
    if _has_other_way(product, cards, tuple(profile for profile, _ in counts), mean):
        reason = "there is more than one way to cut its cards into what it has"
        return UnknownLayout(reason, f"it has {counts_in_words(counts)} on {number_of(cards, 'card')}")
    return card


def _has_other_way(product: Product, cards: int, profiles: Sequence[MigProfile], mean: Pattern) -> bool:
    """Whether cards whose counts are `mean` on average can be cut in any other way than all alike; True if that takes too long to find out.

    In any other way the greatest of the patterns, in lexical order, is greater than their mean: they are tried in descending order.
    """
    shapes = [shape for profile in profiles if (shape := product.shape(profile))]
    every = sorted(every_pattern(product, [], profiles, [shape.most for shape in shapes]), reverse=True)
    computes, sizes = [shape.compute for shape in shapes], [shape.size for shape in shapes]
    dead: set[tuple[int, int, Pattern]] = set()
    steps = count()

    def fits(last: int, left: int, rest: Pattern) -> bool:
        """Whether that many cards that are left can have exactly the rest, with patterns up to this one."""
        if not left:
            return not any(rest)
        if next(steps) > _MOST_STEPS:
            return True
        if (
            (last, left, rest) in dead
            or _sum(computes, rest) > left * product.compute_slices
            or _sum(sizes, rest) > left * product.memory_slices
        ):
            return False
        for index in range(last, len(every)):
            if every[index][0] * left < rest[0]:
                break  # those that follow have no more of the first profile
            if (after := _less(rest, every[index])) is not None and fits(index, left - 1, after):
                return True
        dead.add((last, left, rest))
        return False

    totals = tuple(cards * number for number in mean)
    return cards > 1 and (
        cards > _MOST_CARDS
        or any(
            (after := _less(totals, pattern)) is not None and fits(index, cards - 1, after)
            for index, pattern in enumerate(every)
            if pattern > mean
        )
    )


def _less(one: Pattern, other: Pattern) -> Pattern | None:
    """What is left of counts; None where they are not that many."""
    rest = tuple(a - b for a, b in zip(one, other, strict=True))
    return rest if min(rest, default=0) >= 0 else None


def _sum(each: Sequence[int], counts: Pattern) -> int:
    return sum(a * b for a, b in zip(each, counts, strict=True))
