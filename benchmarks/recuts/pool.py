"""Cards with places: every slice lies somewhere on its card, and a pod holds one of them.

Which one it gets: a node that has most of what it asks for, and there the slice that the device plugin would name (`core/devices/preference`).
"""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Final

from benchmarks.days.layouts import CARDS_OF_A_NODE, PRODUCT, PROFILES
from tessera.core.autopilot.values import CardSupply
from tessera.core.devices.preference import blocks_of
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Pattern, Wish, every_place, place
from tessera.core.planning.changes import Way

SIZE_OF: Final = {profile: size for size, profile in PROFILES.items()}
_AT: Final = {  # size and first memory slice → the slice; there is one object for each, so they are compared by identity
    (SIZE_OF[one.profile], one.position): one for one in every_place(PRODUCT) if one.profile in SIZE_OF
}
PLACES: Final = {size: tuple(one for (of, _), one in _AT.items() if of == size) for size in PROFILES}
UNDER_WAY: Final = "it is being cut"
_WIDTH: Final = 16  # memory slices: no card has more
_BLOCKS: Final = [(((1 << one.size) - 1) << one.start, one.size, one.start) for one in blocks_of(PRODUCT)]


@cache
def holes(taken: int) -> tuple[int, ...]:
    """The sizes of the places on a card that are free, largest first, if these memory slices are taken."""
    return tuple(size for mask, size, _ in _BLOCKS if not taken & mask)


def _largest(taken: int) -> int:
    """How good the largest of them is: the larger the better, then the further to the left."""
    return next((size * _WIDTH - start for mask, size, start in _BLOCKS if not taken & mask), 0)


@cache
def best_of(taken: int, size: int, free: int) -> tuple[Instance, tuple[bool, int, int]]:
    """The slice of a card that leaves the largest holes, and how little that harms: the larger, the better. `free`: starts, as bits."""
    best = max(starting_at(size, free), key=lambda one: (holes(taken | one.mask), _largest(taken | one.mask)))
    before, after = _largest(taken), _largest(taken | best.mask)
    return best, (True, 0, 0) if before == after else (False, -before, after)


@cache
def starting_at(size: int, starts: int) -> tuple[Instance, ...]:
    return tuple(one for one in PLACES[size] if starts >> one.position & 1)


