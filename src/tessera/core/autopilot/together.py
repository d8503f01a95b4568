"""Pods that want several devices: one node gets room for all of them, or nothing is cut for such a pod.

Where a node is cut for one, its other cards are left alone in the same look: what is idle there is meant for the pod, too.

Why something that is wanted gets no room.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf
from typing import Final

from tessera.core.autopilot.groups import CardsToCut, DeviceChange, Group, Option
from tessera.core.autopilot.search import LONGEST, URGENT, Search
from tessera.core.autopilot.values import CardSupply, Recut, Refusal, Want, Why
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import ANYWHERE

REASONS: Final = {
    Why.NAMESPACE: "their namespaces want more than a quarter of all devices",
    Why.BUDGET: "the re-cuts of this hour (recutsPerHour) are used up",
    Why.SHARE: "their namespaces have too many re-cuts that none of their pods has taken (a quarter of recutsPerHour)",
    Why.NOT_WORTH_IT: "other pods are expected to need the room more, by what demand has been",
    Why.COOL_DOWN: "the cards with room were cut a short while ago (coolDown)",
    Why.MINIMUM: "idle devices that would go are kept by minimum",
    Why.MAXIMUM: "maximum allows no more of them",
    Why.KEEP_WHOLE: "the cards with room stay whole GPUs (keepWhole)",
    Why.NO_NODE: "no node has room for all devices that one pod wants of it",
    Why.NO_ROOM: "no card that may be cut has room for it, even without all that is idle there",
}
"""In the order in which they are told: the first that is true."""


def refusals(
    search: Search, groups: Iterable[Group], cooling: Collection[Group], *, spent: bool
) -> tuple[Refusal, ...]:
    """What is left of the wants, and why."""
    refused = [
        Refusal(profile, number, Why.NAMESPACE, REASONS[Why.NAMESPACE])
        for profile, number in search.beyond.items()
    ]
    refused += [
        Refusal(profile, number, Why.SHARE, REASONS[Why.SHARE], free_at)
        for profile, (number, free_at) in search.allowances.refused().items()
    ]
    if search.queues:
        whys = {profile: set[Why]() for profile in search.queues}
        for group in {*groups, *cooling}:
            _note(search, group, whys, cools=group in cooling)
        for profile, queue in search.queues.items():
            why = _first(whys[profile], spent=spent)
            refused.append(Refusal(profile, queue.left, why, REASONS[why]))
    several = Counter[tuple[MigProfile, Why]]()
    for want, _ in search.pods:
        several[want.profile, search.no_node[want]] += want.number
    refused += [Refusal(profile, number, why, REASONS[why]) for (profile, why), number in several.items()]
    return tuple(refused)


def _note(search: Search, group: Group, whys: Mapping[MigProfile, set[Why]], *, cools: bool) -> None:
    useful = search.wanted_on(group)
    for option in group.state.options_for(useful):
        for profile, _ in option.change.brings:
            if profile in useful:
                limit = search.limit_against(group.state, option)
                whys[profile].add(Why.COOL_DOWN if cools else Why(limit) if limit else Why.NOT_WORTH_IT)


def _first(whys: Collection[Why], *, spent: bool) -> Why:
    if spent and Why.NOT_WORTH_IT in whys:
        return Why.BUDGET
    return next((why for why in REASONS if why in whys), Why.NO_ROOM)


_MOST_NODES: Final = (
    64  # nodes with room that are compared for one pod: clusters have thousands that are alike
)


@dataclass(frozen=True, slots=True)
class _CardChoice:
    group: Group
    number: int  # of the card among those that may be cut
    option: Option
    reached: DeviceChange
    cost: float


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Where pods could have several devices of a profile, as long as no node of these is cut."""

    cools: bool  # a node none of whose cards may be cut yet could have room later
    nodes: Sequence[tuple[str, int]]  # and how many devices they lack; 0: they could have room later


