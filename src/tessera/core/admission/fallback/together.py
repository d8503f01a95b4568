"""The search for candidates of several profiles that fit together on one node: the mildest combination that does.

Mild: the least far step first (the worst of a combination counts), then the fewest changes, then the candidates' order. A branch is left
when what is still to be chosen cannot end there: too few or too many of it can change, none goes so far, or no node has room for it.

A search that takes long first tries, before it follows a branch, whether the rest fits at all. The order does not matter there: such a
trial begins with the profile that has the fewest options, and takes tens of looks where the search would take thousands.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final

from tessera.core.admission.fallback.candidates import Candidate, Step
from tessera.core.admission.limits import Work
from tessera.core.values import value

MOST_LOOKS: Final = 10_000  # combinations looked at for one pod: some ten milliseconds
_LOOKS_BEFORE_TRIALS: Final = 300  # most searches have ended by then
_MOST_TRIED: Final = 5_000  # looks of all trials: some five milliseconds
_TRIED_BY_A_REFUSAL: Final = 50  # trials know nothing of injection: where it refuses much, they help little


@value
class _Ahead:
    """What the profiles can still do that are not chosen yet."""

    least: int = 0  # of them change
    most: int = 0
    reaches: bool = False  # one goes as far as the worst step
    nodes: int = -1  # have room for each of them, alone; -1: all
    # of each the options on all nodes, and its place; fewest options first
    hardest: tuple[tuple[int, int], ...] = ()


class Together:
    """One search. Nodes are bits of a number, and so are the profiles that one resource takes the place of."""

    def __init__(
        self,
        lists: Mapping[str, Sequence[Candidate]],
        room: Callable[[str, tuple[str, ...]], int],
        accepts: Callable[[Mapping[str, str], int], bool],
        work: Work,
    ) -> None:
        """`lists`: the candidates of each profile; `room`: the nodes for a resource in place of several profiles."""
        self.looks = self._tried = 0
        self._room_of, self._accepts, self._work = room, accepts, work
        self._asked = tuple(lists)
        every = {one.resource for found in lists.values() for one in found}
        self._rooms: dict[str, dict[int, int]] = {to: {} for to in every}  # resource → profiles → nodes
        self._sources = dict.fromkeys(every, 0)  # the profiles for which each resource is chosen
        self._lists = [
            [
                (one.resource, int(one.order), one.order is not Step.AS_ASKED)
                for one in found
                if self._room(one.resource, 1 << place)
            ]
            for place, found in enumerate(lists.values())
        ]
        self._staying = self._nodes_where_profiles_stay()
        self._ahead: list[_Ahead] = []
        self._chosen: dict[str, str] = {}

    def best(self, nodes: int) -> dict[str, str] | None:
        """What each profile becomes; None when nothing fits, or there is too much to look at."""
        for worst in list(Step)[1:]:
            self._ahead = self._look_ahead(worst)
            first = self._ahead[0]
            fitting = first.nodes & nodes
            if first.reaches and fitting and self._fits(first.hardest, int(worst), first.most, fitting):
                for changes in range(max(1, first.least), first.most + 1):
                    if self._branch(0, int(worst), changes, 0, fitting):
                        return self._chosen
        self._work.spend(self.looks)
        return None

    def _nodes_where_profiles_stay(self) -> list[list[int]]:
        """By place and number: the nodes that have room for so many of the profiles from there on as they are asked for, each alone."""
        every = [[-1]]
        for place in reversed(range(len(self._asked))):
            room, after = self._room(self._asked[place], 1 << place), [*every[-1], 0]
            every.append([-1, *(more | fewer & room for fewer, more in pairwise(after))])
        return every[::-1]

    def _look_ahead(self, worst: Step) -> list[_Ahead]:
        ahead = [_Ahead()]
        for place in reversed(range(len(self._asked))):
            near = [(to, order) for to, order, _ in self._lists[place] if order <= worst]
            after = ahead[-1]
            orders = {order for _, order in near}
            rooms = [self._room(to, 1 << place) for to, _ in near]
            options = sum([room.bit_count() for room in rooms])
            ahead.append(_Ahead(
                after.least + (Step.AS_ASKED not in orders),
                after.most + (orders != {Step.AS_ASKED}),
                after.reaches or worst in orders,
                after.nodes & reduce(or_, rooms, 0),
                tuple(sorted((*after.hardest, (options, place)))),
            ))  # fmt: skip
        return ahead[::-1]

    def _branch(self, place: int, worst: int, changes: int, used: int, nodes: int) -> bool:
        """Choose from one profile on, unless it shows before that nothing there fits."""
        nodes &= self._staying[place][len(self._asked) - place - changes]
        if not nodes:
            return False
        rest = self._ahead[place].hardest
        tries = self.looks >= _LOOKS_BEFORE_TRIALS and len(rest) > 2  # two are chosen as quickly as tried
        if tries and not self._fits(rest, worst, changes, nodes):
            return False
        return self._choose(place, worst, changes, used, nodes)

    def _choose(self, place: int, worst: int, changes: int, used: int, nodes: int) -> bool:
        """Choose from one profile on: combinations whose worst step and number of changes are exactly these.

        `nodes` have room for what was chosen so far: each choice only narrows them down.
        """
        if place == len(self._asked):
            accepted = self._accepts(self._chosen, nodes)
            self._tried += 0 if accepted else _TRIED_BY_A_REFUSAL
            return accepted
        after = self._ahead[place + 1]
        nodes &= after.nodes
        for to, order, changed in self._lists[place]:
            left = changes - changed
            if order > worst or left < after.least or left > after.most:
                continue
            highest = max(used, order)
            if highest < worst and not after.reaches:
                continue
            if self.looks > MOST_LOOKS:
                return False
            self.looks += 1
            before = self._sources[to]
            narrowed = nodes & self._room(to, before | 1 << place)
            if narrowed:
                self._chosen[self._asked[place]], self._sources[to] = to, before | 1 << place
                if self._branch(place + 1, worst, left, highest, narrowed):
                    return True
                self._sources[to] = before
        return False

    def _fits(self, rest: tuple[tuple[int, int], ...], worst: int, changes: int, nodes: int) -> bool:
        """Whether what is still to be chosen fits at all, with at most so many changes; True when that takes too long."""
        if not rest:
            return True
        (_, place), others = rest[0], rest[1:]
        for to, order, changed in self._lists[place]:
            if order > worst or changed > changes:
                continue
            if self._tried > _MOST_TRIED:
                return True
            self._tried += 1
            before = self._sources[to]
            narrowed = nodes & self._room(to, before | 1 << place)
            if narrowed:
                self._sources[to] = before | 1 << place
                fits = self._fits(others, worst, changes - changed, narrowed)
                self._sources[to] = before
                if fits:
                    return True
        return False

    def _room(self, to: str, sources: int) -> int:
        """The nodes that have room for a resource in place of several profiles, each one bit."""
        room = self._rooms[to].get(sources)
        if room is None:
            asked = tuple(one for place, one in enumerate(self._asked) if sources >> place & 1)
            room = self._rooms[to][sources] = self._room_of(to, asked)
        return room
