"""Pods that want several devices: one node gets room for all of them, or nothing is cut for such a pod.

Where a node is cut for one, its other cards are left alone in the same look: what is idle there is meant for the pod, too.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from tessera.core.autopilot.groups import Group
from tessera.core.autopilot.options import Option
from tessera.core.autopilot.refusals import REASONS
from tessera.core.autopilot.search import LONGEST, URGENT, Search
from tessera.core.autopilot.values import CardSupply, Recut, Want, Why
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import ANYWHERE

_MOST_NODES: Final = (
    64  # nodes with room that are compared for one pod: clusters have thousands that are alike
)


@dataclass(frozen=True, slots=True)
class _Choice:
    group: Group
    card: CardSupply
    option: Option
    reached: Mapping[MigProfile, int]
    cost: float


class Together:
    """The nodes on which pods that want several devices could have them, while cards are chosen."""

    def __init__(
        self,
        search: Search,
        cards: Iterable[CardSupply],
        groups: Mapping[Group, list[CardSupply]],
        cooling: Iterable[CardSupply],
    ) -> None:
        """`groups`: cards that may be cut; `cooling`: those that may be cut later."""
        self._search, self._groups = search, groups
        self._profiles = {want.profile for want, _ in search.pods}
        self._idle = Counter[tuple[str, MigProfile]]()  # by node
        self._later = Counter[
            tuple[str, MigProfile]
        ]()  # by node: what its cards in their cool-down could bring
        self._cooling: dict[str, frozenset[int]] = {}  # nodes that have such cards only: whom they serve
        self._ways: dict[
            tuple[Group, MigProfile, int, bool], list[tuple[Option, Mapping[MigProfile, int], float]]
        ] = {}
        if not self._profiles:
            return
        for card in cards:
            for one in () if card.fixed else card.layout.instances:
                if one.profile in self._profiles and one not in card.held:
                    self._idle[card.node, one.profile] += 1
        may = {card.node for some in groups.values() for card in some}
        for card in cooling:
            for profile in self._profiles:
                self._later[card.node, profile] += _most(search.group(card), profile)
            if card.node not in may:
                self._cooling[card.node] = card.queues

    def recuts(self, budget: int, least: float = -inf, cut: Collection[str] = ()) -> Iterator[Recut]:
        """The re-cuts for pods of at least this priority, the first pod first. `cut`: nodes that were cut in this look."""
        search, nodes = self._search, dict[str, list[tuple[Group, CardSupply]]]()
        self._ways.clear()  # others were cut since
        for group, cards in self._groups.items() if search.pods else ():
            for card in cards:
                if card.node not in cut:
                    nodes.setdefault(card.node, []).append((group, card))
        room = {
            (node, profile): sum(_most(group, profile) for group, _ in cards) + self._idle[node, profile]
            for node, cards in nodes.items()
            for profile in self._profiles
        }
        # pods that are alike get the same answer, with the weight for which it was found: what is not worth it for one may be so for a weightier one
        refused: dict[tuple[object, ...], tuple[Why, float]] = {}
        left, search.pods = search.pods, []
        for want, weight in left:
            alike = want.profile, want.queue, want.number, search.is_new(want)
            why, refused_weight = refused.get(alike, (Why.NOT_WORTH_IT, 0.0))
            if want.priority >= least and why is Why.NOT_WORTH_IT and weight > refused_weight:
                found = self._best(want, weight, nodes, room, budget)
                if not isinstance(found, Why):
                    budget -= len(found)
                    yield from self._cut(want, weight, found)
                    self._ways.clear()  # what is left is worth more now
                    for group, card in nodes.pop(found[0].card.node):
                        self._groups[group].remove(card)
                    continue
                refused[alike] = found, weight
            search.pods.append((want, weight))
            search.no_node[want] = refused.get(alike, (Why.NO_NODE, 0.0))[0]

    def _best(
        self,
        want: Want,
        weight: float,
        nodes: Mapping[str, Sequence[tuple[Group, CardSupply]]],
        room: Mapping[tuple[str, MigProfile], int],
        budget: int,
    ) -> list[_Choice] | Why:
        """The cards of the node that loses least; or why there is none."""
        whys = {Why.COOL_DOWN} if self._cools(want) else set[Why]()
        best, least, compared = list[_Choice](), inf, 0
        for node, cards in nodes.items():
            if want.queue != ANYWHERE and want.queue not in cards[0][0].queues:
                continue
            has = room[node, want.profile]
            if has < want.number:
                if has + self._later[node, want.profile] >= want.number:
                    whys.add(Why.COOL_DOWN)
                continue
            needed = want.number - self._idle[node, want.profile]
            if needed <= 0:
                continue  # the pod waits for something else there
            compared += 1
            found = self._on_node(cards, want, needed)
            if isinstance(found, Why):
                whys.add(found)
            elif len(found) > budget:
                whys.add(Why.BUDGET)
            elif (cost := sum(one.cost for one in found)) < least:
                best, least = found, cost
            if compared == _MOST_NODES:
                break
        if best and least >= URGENT * weight * LONGEST * want.number:
            return Why.NOT_WORTH_IT
        return best or next((one for one in REASONS if one in whys), Why.NO_NODE)

    def _cools(self, want: Want) -> bool:
        """Whether a node could have room for a pod once its cards have cooled down, and none of them may be cut before."""
        return any(
            (idle := self._idle[node, want.profile]) < want.number <= idle + self._later[node, want.profile]
            for node, queues in self._cooling.items()
            if want.queue == ANYWHERE or want.queue in queues
        )

    def _on_node(
        self, cards: Sequence[tuple[Group, CardSupply]], want: Want, needed: int
    ) -> list[_Choice] | Why:
        """The cards to cut on one node; which limit forbids it, where one does."""
        chosen, rest, why = list[_Choice](), [*cards], Why.NO_NODE
        while needed > 0:
            before = [(one.group, one.option) for one in chosen]
            some = list[tuple[int, float, int, _Choice]]()
            for number, (group, card) in enumerate(rest):
                for option, reached, cost in self._options(group, want, needed):
                    if limit := self._search.forbidden(group, option, before):
                        why = Why(limit)
                        continue
                    brings = min(option.change[want.profile], needed)
                    some.append((-brings, cost, number, _Choice(group, card, option, reached, cost)))
                    break
            if not some:
                return why
            _, _, number, choice = min(some, key=lambda one: one[:3])
            del rest[number]
            chosen.append(choice)
            needed -= choice.option.change[want.profile]
        return chosen

    def _options(
        self, group: Group, want: Want, needed: int
    ) -> Sequence[tuple[Option, Mapping[MigProfile, int], float]]:
        """The ways to cut such a card that bring what the pod wants: those that bring most of it first, then the cheapest."""
        is_new = self._search.is_new(want)
        key = group, want.profile, needed, is_new
        found = self._ways.get(key)
        if found is None:
            found = [
                (option, *self._search.cost(group, option, {want.profile: min(more, needed)}, are_new=is_new))
                for option in group.options
                if (more := option.change.get(want.profile, 0)) > 0
            ]
            found.sort(key=lambda one: (-min(one[0].change[want.profile], needed), one[2]))
            self._ways[key] = found
        return found

    def _cut(self, want: Want, weight: float, chosen: Iterable[_Choice]) -> Iterator[Recut]:
        left = want.number
        idle = self._idle[next(iter(chosen)).card.node, want.profile]
        for one in chosen:
            serves = min(left, one.option.change[want.profile] + idle)  # with what is idle on the node
            left, idle = left - serves, 0
            gain = URGENT * weight * LONGEST * serves
            yield self._search.recut(
                one.card, one.option, {want.profile: serves}, one.reached, gain, one.cost, want.number
            )


def _most(group: Group, profile: MigProfile) -> int:
    """How many devices more a re-cut of such a card brings at most."""
    return max((option.change.get(profile, 0) for option in group.options), default=0)
