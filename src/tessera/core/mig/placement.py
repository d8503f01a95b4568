"""Where instances lie on a card: an exact search over the few starts that each profile has.

A card has a handful of slices, so a set of them is a bit mask and the search is a plain depth-first one. Of the counts of
profiles that a card can hold only the few maximal ones are worth knowing: every layout is a part of one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from tessera.core.mig.geometry import MAX_SLICES, Product, Shape
from tessera.core.mig.profile import MigProfile

Pattern = tuple[int, ...]  # a count for each profile that was asked about


@dataclass(frozen=True, slots=True)
class Wish:
    """One MIG device that is wanted on a card, at a certain place or anywhere."""

    profile: MigProfile
    position: int | None = None  # first memory slice
    size: int | None = None  # memory slices; only to be checked, the profile decides

    def __str__(self) -> str:
        return str(self.profile) if self.position is None else f"{self.profile} at {self.position}"


@dataclass(frozen=True, slots=True)
class Instance:
    profile: MigProfile
    position: int
    size: int

    def __hash__(self) -> int:
        """Of numbers alone, which is fast: what is known of cards is kept by their instances."""
        return hash((self.profile.memory_gb, self.profile.compute, self.position, self.size))

    @property
    def mask(self) -> int:
        return ((1 << self.size) - 1) << self.position

    def __str__(self) -> str:
        return f"{self.profile} at {self.position}"


def every_place(product: Product) -> Iterator[Instance]:
    for shape in product.shapes:
        for start in shape.starts:
            yield Instance(shape.profile, start, shape.size)


def place(product: Product, wishes: Iterable[Wish]) -> tuple[Instance, ...] | None:
    """A place for every wish, ordered by position; None when there is none.

    The same multiset of wishes always gets the same places: big ones first, each as high on the card as it goes.
    Low slices thus stay free longest, and only there does 4g fit.
    """
    asked: list[tuple[Shape, int | None]] = []
    for wish in wishes:
        shape = product.shape(wish.profile)
        if shape is None or wish.size not in (None, shape.size):
            return None
        asked.append((shape, wish.position))
    if not within_limits(product, [shape for shape, _ in asked]):
        return None
    asked.sort(key=_eagerness)
    starts = _search(asked, 0, 0, 0, set())
    if starts is None:
        return None
    placed = (
        Instance(shape.profile, start, shape.size) for (shape, _), start in zip(asked, starts, strict=True)
    )
    return tuple(sorted(placed, key=lambda instance: instance.position))


def place_keeping(
    product: Product, wishes: Sequence[Wish], present: Sequence[Instance]
) -> tuple[Instance, ...] | None:
    """As `place`, and wishes without a place get those of present instances: as many stay as can."""
    if not present:
        return place(product, wishes)
    open_ = Counter(wish.profile for wish in wishes if wish.position is None)
    fixed = {(wish.profile, wish.position) for wish in wishes}
    alike = [one for one in present if open_[one.profile] and (one.profile, one.position) not in fixed]
    for count in range(min(len(alike), open_.total()), 0, -1):
        for stay in combinations(alike, count):
            left = open_ - Counter(one.profile for one in stay)
            if left.total() != open_.total() - count:
                continue  # more of a profile than are wished for
            placed = place(
                product,
                [
                    *(wish for wish in wishes if wish.position is not None),
                    *(Wish(one.profile, one.position, one.size) for one in stay),
                    *map(Wish, left.elements()),
                ],
            )
            if placed is not None:
                return placed
    return place(product, wishes)


@lru_cache(maxsize=1024)
def has_one_placement(product: Product, profiles: tuple[MigProfile, ...]) -> bool:
    """Whether devices of these profiles, which fit on a card, have no other places there than those that `place` gives them."""
    shapes = sorted((shape for profile in profiles if (shape := product.shape(profile))), key=_size_first)

    def ways(index: int, taken: int, below: int) -> int:
        """How many ways there are to place shapes[index:], counted to two."""
        if index == len(shapes):
            return 1
        shape, found = shapes[index], 0
        # equal ones lie in descending order, as in `_search`
        below = below if index and shapes[index - 1] == shape else MAX_SLICES
        for start in shape.starts:
            mask = ((1 << shape.size) - 1) << start
            if start < below and not taken & mask:
                found += ways(index + 1, taken | mask, start)
                if found > 1:
                    break
        return found

    return ways(0, 0, MAX_SLICES) == 1


def within_limits(product: Product, shapes: Sequence[Shape]) -> bool:
    """Whether counts and sums allow these together, wherever they may lie."""
    return (
        sum(shape.compute for shape in shapes) <= product.compute_slices
        and sum(shape.size for shape in shapes) <= product.memory_slices
        and sum(shape.media for shape in shapes) <= product.media_sets
        and all(count <= shape.most for shape, count in Counter(shapes).items())
    )


def room_for(product: Product, start: int, size: int, others: Sequence[Shape]) -> Shape | None:
    """The largest device that memory slices that are in no device have room for, beside the card's other devices; None: none."""
    fitting = (
        shape
        for shape in product.shapes
        if any(start <= at and at + shape.size <= start + size for at in shape.starts)
        and within_limits(product, [*others, shape])
    )
    return max(fitting, key=lambda shape: (shape.compute, shape.size), default=None)


