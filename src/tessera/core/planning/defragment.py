"""Defragmentation: the fewest pods whose end makes room for some devices.

Advice, exact by the same means as plans: of every kind of card it is counted out which of its held devices would have to
go for which devices to fit, and a program chooses. Room that is there already costs nothing.

Where a card can only be cut as a whole, and it is not known which pods are on it, it is free for certain only when all pods end that may be on
it: such cards are in a bundle with all of these pods.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice

from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Pattern, maximal_patterns
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.program import Program, Solver, Sum, minimise


@dataclass(frozen=True, slots=True)
class Bundle:
    """Cards that are free for certain only once all of some pods end."""

    name: str
    pods: tuple[str, ...]
    free: tuple[tuple[MigProfile, int], ...]  # devices on these cards that no pod holds, whichever they are


@dataclass(frozen=True, slots=True)
class HeldCard:
    """A card, the devices on it that pods hold, and the pod that holds each."""

    layout: CardLayout
    held: tuple[Instance, ...] = ()
    pods: tuple[str, ...] = ()  # one for each of `held`; or the one that holds the whole card
    bundle: Bundle | None = None  # instead: who is on it is not known

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
    certain: bool = True  # else fewer pods might do, if they happen to be on the right cards

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
        if card.bundle is not None:
            continue
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
    bundles = _Bundles(program, cards, profiles, wanted, made)
    gets = [program.amount(wanted[profile]) for profile in profiles]
    for get, of in zip(gets, made, strict=True):
        program.at_most({get: 1} | of, 0)
    goals: list[Sum] = [
        dict.fromkeys(gets, -1),
        {amount: count for amount, count in goes.items() if count}
        | dict.fromkeys(ending.values(), 1)
        | bundles.pods,
        dict.fromkeys([*goes, *bundles.cuts], 1),
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
                cleared.append(Cleared(number, going, _room(profiles, option.pattern)))
    cleared += bundles.cleared(answer.values)
    return Advice(
        {p: wanted[p] for p in sorted(profiles)},
        {p: served[p] for p in sorted(profiles) if served[p]},
        tuple(sorted(cleared, key=lambda one: one.card)),
        answer.gaps,
        certain=not any(cards[one.card].bundle for one in cleared),
    )


def _room(profiles: Sequence[MigProfile], pattern: Pattern) -> dict[MigProfile, int]:
    return {p: count for p, count in zip(profiles, pattern, strict=True) if count}


class _Bundles:
    """The part of the program for bundles: how many of those that are alike are cleared, and what their cards are cut into."""

    def __init__(
        self,
        program: Program,
        cards: Sequence[HeldCard],
        profiles: tuple[MigProfile, ...],
        wanted: Mapping[MigProfile, int],
        made: Sequence[dict[int, int]],
    ) -> None:
        self.pods: dict[int, int] = {}  # amount of bundles → pods of each
        self.cuts: dict[int, Pattern] = {}
        self._profiles = profiles
        self._parts: list[tuple[list[tuple[Bundle, list[int]]], int, list[int]]] = []
        numbers: dict[Bundle, list[int]] = {}
        for number, card in enumerate(cards):
            if card.bundle is not None:
                numbers.setdefault(card.bundle, []).append(number)
        alike: dict[
            tuple[object, ...], list[tuple[Bundle, list[int]]]
        ] = {}  # thousands of nodes are few of these
        for bundle, some in numbers.items():
            key = (cards[some[0]].layout.product.name, len(some), len(bundle.pods), bundle.free)
            alike.setdefault(key, []).append((bundle, some))
        for same in alike.values():
            self._add(program, same, cards[same[0][1][0]].layout.product, wanted, made)

    def _add(
        self,
        program: Program,
        same: list[tuple[Bundle, list[int]]],
        product: Product,
        wanted: Mapping[MigProfile, int],
        made: Sequence[dict[int, int]],
    ) -> None:
        bundle, numbers = same[0]
        cleared = program.amount(len(same))
        self.pods[cleared] = len(bundle.pods)
        shapes = [product.shape(profile) for profile in self._profiles]
        most = tuple(
            min(wanted[p], one.most) if one else 0 for p, one in zip(self._profiles, shapes, strict=True)
        )
        cuts = []
        for pattern in maximal_patterns(product, (), self._profiles, most):
            if any(pattern):
                cuts.append(program.amount(len(same) * len(numbers)))
                self.cuts[cuts[-1]] = pattern
                for of, count in zip(made, pattern, strict=True):
                    of[cuts[-1]] = -count
        program.at_most({**dict.fromkeys(cuts, 1), cleared: -len(numbers)}, 0)
        for of, profile in zip(made, self._profiles, strict=True):
            if free := dict(bundle.free).get(profile):  # it serves, unless it is cleared with the rest
                amount = program.amount(free * len(same))
                of[amount] = -1
                program.at_most({amount: 1, cleared: free}, free * len(same))
        self._parts.append((same, cleared, cuts))

    def cleared(self, values: Sequence[int]) -> Iterator[Cleared]:
        for same, amount, cuts in self._parts:
            free = ((number, one.pods) for one, all_ in same[: values[amount]] for number in all_)
            for cut in cuts:
                for number, pods in islice(free, values[cut]):
                    yield Cleared(number, pods, _room(self._profiles, self.cuts[cut]))


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
