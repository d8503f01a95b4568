"""What cutting cards could bring at best, and what it is to have none that are cut."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from benchmarks.days.layouts import PROFILES
from benchmarks.days.tasks import SLICES, Task
from benchmarks.recuts.outcome import AFTER, Outcome
from benchmarks.recuts.play import Idle, play
from benchmarks.recuts.pool import PLACES, SIZE_OF, Card, Pool
from benchmarks.recuts.static import serve
from tessera.core.mig.placement import Instance
from tessera.core.planning.changes import Way

_LARGEST: Final = max(PROFILES)


def no_mig(tasks: Sequence[Task], cards: int) -> Outcome:
    """Every task takes a whole card; first come, first served."""
    return Outcome(tasks, serve(tasks, cards, tasks[-1].created + AFTER), cards)


def free_cutting(tasks: Sequence[Task], cards: int, kept: int = 0) -> Outcome:
    """Cards are cut at once, for nothing, as often as it helps; so many places for the largest slice are kept from smaller ones.

    Greedy, so no proof of what is possible: the oldest task that fits anywhere starts, where it takes least of the room that others could use.
    """
    return play(tasks, FreePool(cards, kept), Idle())


def moving(tasks: Sequence[Task], cards: int) -> Outcome:
    """Cards are cut for nothing, and pods move for nothing: a task starts as soon as enough slices are free, wherever they lie."""
    return play(tasks, MovingPool(cards), Idle())


class MovingPool(Pool):
    """Slices that lie nowhere: only how many are free counts."""

    def __init__(self, cards: int) -> None:
        super().__init__([()] * cards)
        self._all = _Slices(cards * SLICES)

    def helped(self, size: int) -> Sequence[int]:
        return tuple(PROFILES)

    def take(self, size: int) -> tuple[Card, Instance] | None:
        return (self._all, self._all.take(size)) if size <= self._all.left else None


class _Slices(Card):
    """All slices of all cards."""

    __slots__ = ("left",)

    def __init__(self, number: int) -> None:
        super().__init__(0, (), Way.ANNOTATION)
        self.left = number

    def take(self, size: int) -> Instance:
        self.left -= size
        return PLACES[size][0]

    def give_back(self, one: Instance) -> None:
        self.left += SIZE_OF[one.profile]


class FreePool(Pool):
    """Cards that have whatever slice is asked for, as far as it fits beside what is in use. What is in use does not move."""

    def __init__(self, cards: int, kept: int = 0) -> None:
        super().__init__([()] * cards)
        self._kept = kept

    def helped(self, size: int) -> Sequence[int]:
        return tuple(PROFILES)

    def take(self, size: int) -> tuple[Card, Instance] | None:
        spared = size != _LARGEST and sum(_places(card.taken) for card in self.cards) <= self._kept
        room = [
            (found[0], -card.taken.bit_count(), card, found[1])
            for card in self.cards
            if (found := _best(card.taken, size, spared=spared))
        ]
        if not room:
            return None
        _, _, card, one = min(room, key=lambda some: some[:2])
        card.free[size] = 0  # what was given back is room, no slice
        card.put((one,))
        return card, card.take(size)


@cache
def _best(taken: int, size: int, *, spared: bool) -> tuple[int, Instance] | None:
    """Where on a card a slice takes least room from others, and how much; `spared`: no place for the largest slice may go."""
    fitting = [
        (_room(taken) - _room(taken | one.mask), one)
        for one in PLACES[size]
        if not one.mask & taken and not (spared and _places(taken | one.mask) < _places(taken))
    ]
    return min(fitting, key=lambda some: (some[0], -some[1].position), default=None)


@cache
def _places(taken: int) -> int:
    """Places on a card for the largest slice."""
    return sum(not one.mask & taken for one in PLACES[_LARGEST])


@cache
def _room(taken: int) -> int:
    """What still fits on a card: for each size alone, the sevenths of all slices of it."""
    room = 0
    for size, places in PLACES.items():
        left = taken
        for one in places:
            if not one.mask & left:
                left |= one.mask
                room += size
    return room
