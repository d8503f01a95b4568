"""Plans: how to cut cards so that they serve a demand.

Given counts of profiles and cards (empty, or with devices that must stay where they are), a plan says how to cut
each card so that all of the demand is served on the fewest cards, or, where it does not all fit, so that the most
of it is. Cards that hold devices already cost nothing extra: empty cards stay whole as long as they can. Among
plans that are as good, cards are filled to the brim one after the other, so that what is left free is in one piece.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.covering import Covering, Unserved, Used, solve
from tessera.core.planning.patterns import Column, Pattern, maximal_patterns

_PROMISED: Final = 3  # the goals that count; the last only chooses among plans that are as good


class Objective(StrEnum):
    """What counts as the most of a demand that does not all fit; the other one decides between equals."""

    DEVICES = "devices"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Card:
    """A card to be cut: its product, and the devices on it that stay where they are."""

    product: Product
    kept: tuple[Instance, ...] = ()

    def __post_init__(self) -> None:
        layout = CardLayout(self.product, mig_enabled=True, instances=self.kept)
        object.__setattr__(self, "kept", layout.instances)  # the same, in order


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout for every card, and what of the demand they serve."""

    demand: Mapping[MigProfile, int]
    products: tuple[Product, ...]  # of the cards that there were to choose from
    cards: tuple[CardLayout, ...]  # as the cards were given; one that is not needed has MIG off
    kept: tuple[tuple[Instance, ...], ...]
    served: Mapping[MigProfile, int]
    left_out: Mapping[MigProfile, int]
    objective: Objective
    # goals for which nothing better exists: most served by the objective, by the other one, fewest cards, tightest
    proven: int

    @property
    def optimal(self) -> bool:
        """Whether nothing better exists; False when the search was given up for its length."""
        return self.proven >= _PROMISED

    @property
    def used(self) -> tuple[int, ...]:
        """The cards that serve some of the demand."""
        return tuple(n for n, card in enumerate(self.cards) if len(card.instances) > len(self.kept[n]))

    @property
    def opened(self) -> tuple[int, ...]:
        """Those of them that were empty."""
        return tuple(number for number in self.used if not self.kept[number])


def plan(
    demand: Mapping[MigProfile, int], cards: Sequence[Card], objective: Objective = Objective.DEVICES
) -> Plan:
    """Serve the demand on the fewest cards, or the most of it; the same question has the same answer."""
    # big ones first: that is the order in which first-fit decreasing goes, and in which plans read best
    profiles = tuple(sorted((p for p, count in demand.items() if count > 0), reverse=True))
    groups = list(dict.fromkeys(cards))
    question = _question(profiles, demand, cards, groups, objective)
    cover = solve(question, _first_fit_decreasing(question, groups))
    added = _assign(question, cover.uses, cards, groups)
    layouts = tuple(_layout(card, profiles, pattern) for card, pattern in zip(cards, added, strict=True))
    served = {p: sum(pattern[i] for pattern in added) for i, p in enumerate(profiles)}
    return Plan(
        demand={p: demand[p] for p in sorted(profiles)},
        products=tuple(dict.fromkeys(card.product for card in cards)),
        cards=layouts,
        kept=tuple(card.kept for card in cards),
        served={p: served[p] for p in sorted(profiles) if served[p]},
        left_out={p: demand[p] - served[p] for p in sorted(profiles) if demand[p] > served[p]},
        objective=objective,
        proven=cover.proven,
    )


