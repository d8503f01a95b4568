"""Plans: how to cut cards so that they serve a demand.

Given counts of profiles and cards (empty, or with devices that must stay where they are), a plan says how to cut
each card so that all of the demand is served on the fewest cards, or, where it does not all fit, so that the most
of it is. Cards that hold devices already cost nothing extra: empty cards stay whole as long as they can. Among
plans that are as good, the fewest nodes are touched; among those, the least of what is idle is removed; then cards are
filled to the brim one after the other, so that what is left free is in one piece. The rest of a card that is cut anyway is
filled with what is most in demand. Nodes differ in whom they serve: demand comes in queues, and a device on a
node that does not serve its queue is no help.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.core.mig.geometry import MAX_SLICES, Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Pattern, Wish
from tessera.core.mig.placement import place as places_for
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import CardToCut, Kinds, NodeCards, QueuedProfile, kinds_of
from tessera.core.planning.program import Program, Solver, Sum, minimise

_DECISIVE: Final = (
    3  # goals that decide whether a plan is good; the others only choose among plans that are as good
)
# amounts up to which cards are filled to the brim: where nearly every node is like no other, that alone took 25 s
_FEW: Final = 3000


class Objective(StrEnum):
    """What counts as the most of a demand that does not all fit; the other one decides between equals."""

    DEVICES = "devices"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Question:
    wanted: Mapping[QueuedProfile, int]
    cards: Sequence[CardToCut]
    places: Sequence[NodeCards]
    objective: Objective = Objective.DEVICES
    most_nodes: int | None = None
    most_cards: int | None = None
    fill: tuple[MigProfile, ...] | None = (
        None  # what the rest of a card is filled with, first of all; None: nothing
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout for every card, and what of the demand they serve."""

    demand: Mapping[MigProfile, int]
    products: tuple[Product, ...]  # of the cards that there were to choose from
    # in the order in which cards were given: one that is not needed stays as it is, or has MIG off where that is not known
    cards: tuple[CardLayout, ...]
    present: tuple[CardLayout | None, ...]
    kept: tuple[tuple[Instance, ...], ...]  # what stays where it is
    fixed: frozenset[int]  # cards that must not be cut
    served: Mapping[MigProfile, int]
    left_out: Mapping[MigProfile, int]
    objective: Objective
    serves: Mapping[int, Mapping[MigProfile, int]]  # card → what of the demand it serves; the rest fills it
    opened: tuple[int, ...]  # of those, the ones on which nothing had to stay
    nodes: tuple[str, ...]  # whose cards these are, where they have a name
    # by how much each goal could be better at most: what stays unserved by the objective, by the other one,
    # cards on which nothing stays, nodes, slices that are lost, unused slices; 0: nothing better exists
    gaps: tuple[int, ...]
    named: bool = False  # cards are of nodes with names

    @property
    def optimal(self) -> bool:
        """Whether nothing better exists; False when the search was given up for its length."""
        return not any(self.gaps[:_DECISIVE])

    @property
    def used(self) -> tuple[int, ...]:
        """The cards that serve some of the demand."""
        return tuple(self.serves)

    def filled(self, number: int) -> Counter[MigProfile]:
        """What a card gets that no pod asked for."""
        new = Counter(one.profile for one in self.cards[number].instances)
        stays = Counter(one.profile for one in self.kept[number])
        return new - stays - Counter(self.serves.get(number, {}))


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
    cards, kept = _layouts(question.cards, profiles, added, question.fill)
    return Plan(
        demand=demand,
        products=tuple({id(card.product): card.product for card in question.cards}.values()),
        cards=cards,
        present=tuple(card.present for card in question.cards),
        kept=kept,
        fixed=frozenset(number for number, card in enumerate(question.cards) if card.fixed),
        served={p: served[p] for p in demand if served[p]},
        left_out={p: demand[p] - served[p] for p in demand if demand[p] > served[p]},
        objective=question.objective,
        serves={n: {p: c for p, c in zip(profiles, added[n], strict=True) if c} for n in sorted(added)},
        opened=tuple(number for number in sorted(added) if not question.cards[number].kept),
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
        self,
        kinds: Kinds,
        wanted: Mapping[QueuedProfile, int],
        profiles: Sequence[MigProfile],
        question: Question,
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
        self.gets: dict[tuple[frozenset[int], QueuedProfile], int] = {}
        for queues in dict.fromkeys(kind.queues for kind in kinds.kinds):
            self._share(queues, wanted)
        for one, number in wanted.items():
            program.at_most({amount: 1 for (_, other), amount in self.gets.items() if other == one}, number)
        if question.most_nodes is not None:
            program.at_most(dict.fromkeys(self.touched.values(), 1), question.most_nodes)
        if question.most_cards is not None:
            program.at_most({cut: 1 for cuts in self.cuts for cut in cuts}, question.most_cards)

    def _share(self, queues: frozenset[int], wanted: Mapping[QueuedProfile, int]) -> None:
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
        """What is to be small, most important first: unserved devices and memory, cards that are opened, nodes, lost slices, waste."""
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
            {cut: column.lost for cut, column, _ in columns if column.lost},
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
    cards: Sequence[CardToCut],
    profiles: Sequence[MigProfile],
    added: Mapping[int, Pattern],
    fill: tuple[MigProfile, ...] | None,
) -> tuple[tuple[CardLayout, ...], tuple[tuple[Instance, ...], ...]]:
    """Every card with what it gets, and what of it stays; thousands of cards are few objects that get few patterns."""
    known: dict[tuple[int, Pattern], tuple[CardLayout, tuple[Instance, ...]]] = {}
    found = []
    for number, card in enumerate(cards):
        key = (id(card), added.get(number, ()))
        if key not in known:
            known[key] = _layout(card, profiles, key[1], fill)
        found.append(known[key])
    return tuple(layout for layout, _ in found), tuple(kept for _, kept in found)


def _layout(
    card: CardToCut, profiles: Sequence[MigProfile], pattern: Pattern, fill: tuple[MigProfile, ...] | None
) -> tuple[CardLayout, tuple[Instance, ...]]:
    """A card as it will be, and what stays on it: what must, and what blocks nothing."""
    if not pattern:
        if card.present is not None:
            return card.present, card.present.instances
        return CardLayout(card.product, bool(card.kept), card.kept), card.kept
    wishes = [_placed(one) for one in card.kept]
    wishes += [Wish(profile) for profile, count in zip(profiles, pattern, strict=True) for _ in range(count)]
    if not card.whole_only:
        for one in sorted(card.idle, key=lambda one: (-one.size, one.position)):
            wishes += _more(card.product, wishes, _placed(one), 1)
    if fill is not None:  # what no pod asks for was there before, or is not made
        for profile in dict.fromkeys((*fill, *sorted({one.profile for one in card.idle}, reverse=True))):
            wishes += _more(card.product, wishes, Wish(profile))
    layout = CardLayout.cut(card.product, wishes)
    before = () if card.whole_only or card.present is None else card.present.instances
    return layout, tuple(one for one in layout.instances if one in card.kept or one in before)


def _more(product: Product, wishes: Sequence[Wish], wish: Wish, most: int = MAX_SLICES) -> list[Wish]:
    """As many more of one as fit beside the others."""
    more: list[Wish] = []
    while len(more) < most and places_for(product, [*wishes, *more, wish]) is not None:
        more.append(wish)
    return more


def _placed(one: Instance) -> Wish:
    return Wish(one.profile, one.position, one.size)
