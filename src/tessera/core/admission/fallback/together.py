"""The search for candidates of several profiles that fit together on one node: the mildest combination that does.

Mild: the least far step first (the worst of a combination counts), then the fewest changes, then the candidates' order. A branch is left
when what is still to be chosen cannot end there: too few or too many of it can change, none goes so far, or no node has room for it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from tessera.core.admission.fallback.candidates import Candidate, Step
from tessera.core.admission.limits import Work
from tessera.core.values import value

MOST_LOOKS: Final = 10_000  # combinations looked at for one pod: some ten milliseconds


@value
class _Ahead:
    """What the profiles can still do that are not chosen yet."""

    least: int = 0  # of them change
    most: int = 0
    reaches: bool = False  # one goes as far as the worst step
    nodes: int = -1  # have room for each of them, alone; -1: all


class Together:
    """One search. Nodes are bits of a number."""

    def __init__(
        self,
        lists: Mapping[str, Sequence[Candidate]],
        room: Callable[[str, tuple[str, ...]], int],
        accepts: Callable[[Mapping[str, str], int], bool],
        work: Work,
    ) -> None:
        """`lists`: the candidates of each profile; `room`: the nodes for a resource in place of several profiles."""
        self.looks = 0
        self._room_of, self._accepts, self._work = room, accepts, work
        self._rooms: dict[tuple[str, tuple[str, ...]], int] = {}
        self._asked = tuple(lists)
        self._lists = [
            [
                (one.resource, int(one.order), one.order is not Step.AS_ASKED)
                for one in found
                if self._room(one.resource, (asked,))
            ]
            for asked, found in lists.items()
        ]
        self._ahead: list[_Ahead] = []
        self._chosen: dict[str, str] = {}
        self._sources: dict[str, tuple[str, ...]] = {}  # of each resource that is chosen

    def best(self, nodes: int) -> dict[str, str] | None:
        """What each profile becomes; None when nothing fits, or there is too much to look at."""
        for worst in list(Step)[1:]:
            self._ahead = self._look_ahead(worst)
            first = self._ahead[0]
            if first.reaches and first.nodes & nodes:
                for changes in range(max(1, first.least), first.most + 1):
                    if self._choose(0, int(worst), changes, 0, nodes):
                        return self._chosen
        self._work.spend(self.looks)
        return None

    def _look_ahead(self, worst: Step) -> list[_Ahead]:
        ahead = [_Ahead()]
        for asked, found in reversed([*zip(self._asked, self._lists, strict=True)]):
            near = [(to, order) for to, order, _ in found if order <= worst]
            after = ahead[-1]
            orders = {order for _, order in near}
            ahead.append(_Ahead(
                after.least + (Step.AS_ASKED not in orders),
                after.most + (orders != {Step.AS_ASKED}),
                after.reaches or worst in orders,
                after.nodes & reduce(or_, (self._room(to, (asked,)) for to, _ in near), 0),
            ))  # fmt: skip
        return ahead[::-1]

    def _choose(self, place: int, worst: int, changes: int, used: int, nodes: int) -> bool:
        """Choose from one profile on: combinations whose worst step and number of changes are exactly these.

        `nodes` have room for what was chosen so far: each choice only narrows them down.
        """
        if place == len(self._asked):
            return self._accepts(self._chosen, nodes)
        asked, after = self._asked[place], self._ahead[place + 1]
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
            before = self._sources.get(to, ())
            sources = (*before, asked)
            room = self._rooms.get((to, sources))
            narrowed = nodes & (self._room(to, sources) if room is None else room)
            if narrowed:
                self._chosen[asked], self._sources[to] = to, sources
                if self._choose(place + 1, worst, left, highest, narrowed):
                    return True
                self._sources[to] = before
        return False

    def _room(self, to: str, sources: tuple[str, ...]) -> int:
        room = self._rooms.get((to, sources))
        if room is None:
            room = self._rooms[to, sources] = self._room_of(to, sources)
        return room
