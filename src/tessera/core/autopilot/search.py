"""The search for re-cuts that are worth it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from tessera.core.autopilot import forecast
from tessera.core.autopilot.groups import Group, Groups
from tessera.core.autopilot.options import Option, Profiles
from tessera.core.autopilot.values import CardSupply, Limits, Past, Recut, Want, Why
from tessera.core.autopilot.wanted import Queue, demand_of, wanted
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way, profile_counts
from tessera.core.text import counts_in_words

URGENT: Final = (
    3.0  # how much a pod that waits counts beside what is expected; found by trying (benchmarks/autopilot.py)
)
LONGEST: Final = 2.0  # times that a device is in use: no pod is taken to wait longer
_IDLE: Final = 0.05  # how much an idle device counts that can be cut again when it is wanted
_STAYS: Final = 3.0  # how much counts what mig-manager cuts: it stays so until all of a card is idle again
_WHOLE: Final = 0.5  # what a whole GPU that goes costs: nobody tells how many are wanted
_LAST: Final = 1.0  # what it costs if smaller pods get the last idle place of a profile that is in demand
_NEW: Final = 1800.0  # seconds: pods that have waited longer may have the last place, too


@dataclass(frozen=True, slots=True)
class _Choice:
    option: Option
    serves: Mapping[MigProfile, list[int]]  # which of the wants
    reached: Mapping[MigProfile, int]  # devices more, or fewer, within reach
    gain: float
    cost: float

    @property
    def value(self) -> float:
        return self.gain - self.cost


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
        self._groups = Groups(cards)
        self.there, self.whole = self._groups.there, self._groups.whole
        # what there is for the limits, whichever of the re-cuts are carried out: none of what they bring, or of what they take
        self._fewest, self._most = Counter(self.there), Counter(self.there)
        known = forecast.profiles_in(past.levels)
        self.demand = demand_of(wants, self.there, self._groups.held, used, known)
        found = wanted(wants, self.there.total(), now)
        self.queues, self.pods, self.beyond = dict(found.queues), [*found.pods], found.beyond
        self.no_node: dict[Want, Why] = {}  # of pods that want several devices: why none is cut for them
        in_use = {str(profile): one.in_use for profile, one in self.demand.items()}
        waits = Counter({str(profile): len(queue.wants) for profile, queue in self.queues.items()})
        for want, _ in self.pods:
            waits[str(want.profile)] += want.number
        passed = None if past.at is None else now - past.at
        self.levels = forecast.remembered(past.levels, in_use, waits, passed)
        self.profiles: Profiles = tuple(self.demand)
        self._within = self._groups.within(self.profiles)
        self._lacking_with: dict[tuple[MigProfile, int, bool], float] = {}

    def highest_priority(self) -> float:
        """Of the pods that want one device."""
        return max((one.priority for queue in self.queues.values() for one in queue.wants), default=-inf)

    def group(self, card: CardSupply) -> Group:
        """The cards that are like this one."""
        return self._groups.of(card)

    def recuts(
        self, groups: Mapping[Group, list[CardSupply]], budget: int, above: float = -inf
    ) -> Iterator[Recut]:
        """The best re-cuts, one after the other; `above`: those that serve a pod of a higher priority."""
        every, nodes = [*groups.items()], set[str]()
        best = [
            (-choice.value, number)
            for number, (group, cards) in enumerate(every)
            if cards and (choice := self._best(group, above))
        ]
        heapify(best)
        while best and budget > 0:
            _, number = heappop(best)
            group, cards = every[number]
            choice = self._best(group, above)  # others were cut since
            if choice is None:
                continue
            if best and -choice.value > best[0][0]:
                heappush(best, (-choice.value, number))
                continue
            # a node that is cordoned anyway comes first
            card = next((one for one in cards if one.node in nodes), cards[0])
            cards.remove(card)
            nodes.add(card.node)
            budget -= 1
            yield self._take(card, choice)
            if cards and (choice := self._best(group, above)):
                heappush(best, (-choice.value, number))

    def choices(self, group: Group) -> Iterator[Option]:
        """The ways to cut such a card that bring something that is wanted."""
        for option in group.options:
            if any(more > 0 and profile in self.queues for profile, more in option.change.items()):
                yield option

    def judged(self, group: Group, option: Option) -> _Choice | None:
        """What a way to cut such a card serves and takes; None: it serves nobody."""
        serves = {
            profile: found
            for profile, more in option.change.items()
            if more > 0 and (queue := self.queues.get(profile)) and (found := queue.on(group.queues, more))
        }
        if not serves:
            return None
        gain = sum(self._gain(profile, self.queues[profile], some) for profile, some in serves.items())
        numbers = {profile: len(some) for profile, some in serves.items()}
        reached, cost = self.cost(group, option, numbers, are_new=self._are_new(serves))
        return _Choice(option, serves, reached, URGENT * gain, cost)

    def cost(
        self, group: Group, option: Option, serves: Mapping[MigProfile, int], *, are_new: bool
    ) -> tuple[dict[MigProfile, int], float]:
        """What it takes to cut such a card so for these: devices more, or fewer, within reach, and what that costs."""
        then = group.within_then(option, serves)
        reached = {profile: more for profile, old in group.within.items() if (more := then[profile] - old)}
        cost = _WHOLE if not group.layout.mig_enabled else 0.0
        helps = {one: self.helps(one, group) for one in group.profiles}
        stays = group.way is Way.MIG_MANAGER
        stock = sum(
            self._lacking(one, self.there[one], more, for_long=stays)
            for one, more in option.change.items()
            if helps[one]
        )
        if stays:
            cost += _STAYS * stock
        else:
            cost += _IDLE * stock
            cost += sum(
                self._lacking(one, self._within[one], more) for one, more in reached.items() if helps[one]
            )
        if are_new and any(
            helps[one] and self._loses_last(one, more, serves) for one, more in reached.items()
        ):
            cost += _LAST
        return reached, cost

    def helps(self, profile: MigProfile, group: Group) -> bool:
        """Whether devices of a profile are of use on such a card: not where pods wait for them, and none can go to its node."""
        queue = self.queues.get(profile)
        return queue is None or queue.helped_on(group.queues)

    def forbidden(self, group: Group, option: Option, before: Collection[tuple[Group, Option]] = ()) -> str:
        """Which of the limits forbids it: `minimum`, `maximum`, `keep-whole`; empty: none. `before`: cards that are cut before it."""
        whole = self.whole - sum(not one.layout.mig_enabled for one, _ in before)
        if not group.layout.mig_enabled and whole <= self.limits.keep_whole:
            return "keep-whole"
        for profile, more in option.change.items():
            limit = (self.limits.minimum if more < 0 else self.limits.maximum).get(profile)
            if limit is None:
                continue
            others = (one.change.get(profile, 0) for _, one in before)
            if more < 0 and self._fewest[profile] + more + sum(min(0, one) for one in others) < limit:
                return "minimum"
            if more > 0 and self._most[profile] + more + sum(max(0, one) for one in others) > limit:
                return "maximum"
        return ""

    def _best(self, group: Group, above: float) -> _Choice | None:
        found = [
            choice
            for option in self.choices(group)
            if not self.forbidden(group, option)
            and (choice := self.judged(group, option)) is not None
            and choice.value > 0
            and self._highest_of(choice) > above
        ]
        return max(found, key=lambda one: one.value, default=None)

    def _highest_of(self, choice: _Choice) -> int:
        """The highest priority of the pods that a re-cut serves."""
        return max(
            self.queues[profile].wants[one].priority
            for profile, some in choice.serves.items()
            for one in some
        )

    def keep_whole(self, card: CardSupply, option: Option) -> Recut:
        """Re-cut a card for nobody yet: its idle places become larger."""
        return self.recut(card, option, {}, {}, 0.0, 0.0)

    def _take(self, card: CardSupply, choice: _Choice) -> Recut:
        serves = {profile: len(some) for profile, some in choice.serves.items()}
        for profile, some in choice.serves.items():
            left = self.queues[profile].without(some)
            self.queues[profile] = left
            if not left.wants:
                del self.queues[profile]
        return self.recut(card, choice.option, serves, choice.reached, choice.gain, choice.cost)

    def recut(
        self,
        card: CardSupply,
        option: Option,
        serves: Mapping[MigProfile, int],
        reached: Mapping[MigProfile, int],
        gain: float,
        cost: float,
        together: int = 1,
    ) -> Recut:
        """Cut a card so: what is there, and within reach, changes with it."""
        self.there.update(option.change)
        for profile, more in option.change.items():
            (self._most if more > 0 else self._fewest)[profile] += more
        self._within.update(reached)
        self.whole -= not card.layout.mig_enabled
        takes = {profile: -more for profile, more in option.change.items() if more < 0}
        cost = max(0.0, cost)
        reason = _reason(option, serves, takes, gain, cost)
        after = option.after
        return Recut(card.node, card.number, card.layout, after, serves, takes, gain, cost, reason, together)

    def is_new(self, want: Want) -> bool:
        """Whether a pod has not waited for long."""
        return self._now - want.since < _NEW

    def _are_new(self, serves: Mapping[MigProfile, Sequence[int]]) -> bool:
        """Whether none of these pods has waited for long."""
        return all(
            self.is_new(self.queues[profile].wants[index])
            for profile, some in serves.items()
            for index in some
        )

    def _loses_last(self, profile: MigProfile, more: int, serves: Collection[MigProfile]) -> bool:
        """Whether smaller pods get the last idle place of a profile. A burst of its pods would wait until a small one ends."""
        idle = self._within[profile] - self._groups.held[profile]
        in_demand = self.levels[str(profile)][0] >= forecast.IN_DEMAND
        return in_demand and idle > 0 >= idle + more and all(one < profile for one in serves)

    def _gain(self, profile: MigProfile, queue: Queue, some: Sequence[int]) -> float:
        """What wants that are served would else wait, in the time that a device is in use: the last of so many waits for as many to come free."""
        waits, there = len(queue.wants), self.there[profile]
        return sum(
            queue.weights[index] * (min(LONGEST, (waits - number) / there) if there else LONGEST)
            for number, index in enumerate(some)
        )

    def _lacking(self, profile: MigProfile, count: int, more: int, *, for_long: bool = False) -> float:
        """How many devices more are expected to be lacking at a time, with so many more than now."""
        return self._lacking_at(profile, count + more, for_long) - self._lacking_at(profile, count, for_long)

    def _lacking_at(self, profile: MigProfile, count: int, for_long: bool) -> float:
        found = self._lacking_with.get((profile, count, for_long))
        if found is None:
            found = forecast.lacking(self.levels[str(profile)], count, for_long=for_long)
            self._lacking_with[profile, count, for_long] = found
        return found


def _reason(
    option: Option,
    serves: Mapping[MigProfile, int],
    takes: Mapping[MigProfile, int],
    gain: float,
    cost: float,
) -> str:
    brings = {profile: more for profile, more in option.change.items() if more > 0}
    if not serves:
        went = counts_in_words(profile_counts(takes).items())
        room = counts_in_words(profile_counts(brings).items())
        return f"keeps room for {room}, which pods have waited for" + (f"; idle {went} go" if went else "")
    reason = f"makes room for {counts_in_words(profile_counts(serves).items())}"
    if takes:
        reason += f"; idle {counts_in_words(profile_counts(takes).items())} go"
    return f"{reason} (worth {gain:.2f}, costs {cost:.2f})"
