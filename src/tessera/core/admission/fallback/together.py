"""The search for candidates of several profiles that fit together on one node: the mildest combination that does.

Mild: the least far step first (the worst of a combination counts), then the fewest changes, then the candidates' order. A branch is left
when what is still to be chosen cannot end there: too few or too many of it can change, none goes so far, or no node has room for it.

A search that takes long first tries, before it follows a branch, whether the rest fits at all. The order does not matter there: such a
trial begins with the profile that has the fewest options, and takes tens of steps where the search would take thousands. Where the trial takes
long, too, and few nodes are left, it is worked out for each of them which profiles fit into its resources together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from operator import or_
from typing import Final

from tessera.core.admission.fallback.candidates import Candidate, Step
from tessera.core.admission.limits import Work
from tessera.core.values import value

MOST_COMBINATIONS: Final = 10_000  # combinations that are tried for one pod: some ten milliseconds
_FIRST_LOOKS: Final = 16  # some 30 µs
_COMBINATIONS_BEFORE_TRIALS: Final = 300  # most searches have ended by then
_MOST_TRIED: Final = 5_000  # steps of all trials: some five milliseconds
_ONE_TRIAL: Final = 1_000
_FEW_NODES: Final = 64
_MOST_FITTING: Final = 500  # sets of profiles that fit into a resource, worked out at once
_TRIED_BY_A_REFUSAL: Final = 50  # trials know nothing of injection: where it refuses much, they help little
_STEPS: Final = tuple(map(int, Step))[1:]  # away from what was asked for

_Option = tuple[str, int, bool]  # resource, step, and whether it is a change


@value
class _Ahead:
    """What the profiles can still do that are not chosen yet."""

    least: int = 0  # of them change
    most: int = 0
    reaches: bool = False  # one goes as far as the worst step
    nodes: int = -1  # have room for each of them, alone; -1: all
    # of each the options on all nodes, and its place; fewest options first
    hardest: tuple[tuple[int, int], ...] = ()


@value
class Injecting:
    """What is known of injection before all is chosen."""

    ruled: frozenset[str] = (
        frozenset()
    )  # the resources that have a rule; with two of them nothing is injected
    nodes: Callable[[str, tuple[str, ...]], int] = lambda *_: (
        -1
    )  # large enough while these, or more, become one of them


NO_RULES: Final = Injecting()


class Together:
    """One search. Nodes are bits of a number, and so are the profiles that one resource takes the place of."""

    def __init__(
        self,
        lists: Mapping[str, Sequence[Candidate]],
        room: Callable[[str, tuple[str, ...]], int],
        accepts: Callable[[Mapping[str, str], int], bool],
        work: Work,
        injecting: Injecting = NO_RULES,
    ) -> None:
        """`lists`: the candidates of each profile; `room`: the nodes for a resource in place of several profiles."""
        self.combinations = self._tried = self._try_until = self._looks = 0
        self._room_of, self._accepts, self._work = room, accepts, work
        self._injecting, self._injected = injecting, ""  # the only resource with a rule that can be chosen
        self._asked = tuple(lists)
        self._rooms = defaultdict[str, dict[int, int]](dict)  # resource → profiles → nodes
        self._sources = defaultdict[str, int](int)  # the profiles for which each resource is chosen
        self._candidates = tuple(lists.values())
        self._later: list[Iterator[Candidate]] = []  # the candidates that are not looked at yet
        self._next: list[Candidate | None] = []
        self._lists: list[list[_Option]] = []  # those that have room alone
        self._staying = self._nodes_where_profiles_stay()
        self._ahead: list[_Ahead] = []
        self._chosen: dict[str, str] = {}

    def first(self, nodes: int) -> dict[str, str] | None:
        """What `best` finds, if it is one of the first combinations, as it is for most pods: to look ahead would take longer."""
        if self._injecting is not NO_RULES:
            return None
        self._looks = _FIRST_LOOKS
        reached = {one.order for found in self._candidates for one in found}
        for worst in _STEPS:
            if worst in reached:
                for changes in range(1, len(self._asked) + 1):
                    if self._look(0, worst, changes, 0, nodes):
                        return self._chosen
        return None

    def best(self, nodes: int) -> dict[str, str] | None:
        """What each profile becomes; None when nothing fits, or there are too many combinations."""
        self._later = [iter(found) for found in self._candidates]
        self._next = [next(found, None) for found in self._later]
        self._lists = [[] for _ in self._asked]
        self._look_at(Step.AS_ASKED)
        for worst in _STEPS:
            if not self._look_at(worst):
                continue  # no combination goes so far
            self._begin()
            self._ahead = self._look_ahead(worst)
            first = self._ahead[0]
            fitting = first.nodes & nodes
            if fitting:
                fitting = self._fitting(0, range(first.least, first.most + 1), fitting)
            if fitting:
                for changes in range(max(1, first.least), first.most + 1):
                    if self._branch(0, worst, changes, 0, fitting):
                        return self._chosen
        self._work.spend(self.combinations)
        return None

    def _look(self, place: int, worst: int, changes: int, used: int, nodes: int) -> bool:
        """Choose from one profile on, as `_choose` does, with no look ahead; False, too, after some looks."""
        after = len(self._asked) - place - 1
        nodes &= self._staying[place][after + 1 - changes]
        if not nodes:
            return False
        for one in self._candidates[place]:
            to, order = one.resource, one.order
            left = changes - (order > 0)
            if order > worst or self._looks <= 0:
                return False
            if not 0 <= left <= after or (not after and max(used, order) < worst):
                continue
            self._looks -= 1
            before = self._sources[to]
            sources = before | 1 << place
            narrowed = nodes & self._room(to, sources)
            if not narrowed:
                continue
            self._chosen[self._asked[place]], self._sources[to] = to, sources
            if (
                self._look(place + 1, worst, left, max(used, order), narrowed)
                if after
                else self._accepts(self._chosen, narrowed)
            ):
                return True
            self._sources[to] = before
        return False

    def _look_at(self, step: int) -> bool:
        """Take in the candidates of one more step; say whether one of them has room. Those of milder steps are there."""
        reaches = False
        for place, found in enumerate(self._next):
            while found is not None and found.order <= step:
                to, sources = found.resource, 1 << place
                rooms = self._rooms[to]
                room = rooms.get(sources) if to != self._injected else None
                if room is None:
                    room = self._room_of(to, (self._asked[place],))
                    if to != self._injected:
                        rooms[sources] = room
                if room:
                    self._lists[place].append((to, int(found.order), found.order is not Step.AS_ASKED))
                    reaches = True
                found = self._next[place] = next(self._later[place], None)
        return reaches

    def _nodes_where_profiles_stay(self) -> list[list[int]]:
        """By place and number: the nodes that have room for so many of the profiles from there on as they are asked for, each alone."""
        every = [[-1]]
        for place in reversed(range(len(self._asked))):
            room, after = self._room(self._asked[place], 1 << place), [*every[-1], 0]
            every.append([-1, *[more | fewer & room for fewer, more in pairwise(after)]])
        return every[::-1]

    def _begin(self) -> None:
        """Go by what injection adds where it is known what that goes by."""
        ruled = self._injecting.ruled
        if ruled:
            ruled = ruled & {to for found in self._lists for to, _, _ in found}
        before, self._injected = self._injected, next(iter(ruled)) if len(ruled) == 1 else ""
        if self._injected != before:
            self._rooms.update((to, {}) for to in {before, self._injected} - {""})

    def _look_ahead(self, worst: int) -> list[_Ahead]:
        after = _Ahead()
        ahead = [after]
        for place in reversed(range(len(self._asked))):
            options = self._lists[place]
            rooms = [self._room(to, 1 << place) for to, _, _ in options]
            number = sum([room.bit_count() for room in rooms])
            changes = [changed for _, _, changed in options]
            after = _Ahead(
                after.least + all(changes),
                after.most + any(changes),
                after.reaches or (bool(options) and options[-1][1] == worst),  # the last goes furthest
                after.nodes & reduce(or_, rooms, 0),
                tuple(sorted((*after.hardest, (number, place)))),
            )
            ahead.append(after)
        return ahead[::-1]

    def _branch(self, place: int, worst: int, changes: int, used: int, nodes: int) -> bool:
        """Choose from one profile on, unless it shows before that nothing there fits."""
        nodes &= self._staying[place][len(self._asked) - place - changes]
        if not nodes:
            return False
        if (
            self.combinations >= _COMBINATIONS_BEFORE_TRIALS and place < len(self._asked) - 2
        ):  # two are chosen as quickly as tried
            nodes = self._fitting(place, range(changes, changes + 1), nodes)
        return bool(nodes) and self._choose(place, worst, changes, used, nodes)

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
            if left < after.least or left > after.most:
                continue
            highest = max(used, order)
            if highest < worst and not after.reaches:
                continue
            if self.combinations > MOST_COMBINATIONS:
                return False
            self.combinations += 1
            before = self._sources[to]
            narrowed = nodes & self._room(to, before | 1 << place)
            if narrowed:
                self._chosen[self._asked[place]], self._sources[to] = to, before | 1 << place
                if self._branch(place + 1, worst, left, highest, narrowed):
                    return True
                self._sources[to] = before
        return False

    def _fitting(self, place: int, changes: range, nodes: int) -> int:
        """Those of some nodes on which all that is still to be chosen fits, with so many changes; more of them when that takes too long."""
        self._try_until = min(_MOST_TRIED, self._tried + _ONE_TRIAL)
        if not self._fits(self._ahead[place].hardest, changes[-1], nodes):
            return 0
        if self._tried <= self._try_until or self._tried > _MOST_TRIED or nodes.bit_count() > _FEW_NODES:
            return nodes
        return self._packed(place, changes, nodes)

    def _packed(self, place: int, changes: range, nodes: int) -> int:
        """The same, worked out for every node: which sets of profiles its resources have room for, one resource after the other.

        A set of profiles is a number, and so is a set of them with so many changes: bit n is the set n, with one more change 2**count later.
        """
        count = len(self._asked) - place
        options: dict[str, list[tuple[int, bool]]] = {}
        for at, found in enumerate(self._lists[place:]):
            for to, _, changed in found:
                options.setdefault(to, []).append((1 << at, changed))
        packs = [self._packs(place, to, items, nodes) for to, items in options.items()]
        entries = sum(map(len, packs))
        if entries >= _MOST_FITTING:
            return nodes
        self._tried += entries * (1 + nodes.bit_count() // 4)
        fitting, left = 0, nodes
        while left:
            node = left & -left
            left ^= node
            reached = 1
            for pack in packs:
                after = reached
                for some, changes_by, room in pack:
                    if room & node:
                        after |= (reached & _apart(count, some)) << some + (changes_by << count)
                reached = after
            if any(reached >> (number + 1 << count) - 1 & 1 for number in changes):
                fitting |= node
        return fitting

    def _packs(
        self, place: int, to: str, items: list[tuple[int, bool]], nodes: int
    ) -> list[tuple[int, int, int]]:
        """The sets of profiles that one resource has room for, each with the changes that it is, and the nodes."""
        packs = [(0, 0, nodes)]
        for one, changed in items:
            for some, number, room in packs[:]:
                if room := room & self._room(to, self._sources[to] | (some | one) << place):
                    packs.append((some | one, number + changed, room))
            if len(packs) > _MOST_FITTING:
                break
        return packs[1:]

    def _fits(self, rest: tuple[tuple[int, int], ...], changes: int, nodes: int) -> bool:
        """Whether what is still to be chosen fits at all, with at most so many changes; True when that takes too long."""
        if not rest:
            return True
        (_, place), others = rest[0], rest[1:]
        for to, _, changed in self._lists[place]:
            if changed > changes:
                continue
            if self._tried > self._try_until:
                return True
            self._tried += 1
            before = self._sources[to]
            narrowed = nodes & self._room(to, before | 1 << place)
            if narrowed:
                self._sources[to] = before | 1 << place
                fits = self._fits(others, changes - changed, narrowed)
                self._sources[to] = before
                if fits:
                    return True
        return False

    def _room(self, to: str, sources: int) -> int:
        """The nodes that have room for a resource in place of several profiles, each one bit."""
        rooms = self._rooms[to]
        room = rooms.get(sources)
        if room is None:
            asked = _profiles_of(self._asked, sources)
            room = self._room_of(to, asked)
            if room and to == self._injected:
                room &= self._injecting.nodes(to, asked)
            rooms[sources] = room
        return room


@lru_cache(maxsize=1024)
def _profiles_of(asked: tuple[str, ...], sources: int) -> tuple[str, ...]:
    """The profiles whose bits are set."""
    return tuple([profile for place, profile in enumerate(asked) if sources >> place & 1])


@lru_cache(maxsize=1024)
def _apart(count: int, some: int) -> int:
    """The sets, of so many profiles, that have none of these, with every number of changes."""
    sets = 1
    for at in range(count):
        if not some >> at & 1:
            sets |= sets << (1 << at)
    return sum([sets << (changes << count) for changes in range(count + 1)])
