"""The search for re-cuts that are worth it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple

from tessera.core.autopilot.groups import (
    NO_CHANGE,
    CardState,
    CardsToCut,
    CordonedFirst,
    Counts,
    DeviceChange,
    Group,
    Groups,
    Option,
    Profiles,
    explain_option,
)
from tessera.core.autopilot.shares import Allowances
from tessera.core.autopilot.values import CardSupply, Limits, Past, Recut, Want, Why
from tessera.core.autopilot.wanted import IN_DEMAND, demand_of, lacking, profiles_in, remembered, wanted
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way

# how much a pod that waits counts beside what is expected; found by trying (benchmarks/autopilot.py)
URGENT: Final = 3.0
LONGEST: Final = 2.0  # times that a device is in use: no pod is taken to wait longer
_IDLE: Final = 0.05  # how much an idle device counts that can be cut again when it is wanted
_STAYS: Final = 3.0  # how much counts what mig-manager cuts: it stays so until all of a card is idle again
_WHOLE: Final = 0.5  # what a whole GPU that goes costs: nobody tells how many are wanted
_LAST: Final = 1.0  # what it costs if smaller pods get the last idle place of a profile that is in demand
_NEW: Final = 1800.0  # seconds: pods that have waited longer may have the last place, too


@dataclass(frozen=True, slots=True, eq=False)
class _NodeWants:
    """Which wants a node serves: all that the choice among the ways to cut its cards depends on. Equal ones are one object."""

    first: Mapping[MigProfile, tuple[int, ...]]  # places of the first wants, of `served`
    served: frozenset[MigProfile]
    useless: frozenset[MigProfile]  # pods wait for these profiles, and none of them can go to the node


class _Choice(NamedTuple):
    """A way to cut a card; of those of one card the one with the greatest value is chosen."""

    value: float
    option: Option
    serves: Mapping[MigProfile, tuple[int, ...]]  # places of wants
    reached: DeviceChange
    gain: float
    cost: float


class _Findings:
    """What was worked out about cards with the same profiles. It holds until a re-cut changes something of one of these."""

    def __init__(self, queues: frozenset[int]) -> None:
        self.queues = queues  # of all wants of these profiles
        self.queues_of: dict[Group, frozenset[int]] = {}  # those of them that the group's nodes serve
        self.forget()

    def forget(self) -> None:
        self.node_wants: dict[frozenset[int], _NodeWants] = {}  # by the queues that a node serves
        self.equal: dict[tuple[tuple[int, ...], ...], _NodeWants] = {}
        self.best: dict[tuple[CardState, _NodeWants, float], _Choice | None] = {}
        self.gains: dict[tuple[MigProfile, tuple[int, ...]], tuple[float, bool, int]] = {}
        self.lacking: dict[tuple[DeviceChange, frozenset[MigProfile], str], float] = {}
        self.last: dict[DeviceChange, list[MigProfile]] = {}  # profiles that lose their last idle place
        self.limits: dict[tuple[DeviceChange, bool], str] = {}


class Search:
    """What is wanted, what there is, and what is within reach, while cards are chosen."""

    def __init__(
        self,
        wants: Sequence[Want],
        cards: Sequence[CardSupply],
        past: Past,
        limits: Limits,
        now: float,
        used: Mapping[MigProfile, int] | None = None,
    ) -> None:
        self.limits, self._now = limits, now
        self._limited = bool(limits.minimum or limits.maximum or limits.keep_whole)
        self._groups = Groups(cards)
        self.there, self.whole = self._groups.there, self._groups.whole
        # what there is for the limits, whichever of the re-cuts are carried out: none of what they bring, or of what they take
        self._fewest, self._most = Counter(self.there), Counter(self.there)
        known = profiles_in(past.levels)
        self.demand = demand_of(wants, self.there, self._groups.held, used, known)
        self.allowances = Allowances(past.charges, limits.recuts_per_hour)
        counted = wanted(self.allowances.admit(wants), self.there.total(), now)
        self.queues, self.pods, self.beyond = dict(counted.queues), [*counted.pods], counted.beyond
        self.no_node: dict[Want, Why] = {}  # of pods that want several devices: why none is cut for them
        in_use = {str(profile): demand.in_use for profile, demand in self.demand.items()}
        waits = Counter({str(profile): queue.left for profile, queue in self.queues.items()})
        for want, _ in self.pods:
            waits[str(want.profile)] += want.number
        passed = None if past.at is None else now - past.at
        self.levels = remembered(past.levels, in_use, waits, passed)
        self.profiles: Profiles = tuple(self.demand)
        self._in_demand = {profile for profile in self.profiles if self.levels[str(profile)][0] >= IN_DEMAND}
        self._within = self._groups.within(self.profiles)
        self._lacking_with: dict[tuple[MigProfile, int, bool], float] = {}
        self._findings: dict[Profiles, _Findings] = {}  # by the profiles of a product
        self._findings_of: dict[CardState, _Findings] = {}  # the same ones

    def highest_priority(self) -> float:
        """Of the pods that want one device."""
        return max((queue.highest_priority for queue in self.queues.values()), default=-inf)

    def group_of(self, card: CardSupply) -> Group:
        """The cards that are like this one."""
        return self._groups.group_of(card)

    def recuts(self, cards: CardsToCut, budget: int, above: float = -inf) -> Iterator[Recut]:
        """The best re-cuts, one after the other; `above`: those that serve a pod of a higher priority."""
        groups = [*cards.by_group]
        best = [
            (-choice.value, number)
            for number, group in enumerate(groups)
            if cards.by_group[group] and (choice := self._best(group, above))
        ]
        heapify(best)
        taken = CordonedFirst(cards)
        while best and budget > 0:
            _, number = heappop(best)
            group = groups[number]
            choice = self._best(group, above)  # others were cut since
            if choice is None:
                continue
            if best and -choice.value > best[0][0]:
                heappush(best, (-choice.value, number))
                continue
            card = taken.take(group)
            budget -= 1
            yield self._take(card, choice)
            if cards.by_group[group] and (choice := self._best(group, above)):
                heappush(best, (-choice.value, number))

    def cost(
        self, group: Group, option: Option, served: Counts, *, are_new: bool
    ) -> tuple[DeviceChange, float]:
        """What it takes to cut such a card so for these: devices more, or fewer, within reach, and what that costs."""
        findings = self._findings_for(group.state)
        useless = self._node_wants(findings, group).useless
        return self._cost(findings, group.state, option, served, useless, are_new=are_new)

    def _cost(
        self,
        findings: _Findings,
        state: CardState,
        option: Option,
        served: Counts,
        useless: frozenset[MigProfile],
        *,
        are_new: bool,
    ) -> tuple[DeviceChange, float]:
        reached, lacking = state.reached(option, served), findings.lacking
        cost = _WHOLE if not state.layout.mig_enabled else 0.0
        stays = state.way is Way.MIG_MANAGER
        stock = lacking.get((option.change, useless, state.way))
        if stock is None:
            stock = lacking[option.change, useless, state.way] = sum(
                self._lacking(profile, self.there[profile], more, for_long=stays)
                for profile, more in option.change.counts.items()
                if profile not in useless
            )
        if stays:
            cost += _STAYS * stock
        else:
            reach = lacking.get((reached, useless, ""))
            if reach is None:
                reach = lacking[reached, useless, ""] = sum(
                    self._lacking(profile, self._within[profile], more)
                    for profile, more in reached.counts.items()
                    if profile not in useless
                )
            cost += _IDLE * stock
            cost += reach
        if are_new and self._takes_last(findings, reached, served, useless):
            cost += _LAST
        return reached, cost

    def helps(self, profile: MigProfile, group: Group) -> bool:
        """Whether devices of a profile are of use on such a card: not where pods wait for them, and none can go to its node."""
        return profile not in self._node_wants(self._findings_for(group.state), group).useless

    def wanted_on(self, group: Group) -> frozenset[MigProfile]:
        """The profiles of which devices on such a card could serve a pod."""
        return self._node_wants(self._findings_for(group.state), group).served

    def forbidden(
        self, state: CardState, option: Option, before: Collection[tuple[CardState, Option]] = ()
    ) -> str:
        """Which of the limits forbids it: `minimum`, `maximum`, `keep-whole`; empty: none. `before`: cards that are cut before it."""
        whole = self.whole - sum(not earlier.layout.mig_enabled for earlier, _ in before)
        if not state.layout.mig_enabled and whole <= self.limits.keep_whole:
            return "keep-whole"
        for profile, more in option.change.counts.items():
            limit = (self.limits.minimum if more < 0 else self.limits.maximum).get(profile)
            if limit is None:
                continue
            others = (earlier.change.counts.get(profile, 0) for _, earlier in before)
            if more < 0 and self._fewest[profile] + more + sum(min(0, change) for change in others) < limit:
                return "minimum"
            if more > 0 and self._most[profile] + more + sum(max(0, change) for change in others) > limit:
                return "maximum"
        return ""

    def limit_against(self, state: CardState, option: Option) -> str:
        """The same for the next card that is cut."""
        limits, key = self._findings_for(state).limits, (option.change, state.layout.mig_enabled)
        if key not in limits:
            limits[key] = self.forbidden(state, option)
        return limits[key]

    def _findings_for(self, state: CardState) -> _Findings:
        findings = self._findings_of.get(state)
        if findings is None:
            if state.profiles not in self._findings:
                queues = [self.queues[profile].kinds for profile in state.profiles if profile in self.queues]
                self._findings[state.profiles] = _Findings(frozenset[int]().union(*queues))
            findings = self._findings_of[state] = self._findings[state.profiles]
        return findings

    def _node_wants(self, findings: _Findings, group: Group) -> _NodeWants:
        queues = findings.queues_of.get(group)
        if queues is None:
            queues = findings.queues_of[group] = group.queues & findings.queues
        node_wants = findings.node_wants.get(queues)
        if node_wants is None:
            first = {
                profile: queue.first(queues, max(1, self._groups.most[profile]))
                for profile in group.state.profiles
                if (queue := self.queues.get(profile)) is not None
            }
            node_wants = _NodeWants(
                first,
                frozenset(profile for profile, places in first.items() if places),
                frozenset(profile for profile, places in first.items() if not places),
            )
            node_wants = findings.equal.setdefault((*first.values(),), node_wants)
            findings.node_wants[queues] = node_wants
        return node_wants

    def _best(self, group: Group, above: float) -> _Choice | None:
        """The re-cut of such a card that is worth most; None: none is worth it."""
        state = group.state
        findings = self._findings_for(state)
        node_wants = self._node_wants(findings, group)
        key = state, node_wants, above
        if key not in findings.best:
            options = state.options_for(node_wants.served)
            choices = [self._judge(findings, state, option, node_wants, above) for option in options]
            worth_it = [choice for choice in choices if choice is not None]
            findings.best[key] = max(worth_it, key=itemgetter(0), default=None)
        return findings.best[key]

    def _judge(
        self, findings: _Findings, state: CardState, option: Option, node_wants: _NodeWants, above: float
    ) -> _Choice | None:
        """What a way to cut such a card is worth; None: nothing, it is forbidden, or it serves nobody above a priority."""
        if self._limited and self.limit_against(state, option):
            return None
        gain, are_new, highest = 0.0, True, -inf
        serves, served = dict[MigProfile, tuple[int, ...]](), list[tuple[MigProfile, int]]()
        for profile, more in option.change.brings:
            if profile in node_wants.served:
                places = serves[profile] = node_wants.first[profile][:more]
                served.append((profile, len(places)))
                its_gain, its_new, priority = self._gain(findings, profile, places)
                gain += its_gain
                are_new = are_new and its_new
                highest = max(highest, priority)
        if highest <= above:
            return None
        gain *= URGENT
        useless = node_wants.useless
        reached, cost = self._cost(findings, state, option, tuple(served), useless, are_new=are_new)
        value = gain - cost
        return _Choice(value, option, serves, reached, gain, cost) if value > 0 else None

    def keep_whole(self, card: CardSupply, option: Option) -> Recut:
        """Re-cut a card for nobody yet: its idle places become larger."""
        return self.recut(card, option, {}, NO_CHANGE, 0.0, 0.0)

    def _take(self, card: CardSupply, choice: _Choice) -> Recut:
        pods = list[Want]()
        for profile, places in choice.serves.items():
            queue = self.queues[profile]
            pods += [queue.wants[place] for place in places]
            queue.serve(places)
            if not queue.left:
                del self.queues[profile]
        serves = {profile: len(places) for profile, places in choice.serves.items()}
        namespace = min(pods, key=lambda want: (-want.priority, want.since)).namespace
        worth = choice.gain, choice.cost
        return self.recut(card, choice.option, serves, choice.reached, *worth, namespace=namespace)

    def recut(
        self,
        card: CardSupply,
        option: Option,
        serves: Mapping[MigProfile, int],
        reached: DeviceChange,
        gain: float,
        cost: float,
        together: int = 1,
        namespace: str = "",
    ) -> Recut:
        """Cut a card so: what is there, and within reach, changes with it."""
        change = option.change.counts
        self.there.update(change)
        for profile, more in change.items():
            (self._most if more > 0 else self._fewest)[profile] += more
        self._within.update(reached.counts)
        self.whole -= not card.layout.mig_enabled
        self._forget(card, {*change, *serves, *reached.counts})
        takes = {profile: -more for profile, more in change.items() if more < 0}
        cost = max(0.0, cost)
        reason = explain_option(option, serves, takes, gain, cost)
        self._charge(namespace)
        layouts = card.layout, option.after
        return Recut(card.node, card.number, *layouts, serves, takes, gain, cost, reason, together, namespace)

    def _charge(self, namespace: str) -> None:
        """A re-cut begins for this namespace: once its share is spent, its other wants do not count."""
        if not namespace or self.allowances.spend(namespace, self._now) > 0:
            return
        for profile, queue in [*self.queues.items()]:
            self.allowances.refuse(namespace, profile, queue.withdraw(namespace))
            if not queue.left:
                del self.queues[profile]
        for findings in self._findings.values():
            findings.forget()

    def _forget(self, card: CardSupply, changed: AbstractSet[MigProfile]) -> None:
        """Forget what was worked out from these profiles; a whole GPU that goes concerns every product."""
        for profiles, findings in self._findings.items():
            if not card.layout.mig_enabled or not changed.isdisjoint(profiles):
                findings.forget()

    def is_new(self, want: Want) -> bool:
        """Whether a pod has not waited for long."""
        return self._now - want.since < _NEW

    def _takes_last(
        self, findings: _Findings, reached: DeviceChange, served: Counts, useless: frozenset[MigProfile]
    ) -> bool:
        """Whether smaller pods get the last idle place of a profile. A burst of its pods would wait until a small one ends."""
        if reached not in findings.last:
            findings.last[reached] = [
                profile
                for profile, more in reached.counts.items()
                if profile in self._in_demand
                and (idle := self._within[profile] - self._groups.held[profile]) > 0 >= idle + more
            ]
        return any(
            profile not in useless and all(other < profile for other, _ in served)
            for profile in findings.last[reached]
        )

    def _gain(
        self, findings: _Findings, profile: MigProfile, places: tuple[int, ...]
    ) -> tuple[float, bool, int]:
        """What wants that are served would else wait, in the time that a device is in use.

        The last of so many waits for as many devices to come free. Also whether all of them are new, and the highest priority.
        """
        gains, key = findings.gains, (profile, places)
        known = gains.get(key)
        if known is None:
            queue, there = self.queues[profile], self.there[profile]
            gain = sum(
                queue.weights[place] * (min(LONGEST, (queue.left - number) / there) if there else LONGEST)
                for number, place in enumerate(places)
            )
            are_new = all(self.is_new(queue.wants[place]) for place in places)
            known = gains[key] = gain, are_new, queue.wants[places[0]].priority  # the first has the highest
        return known

    def _lacking(self, profile: MigProfile, count: int, more: int, *, for_long: bool = False) -> float:
        """How many devices more are expected to be lacking at a time, with so many more than now."""
        return self._lacking_at(profile, count + more, for_long) - self._lacking_at(profile, count, for_long)

    def _lacking_at(self, profile: MigProfile, count: int, for_long: bool) -> float:
        key = profile, count, for_long
        if key not in self._lacking_with:
            level = self.levels[str(profile)]
            self._lacking_with[key] = lacking(level, count, for_long=for_long)
        return self._lacking_with[key]