class Together:
    """The nodes on which pods that want several devices could have them, while cards are chosen."""

    def __init__(
        self,
        search: Search,
        cards: Iterable[CardSupply],
        to_cut: CardsToCut,
        cooling: Iterable[CardSupply],
    ) -> None:
        """`cooling`: cards that may be cut later."""
        self._search, self._cards = search, to_cut
        self._profiles = {want.profile for want, _ in search.pods}
        self._idle = Counter[tuple[str, MigProfile]]()  # by node
        self._later = Counter[
            tuple[str, MigProfile]
        ]()  # by node: what its cards in their cool-down could bring
        self._cooling: dict[str, frozenset[int]] = {}  # nodes that have such cards only: whom they serve
        self._cut = set[str]()  # nodes that were cut in this look
        self._candidates: dict[tuple[MigProfile, int, int], _Candidates] = {}
        self._ways: dict[tuple[Group, MigProfile, int, bool], list[tuple[Option, DeviceChange, float]]] = {}
        if not self._profiles:
            return
        for card in cards:
            for instance in () if card.fixed else card.layout.instances:
                if instance.profile in self._profiles and instance not in card.held:
                    self._idle[card.node, instance.profile] += 1
        for card in cooling:
            brought = search.group_of(card).state.most
            for profile in self._profiles:
                self._later[card.node, profile] += brought.get(profile, 0)
            if card.node not in to_cut.by_node:
                self._cooling[card.node] = card.queues

    def recuts(
        self, budget: int, least: float = -inf, cut: AbstractSet[str] = frozenset()
    ) -> Iterator[Recut]:
        """The re-cuts for pods of at least this priority, the first pod first. `cut`: nodes that were cut in this look."""
        search = self._search
        self._cut = {*cut}
        self._ways.clear()  # others were cut since
        # pods that are alike get the same answer, with the weight for which it was given: what is not worth it for one may be so for a weightier one
        refused: dict[tuple[object, ...], tuple[Why, float]] = {}
        left, search.pods = search.pods, []
        for want, weight in left:
            allowance = search.allowances.left(want.namespace)
            if allowance <= 0:
                search.allowances.refuse(want.namespace, want.profile, want.number)
                continue
            may_cut = min(budget, allowance)
            alike = want.profile, want.queue, want.number, search.is_new(want), may_cut
            why, refused_weight = refused.get(alike, (Why.NOT_WORTH_IT, 0.0))
            if want.priority >= least and why is Why.NOT_WORTH_IT and weight > refused_weight:
                chosen = self._best(want, weight, may_cut)
                if chosen is Why.BUDGET and allowance < budget:
                    chosen = Why.SHARE
                if not isinstance(chosen, Why):
                    budget -= len(chosen)
                    node = self._card(chosen[0]).node
                    yield from self._cut_for(want, weight, chosen, node)
                    self._ways.clear()  # what is left is worth more now
                    self._cut.add(node)
                    self._cards.take_node(node)
                    continue
                refused[alike] = chosen, weight
            search.pods.append((want, weight))
            search.no_node[want] = refused.get(alike, (Why.NO_NODE, 0.0))[0]

    def _best(self, want: Want, weight: float, budget: int) -> list[_CardChoice] | Why:
        """The cards of the node that loses least; or why there is none."""
        candidates = self._candidates_for(want)
        whys = {Why.COOL_DOWN} if candidates.cools else set[Why]()
        best, least, compared = list[_CardChoice](), inf, 0
        for node, needed in candidates.nodes:
            if node in self._cut:
                continue
            if needed == 0:
                whys.add(Why.COOL_DOWN)
                continue
            compared += 1
            chosen = self._on_node(node, want, needed)
            if isinstance(chosen, Why):
                whys.add(chosen)
            elif len(chosen) > budget:
                whys.add(Why.BUDGET)
            elif (cost := sum(choice.cost for choice in chosen)) < least:
                best, least = chosen, cost
            if compared == _MOST_NODES:
                break
        if best and least >= URGENT * weight * LONGEST * want.number:
            return Why.NOT_WORTH_IT
        return best or next((why for why in REASONS if why in whys), Why.NO_NODE)

    def _candidates_for(self, want: Want) -> _Candidates:
        key = want.profile, want.queue, want.number
        if key not in self._candidates:
            self._candidates[key] = _Candidates(self._cools(want), [*self._with_room(want)])
        return self._candidates[key]

    def _with_room(self, want: Want) -> Iterator[tuple[str, int]]:
        """The nodes that have room for a pod, now or later."""
        for node, cards in self._cards.by_node.items():
            if node in self._cut or not _serves(cards[0][0].queues, want):
                continue
            idle = self._idle[node, want.profile]
            has = idle + sum(group.state.most.get(want.profile, 0) for group, _ in cards)
            if has >= want.number > idle:  # else the pod waits for something else there
                yield node, want.number - idle
            elif has < want.number <= has + self._later[node, want.profile]:
                yield node, 0

    def _cools(self, want: Want) -> bool:
        """Whether a node could have room for a pod once its cards have cooled down, and none of them may be cut before."""
        return any(
            (idle := self._idle[node, want.profile]) < want.number <= idle + self._later[node, want.profile]
            for node, queues in self._cooling.items()
            if _serves(queues, want)
        )

    def _on_node(self, node: str, want: Want, needed: int) -> list[_CardChoice] | Why:
        """The cards to cut on one node; which limit forbids it, where one does."""
        chosen, rest, why = list[_CardChoice](), [*self._cards.by_node[node]], Why.NO_NODE
        while needed > 0:
            before = [(choice.group.state, choice.option) for choice in chosen]
            choices = list[tuple[int, float, int, _CardChoice]]()
            for place, (group, number) in enumerate(rest):
                for option, reached, cost in self._options(group, want, needed):
                    if limit := self._search.forbidden(group.state, option, before):
                        why = Why(limit)
                        continue
                    brings = min(option.change.counts[want.profile], needed)
                    choices.append((-brings, cost, place, _CardChoice(group, number, option, reached, cost)))
                    break
            if not choices:
                return why
            _, _, place, choice = min(choices, key=lambda ranked: ranked[:3])
            del rest[place]
            chosen.append(choice)
            needed -= choice.option.change.counts[want.profile]
        return chosen

    def _options(self, group: Group, want: Want, needed: int) -> Sequence[tuple[Option, DeviceChange, float]]:
        """The ways to cut such a card that bring what the pod wants: those that bring most of it first, then the cheapest."""
        is_new = self._search.is_new(want)
        key = group, want.profile, needed, is_new
        ways = self._ways.get(key)
        if ways is None:
            ways = [
                (
                    option,
                    *self._search.cost(group, option, ((want.profile, min(more, needed)),), are_new=is_new),
                )
                for option in group.state.options
                if (more := option.change.counts.get(want.profile, 0)) > 0
            ]
            ways.sort(key=lambda way: (-min(way[0].change.counts[want.profile], needed), way[2]))
            self._ways[key] = ways
        return ways

    def _card(self, choice: _CardChoice) -> CardSupply:
        return self._cards.by_group[choice.group][choice.number]

    def _cut_for(
        self, want: Want, weight: float, chosen: Iterable[_CardChoice], node: str
    ) -> Iterator[Recut]:
        left = want.number
        idle = self._idle[node, want.profile]
        for choice in chosen:
            serves = min(
                left, choice.option.change.counts[want.profile] + idle
            )  # with what is idle on the node
            left, idle = left - serves, 0
            gain = URGENT * weight * LONGEST * serves
            yield self._search.recut(
                self._card(choice),
                choice.option,
                {want.profile: serves},
                choice.reached,
                gain,
                choice.cost,
                want.number,
                want.namespace,
            )


def _serves(queues: AbstractSet[int], want: Want) -> bool:
    """Whether devices of a node with these queues serve a pod."""
    return want.queue == ANYWHERE or want.queue in queues
