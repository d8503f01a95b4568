"""Plans: how to cut cards so that they serve a demand.

Given counts of profiles and cards (empty, or with devices that must stay where they are), a plan says how to cut
each card so that all of the demand is served on the fewest cards, or, where it does not all fit, so that the most
of it is. Cards that hold devices already cost nothing extra: empty cards stay whole as long as they can. Among
plans that are as good, the fewest nodes are touched; among those, cards are filled to the brim one after the other,
so that what is left free is in one piece. Nodes differ in whom they serve: demand comes in queues, and a device on a
node that does not serve its queue is no help.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Pattern, Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import Card, Kinds, NodeCards, Wanted, kinds_of
from tessera.core.planning.program import Program, Solver, Sum, minimise

_PROMISED: Final = 3  # the goals that count; the others only choose among plans that are as good
# amounts up to which cards are filled to the brim: where nearly every node is like no other, that alone took 25 s
_FEW: Final = 3000


class Objective(StrEnum):
    """What counts as the most of a demand that does not all fit; the other one decides between equals."""

    DEVICES = "devices"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Question:
    wanted: Mapping[Wanted, int]
    cards: Sequence[Card]
    places: Sequence[NodeCards]
    objective: Objective = Objective.DEVICES
    most_nodes: int | None = None
    most_cards: int | None = None


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
    used: tuple[int, ...]  # the cards that serve some of the demand
    nodes: tuple[str, ...]  # whose cards these are, where they have a name
    # by how much each goal could be better at most: what stays unserved by the objective, by the other one,
    # empty cards, nodes, unused slices; 0: nothing better exists
    gaps: tuple[int, ...]
    named: bool = False  # cards are of nodes with names

    @property
    def optimal(self) -> bool:
        """Whether nothing better exists; False when the search was given up for its length."""
        return not any(self.gaps[:_PROMISED])

    @property
    def opened(self) -> tuple[int, ...]:
        return tuple(number for number in self.used if not self.kept[number])


def plan(question: Question, solve: Solver) -> Plan:
    """Serve the demand on the fewest cards, or the most of it; the same question has the same answer."""
    wanted = {one: count for one, count in question.wanted.items() if count > 0}
    # big ones first: that is the order in which plans read best
    profiles = tuple(sorted({one.profile for one in wanted}, reverse=True))
    kinds = kinds_of(wanted, profiles, question.cards, question.places)
    model = _Model(kinds, wanted, profiles, question)
    size = len(model.program.limits)
    goals = model.goals(question.objective)[: None if size <= _FEW else -1]
    answer = minimise(model.program, goals, [0] * size, solve)
    added = _assign(model, answer.values, question.places)
    demand = {p: sum(n for one, n in wanted.items() if one.profile == p) for p in reversed(profiles)}
    served = {p: sum(pattern[i] for pattern in added.values()) for i, p in enumerate(profiles)}
    return Plan(
        demand=demand,
        products=tuple({id(card.product): card.product for card in question.cards}.values()),
        cards=_layouts(question.cards, profiles, added),
        kept=tuple(card.kept for card in question.cards),
        served={p: served[p] for p in demand if served[p]},
        left_out={p: demand[p] - served[p] for p in demand if demand[p] > served[p]},
        objective=question.objective,
        used=tuple(sorted(added)),
        nodes=tuple(
            place.name for place in question.places if place.name and any(n in added for n in place.cards)
        ),
        gaps=answer.gaps,
        named=any(place.name for place in question.places),
    )


class _Model:
    """The question as a program.

    Amounts: how often the cards of a kind are cut into each pattern; how many nodes of each type are touched; how many
    devices of a profile, on nodes that serve the same queues, each of these queues gets.
    """

    def __init__(
        self, kinds: Kinds, wanted: Mapping[Wanted, int], profiles: Sequence[MigProfile], question: Question
    ) -> None:
        self.kinds, self.profiles = kinds, profiles
        self.program = program = Program()
        count = dict(kinds.unnamed)
        for type_, places in kinds.types.items():
            for kind, number in type_:
                count[kind] = count.get(kind, 0) + number * len(places)
        self.cuts = [[program.amount(count[k]) for _ in kind.columns] for k, kind in enumerate(kinds.kinds)]
        self.touched = {type_: program.amount(len(places)) for type_, places in kinds.types.items()}
        for k, cuts in enumerate(self.cuts):
            here = {self.touched[t]: -n for t in kinds.types for kind, n in t if kind == k}
            program.at_most(dict.fromkeys(cuts, 1) | here, kinds.unnamed.get(k, 0))
        self.gets: dict[tuple[frozenset[int], Wanted], int] = {}
        for queues in dict.fromkeys(kind.queues for kind in kinds.kinds):
            self._share(queues, wanted)
        for one, number in wanted.items():
            program.at_most({amount: 1 for (_, other), amount in self.gets.items() if other == one}, number)
        if question.most_nodes is not None:
            program.at_most(dict.fromkeys(self.touched.values(), 1), question.most_nodes)
        if question.most_cards is not None:
            program.at_most({cut: 1 for cuts in self.cuts for cut in cuts}, question.most_cards)

    def _share(self, queues: frozenset[int], wanted: Mapping[Wanted, int]) -> None:
        """Queues get no more devices than are cut on nodes that serve them."""
        for index, profile in enumerate(self.profiles):
            getting = {}
            for one, number in wanted.items():
                if one.profile == profile and one.queue in queues:
                    self.gets[queues, one] = amount = self.program.amount(number)
                    getting[amount] = 1
            made = {
                cut: -column.pattern[index]
                for kind, cuts in zip(self.kinds.kinds, self.cuts, strict=True)
                if kind.queues == queues
                for column, cut in zip(kind.columns, cuts, strict=True)
                if column.pattern[index]
            }
            if getting:
                self.program.at_most(getting | made, 0)

    def goals(self, objective: Objective) -> list[Sum]:
        """What is to be small, most important first: unserved devices and memory, empty cards, nodes, waste."""
        devices = dict.fromkeys(self.gets.values(), -1)
        memory = {amount: -one.profile.memory_gb for (_, one), amount in self.gets.items()}
        columns = [
            (cut, column, kind)
            for kind, cuts in zip(self.kinds.kinds, self.cuts, strict=True)
            for column, cut in zip(kind.columns, cuts, strict=True)
        ]
        return [
            *((devices, memory) if objective is Objective.DEVICES else (memory, devices)),
            {cut: 1 for cut, _, kind in columns if kind.empty},
            dict.fromkeys(self.touched.values(), 1),
            {cut: column.waste for cut, column, _ in columns if column.waste},
        ]


def _assign(model: _Model, values: Sequence[int], places: Sequence[NodeCards]) -> dict[int, Pattern]:
    """What each card gets: the tightest patterns on the first cards, and nothing beyond the demand.

    Holes are thus left on the last cards, where they are large.
    """
    kinds = model.kinds
    left: dict[frozenset[int], list[int]] = {}
    for (queues, one), amount in model.gets.items():
        here = left.setdefault(queues, [0] * len(model.profiles))
        here[model.profiles.index(one.profile)] += values[amount]
    waiting: list[list[Pattern]] = []
    for kind, cuts in zip(kinds.kinds, model.cuts, strict=True):
        # taken from the end: the tightest first, then those with the most of the biggest profile
        ordered = sorted(
            zip(kind.columns, cuts, strict=True), key=lambda one: (-one[0].waste, one[0].pattern)
        )
        waiting.append([column.pattern for column, cut in ordered for _ in range(values[cut])])
    chosen = {n for type_, numbers in kinds.types.items() for n in numbers[: values[model.touched[type_]]]}
    added: dict[int, Pattern] = {}
    for number, place in enumerate(places):
        if place.name is not None and number not in chosen:
            continue
        for index in place.cards:
            kind_number = kinds.of_card[index]
            if kind_number is None or not waiting[kind_number]:
                continue
            pattern, wants = waiting[kind_number].pop(), left[place.queues]
            taken = tuple(min(held, want) for held, want in zip(pattern, wants, strict=True))
            left[place.queues] = [want - held for want, held in zip(wants, taken, strict=True)]
            if any(taken):
                added[index] = taken
    return added


def _layouts(
    cards: Sequence[Card], profiles: Sequence[MigProfile], added: Mapping[int, Pattern]
) -> tuple[CardLayout, ...]:
    """Every card with what it gets; thousands of cards are few objects that get few patterns."""
    known: dict[tuple[int, Pattern], CardLayout] = {}
    layouts = []
    for number, card in enumerate(cards):
        key = (id(card), added.get(number, ()))
        if key not in known:
            known[key] = _layout(card, profiles, key[1])
        layouts.append(known[key])
    return tuple(layouts)


def _layout(card: Card, profiles: Sequence[MigProfile], pattern: Pattern) -> CardLayout:
    if not pattern and not card.kept:
        return CardLayout(card.product)
    kept = [Wish(i.profile, i.position, i.size) for i in card.kept]
    new = [Wish(profile) for profile, count in zip(profiles, pattern, strict=False) for _ in range(count)]
    return CardLayout.cut(card.product, [*kept, *new])