def _eagerness(asked: tuple[Shape, int | None]) -> tuple[bool, int, int, int, MigProfile]:
    """Fixed ones first, then the big ones, which have the fewest places."""
    shape, position = asked
    return (position is None, position or 0, *_size_first(shape))


def _size_first(shape: Shape) -> tuple[int, int, MigProfile]:
    return (-shape.size, -shape.compute, shape.profile)


def _search(
    asked: Sequence[tuple[Shape, int | None]],
    index: int,
    taken: int,
    below: int,
    dead: set[tuple[int, int, int]],
) -> list[int] | None:
    """Starts for asked[index:], given the slices taken; `below` is where the one before lies."""
    if index == len(asked):
        return []
    # equal ones take descending places: trying them the other way round would find nothing new
    below = below if index > 0 and asked[index - 1] == asked[index] else MAX_SLICES
    if (index, taken, below) in dead:
        return None
    shape, position = asked[index]
    for start in reversed(shape.starts):
        mask = ((1 << shape.size) - 1) << start
        if start >= below or taken & mask or position not in (None, start):
            continue
        rest = _search(asked, index + 1, taken | mask, start, dead)
        if rest is not None:
            return [start, *rest]
    dead.add((index, taken, below))
    return None


@lru_cache(maxsize=4096)
def maximal_patterns(
    product: Product, kept: tuple[Instance, ...], profiles: tuple[MigProfile, ...], most: Pattern
) -> tuple[Pattern, ...]:
    """All counts of the profiles, at most `most` of each, that fit beside what is kept and leave no room for more."""
    feasible = set(every_pattern(product, [Wish(i.profile, i.position) for i in kept], profiles, most))
    return tuple(
        sorted(
            pattern
            for pattern in feasible
            if not any(
                (*pattern[:index], count + 1, *pattern[index + 1 :]) in feasible
                for index, count in enumerate(pattern)
            )
        )
    )


def every_pattern(
    product: Product, wishes: list[Wish], profiles: Sequence[MigProfile], most: Sequence[int]
) -> list[Pattern]:
    """All counts of the profiles, at most `most` of each, that fit beside the wishes."""
    if not profiles:
        return [()]
    found: list[Pattern] = []
    for count in range(most[0] + 1):
        more = [*wishes, *[Wish(profiles[0])] * count]
        if count and place(product, more) is None:
            break  # with more of it, it would fit no better
        found += [(count, *rest) for rest in every_pattern(product, more, profiles[1:], most[1:])]
    return found
