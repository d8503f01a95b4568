"""Defragmentation: the fewest pods whose end makes room for some devices.

Advice, exact by the same means as plans: of every kind of card it is counted out which of its held devices would have to
go for which devices to fit, and a program chooses. Room that is there already costs nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Pattern, maximal_patterns
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.program import Program, Solver, Sum, minimise


@dataclass(frozen=True, slots=True)
class HeldCard:
    """A card, the devices on it that pods hold, and the pod that holds each."""

    layout: CardLayout
    held: tuple[Instance, ...] = ()
    pods: tuple[str, ...] = ()  # one for each of `held`; or the one that holds the whole card

    @property
    def whole(self) -> bool:
        return bool(self.pods) and not self.held


@dataclass(frozen=True, slots=True)
class Cleared:
    """A card that gets room: who must go, and what fits then."""

    card: int
    pods: tuple[str, ...]
    room: Mapping[MigProfile, int]


@dataclass(frozen=True, slots=True)
class Advice:
    wanted: Mapping[MigProfile, int]
    served: Mapping[MigProfile, int]
    cleared: tuple[Cleared, ...]
    # by how much each goal could be better at most: devices without room, pods that must go, cards
    gaps: tuple[int, ...]

    @property
    def left_out(self) -> dict[MigProfile, int]:
        """What there is no room for, even if every pod ended."""
        return {p: n - self.served.get(p, 0) for p, n in self.wanted.items() if n > self.served.get(p, 0)}

    @property
    def pods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(pod for one in self.cleared for pod in one.pods))


@dataclass(frozen=True, slots=True)
class _Option:
    """What may be done with a card: the numbers of the held devices that go, and what fits then."""

    going: tuple[int, ...]
    pattern: Pattern


def defragment(wanted: Mapping[MigProfile, int], cards: Sequence[HeldCard], solve: Solver) -> Advice:
    """The fewest pods, then the fewest cards, such that there is room for the most of what is wanted."""
    profiles = tuple(sorted((p for p, n in wanted.items() if n > 0), reverse=True))
    # a pod with devices on several cards goes from all of them: its cards are each a kind of their own
    times = Counter(pod for card in cards for pod in set(card.pods))
    spread = {pod for pod, number in times.items() if number > 1}
    kinds: dict[tuple[object, ...], list[int]] = {}
    for number, card in enumerate(cards):
        alone = spread.isdisjoint(card.pods) and len(set(card.pods)) == len(card.pods)
        key = (id(card.layout.product), card.held, card.whole, None if alone else number)
        kinds.setdefault(key, []).append(number)
    program = Program()
    ending: dict[str, int] = {}
    goes: dict[int, int] = {}  # amount → pods that nothing else counts
    chosen: list[tuple[list[int], list[tuple[int, _Option]]]] = []
    made: list[dict[int, int]] = [{} for _ in profiles]
    for numbers in kinds.values():
        card, options = cards[numbers[0]], []
        most = tuple(
            min(wanted[p], shape.most) if (shape := card.layout.product.shape(p)) else 0 for p in profiles
        )
        for option in _options(card.layout.product, card.held, card.whole, profiles, most):
            amount = program.amount(len(numbers))
            options.append((amount, option))
            for index, count in enumerate(option.pattern):
                made[index][amount] = -count
            pods = {card.pods[index] for index in option.going}
            shared = pods if len(numbers) == 1 else set()
            for pod in sorted(shared):
                if pod not in ending:
                    ending[pod] = program.amount(1)
                program.at_most({amount: 1, ending[pod]: -1}, 0)
            goes[amount] = len(pods - shared)
        program.at_most({amount: 1 for amount, _ in options}, len(numbers))
        chosen.append((numbers, options))
    gets = [program.amount(wanted[profile]) for profile in profiles]
    for get, of in zip(gets, made, strict=True):
        program.at_most({get: 1} | of, 0)
    goals: list[Sum] = [
        dict.fromkeys(gets, -1),
        {amount: count for amount, count in goes.items() if count} | dict.fromkeys(ending.values(), 1),
        dict.fromkeys(goes, 1),
    ]
    answer = minimise(program, goals, [0] * len(program.limits), solve)
    served = {p: answer.values[get] for p, get in zip(profiles, gets, strict=True)}
    cleared = []
    for numbers, options in chosen:
        of_kind = iter(numbers)
        for amount, option in options:
            for _ in range(answer.values[amount]):
                number = next(of_kind)
                going = tuple(dict.fromkeys(cards[number].pods[index] for index in option.going))
                room = {p: count for p, count in zip(profiles, option.pattern, strict=True) if count}
                cleared.append(Cleared(number, going, room))
    return Advice(
        {p: wanted[p] for p in sorted(profiles)},
        {p: served[p] for p in sorted(profiles) if served[p]},
        tuple(sorted(cleared, key=lambda one: one.card)),
        answer.gaps,
    )


@lru_cache(maxsize=4096)
def _options(
    product: Product, held: tuple[Instance, ...], whole: bool, profiles: tuple[MigProfile, ...], most: Pattern
) -> tuple[_Option, ...]:
    """All that is worth doing: nothing more fits with fewer devices gone."""
    if whole:
        return tuple(
            _Option((0,), pattern)
            for pattern in maximal_patterns(product, (), profiles, most)
            if any(pattern)
        )
    found: list[_Option] = []
    for number in range(len(held) + 1):
        for going in combinations(range(len(held)), number):
            stay = tuple(one for index, one in enumerate(held) if index not in going)
            found += [
                _Option(going, pattern)
                for pattern in maximal_patterns(product, stay, profiles, most)
                if any(pattern) and not any(_as_good(other, going, pattern) for other in found)
            ]
    return tuple(found)


def _as_good(other: _Option, going: tuple[int, ...], pattern: Pattern) -> bool:
    return set(other.going) <= set(going) and all(
        one >= two for one, two in zip(other.pattern, pattern, strict=True)
    )