class Card:
    """A card in simulated time."""

    __slots__ = ("_supply", "coming", "free", "index", "node", "number", "promised", "taken", "used", "way")

    def __init__(self, index: int, instances: Iterable[Instance], way: Way) -> None:
        self.index, self.way = index, way
        self.node, self.number = divmod(index, CARDS_OF_A_NODE)
        self.free = dict.fromkeys(PROFILES, 0)  # size → where free slices start, as bits
        self.used: tuple[Instance, ...] = ()
        self.coming: tuple[Instance, ...] = ()  # while it is being cut
        self.promised: tuple[Instance, ...] = ()  # of those, what somebody waits for
        self.taken = 0  # memory slices in use
        self._supply: CardSupply | None = None
        self.put(instances)

    @property
    def idle(self) -> list[Instance]:
        return [one for size, starts in self.free.items() if starts for one in starting_at(size, starts)]

    def put(self, instances: Iterable[Instance]) -> None:
        """Slices are there and free."""
        for one in instances:
            self.free[SIZE_OF[one.profile]] |= 1 << one.position
        self._supply = None

    def take(self, size: int) -> Instance:
        """A free slice goes to a pod."""
        one, _ = best_of(self.taken, size, self.free[size])
        self.free[size] &= ~(1 << one.position)
        self.used += (one,)
        self.taken |= one.mask
        self._supply = None
        return one

    def give_back(self, one: Instance) -> None:
        self.used = tuple(other for other in self.used if other is not one)
        self.taken &= ~one.mask
        self.put((one,))

    def begin(self, cut: Iterable[Instance]) -> None:
        """Cut it: what goes is gone, what comes is yet to come; only what is idle goes. What mig-manager cuts is cleared first."""
        after = [_AT[SIZE_OF[one.profile], one.position] for one in cut]
        cleared = self.way is Way.MIG_MANAGER
        if self.coming or not {*self.used} <= {*after} or (cleared and self.used):
            raise ValueError(f"card {self.index} cannot be cut so now")
        stay = [] if cleared else [one for one in self.idle if one in after]
        self.free = dict.fromkeys(PROFILES, 0)
        self.put(stay)
        self.coming = tuple(one for one in after if one not in self.used and one not in stay)

    def finish(self) -> None:
        """What was to come is there."""
        come, self.coming, self.promised = self.coming, (), ()
        self.put(come)

    def promise(self, sizes: dict[int, int]) -> None:
        """What comes is for those who wait, as far as it goes: so many of each size."""
        promised = []
        for one in self.coming:
            if sizes[SIZE_OF[one.profile]]:
                sizes[SIZE_OF[one.profile]] -= 1
                promised.append(one)
        if (found := tuple(promised)) != self.promised:
            self.promised, self._supply = found, None

    def supply(self, fixed: str = "") -> CardSupply:
        """The card as the autopilot sees it: cut as it will be, with what comes and is waited for as held."""
        fixed = UNDER_WAY if self.coming else fixed
        if self._supply is None or self._supply.fixed != fixed:
            layout = layout_of(_ordered((*self.used, *self.coming, *self.idle)))
            held = _ordered((*self.used, *self.promised))
            self._supply = CardSupply(
                f"node-{self.node:02}", self.number, layout, held, self.way, fixed=fixed
            )
        return self._supply


@cache
def layout_of(instances: tuple[Instance, ...]) -> CardLayout:
    """A card that is cut so: the same object for the same cut."""
    return CardLayout(PRODUCT, mig_enabled=True, instances=instances)


def _ordered(some: Iterable[Instance]) -> tuple[Instance, ...]:
    return tuple(sorted(some, key=lambda one: one.position))


class Pool:
    """All cards; `cordons`: a node takes no pods while one of its cards is cut."""

    def __init__(self, cut: Iterable[Pattern], way: Way = Way.ANNOTATION, *, cordons: bool = False) -> None:
        self.cards = [Card(index, placed(pattern), way) for index, pattern in enumerate(cut)]
        self.cordons = cordons
        nodes = {card.node for card in self.cards}
        self.nodes = [[card for card in self.cards if card.node == node] for node in sorted(nodes)]

    def is_closed(self, node: int) -> bool:
        return self.cordons and any(card.coming for card in self.nodes[node])

    def helped(self, size: int) -> Sequence[int]:
        """The sizes that can use it when a slice of this size comes free."""
        return (size,)

    def take(self, size: int) -> tuple[Card, Instance] | None:
        """A slice for a pod, if one is free."""
        most, found = 0, None
        for number, node in enumerate(self.nodes):
            having = [card for card in node if card.free[size]]
            count = sum([card.free[size].bit_count() for card in having])
            if count > most and not self.is_closed(number):
                most, found = count, having
        if found is None:
            return None
        card = max(found, key=partial(_merit, size))
        return card, card.take(size)


def _merit(size: int, card: Card) -> tuple[tuple[bool, int, int], int, int]:
    """How good it is to take a slice of a card, for the cards of a node: the largest holes stay, and cards that are begun are finished."""
    return best_of(card.taken, size, card.free[size])[1], -card.free[size].bit_count(), -card.index


@cache
def placed(pattern: Pattern) -> tuple[Instance, ...]:
    """So many slices of each size, on one card."""
    wishes = [
        Wish(profile)
        for profile, count in zip(PROFILES.values(), pattern, strict=False)
        for _ in range(count)
    ]
    found = place(PRODUCT, wishes)
    if found is None:
        raise ValueError(f"no card can be cut into {pattern}")
    return found