def _question(
    profiles: tuple[MigProfile, ...],
    demand: Mapping[MigProfile, int],
    cards: Sequence[Card],
    groups: Sequence[Card],
    objective: Objective,
) -> Covering:
    count = Counter(cards)
    columns = []
    for number, card in enumerate(groups):
        shapes = [card.product.shape(profile) for profile in profiles]
        most = tuple(min(demand[p], s.most) if s else 0 for p, s in zip(profiles, shapes, strict=True))
        columns += [
            Column(number, pattern)
            for pattern in maximal_patterns(card.product, card.kept, profiles, most)
            if any(pattern)
        ]
    devices = Unserved((1,) * len(profiles))
    memory = Unserved(tuple(p.memory_gb for p in profiles))
    fewest = Used(tuple(int(not groups[column.group].kept) for column in columns))
    tightest = Used(tuple(_waste(groups[column.group], profiles, column.pattern) for column in columns))
    served = (devices, memory) if objective is Objective.DEVICES else (memory, devices)
    return Covering(
        demand=tuple(demand[p] for p in profiles),
        cards=tuple(count[card] for card in groups),
        columns=tuple(columns),
        goals=(*served, fewest, tightest),
    )


def _waste(card: Card, profiles: Sequence[MigProfile], pattern: Pattern) -> int:
    """Memory slices that a pattern leaves unused."""
    taken = sum(instance.size for instance in card.kept)
    for profile, count in zip(profiles, pattern, strict=True):
        shape = card.product.shape(profile)
        taken += shape.size * count if shape else 0
    return card.product.memory_slices - taken


def _first_fit_decreasing(question: Covering, groups: Sequence[Card]) -> tuple[int, ...]:
    """What a person would do: the biggest first, each on the first card that still takes it.

    Cards are taken group by group, those that hold something already first. Counted as uses of columns.
    """
    order = sorted(range(len(question.cards)), key=lambda group: not groups[group].kept)
    columns: list[list[tuple[int, Pattern]]] = [[] for _ in question.cards]
    for index, column in enumerate(question.columns):
        columns[column.group].append((index, column.pattern))
    cut: list[list[list[int]]] = [[] for _ in question.cards]
    left = list(question.demand)
    for profile in range(len(left)):
        for group in order:
            for number in range(question.cards[group]):
                if not left[profile]:
                    break
                if number == len(cut[group]):
                    cut[group].append([0] * len(left))
                card = cut[group][number]
                room = max((p[profile] for _, p in columns[group] if _within(card, p, profile)), default=0)
                taken = min(left[profile], max(0, room - card[profile]))
                card[profile] += taken
                left[profile] -= taken
                if not any(card):
                    break  # an empty card of this group does not take it, so none does
    uses = [0] * len(question.columns)
    for group, layouts in enumerate(cut):
        for card in layouts:
            if any(card):
                uses[next(index for index, pattern in columns[group] if _within(card, pattern, None))] += 1
    return tuple(uses)


def _within(card: Sequence[int], pattern: Pattern, but: int | None) -> bool:
    return all(n <= most for i, (n, most) in enumerate(zip(card, pattern, strict=True)) if i != but)


def _assign(
    question: Covering, uses: Sequence[int], cards: Sequence[Card], groups: Sequence[Card]
) -> list[Pattern]:
    """What each card gets: the tightest patterns on the first cards, and nothing beyond the demand.

    Holes are thus left on the last cards, where they are large.
    """
    waiting: list[list[Pattern]] = [[] for _ in groups]
    waste = question.goals[-1].weights
    # taken from the end: the tightest first, then those with the most of the biggest profile
    for index in sorted(range(len(uses)), key=lambda i: (-waste[i], question.columns[i].pattern)):
        waiting[question.columns[index].group] += [question.columns[index].pattern] * uses[index]
    left = list(question.demand)
    added = []
    for card in cards:
        patterns = waiting[groups.index(card)]
        pattern = patterns.pop() if patterns else (0,) * len(left)
        taken = tuple(min(held, want) for held, want in zip(pattern, left, strict=True))
        left = [want - held for want, held in zip(left, taken, strict=True)]
        added.append(taken)
    return added


def _layout(card: Card, profiles: Sequence[MigProfile], pattern: Pattern) -> CardLayout:
    if not any(pattern) and not card.kept:
        return CardLayout(card.product)
    kept = [Wish(i.profile, i.position, i.size) for i in card.kept]
    new = [Wish(profile) for profile, count in zip(profiles, pattern, strict=True) for _ in range(count)]
    return CardLayout.cut(card.product, [*kept, *new])
