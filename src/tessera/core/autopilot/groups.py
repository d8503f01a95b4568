"""Cards that are alike: cut alike, with the same devices held; and how such a card could be cut beside what is held on it.

What is within reach depends on the geometry alone. What is worked out about such cards is kept from one look to the next."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final

from tessera.core.autopilot.values import CardSupply
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, Pattern, Wish, maximal_patterns, place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way, profile_counts
from tessera.core.text import counts_in_words

Held = tuple[Instance, ...]
Profiles = tuple[MigProfile, ...]
Counts = tuple[tuple[MigProfile, int], ...]  # the smallest profile first


@dataclass(frozen=True, slots=True, eq=False)
class DeviceChange:
    """How many devices more, or fewer, there are of each profile. Equal changes are one object, compared by identity."""

    counts: Mapping[MigProfile, int]  # no zeros
    brings: Counts  # the part above zero


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One way to cut a card."""

    after: CardLayout
    change: DeviceChange
    idle: tuple[int, ...]  # the memory slices of what nobody holds then, the largest first


@lru_cache(maxsize=1 << 14)
def device_change(counts: Counts) -> DeviceChange:
    """The one object for this change."""
    return DeviceChange(dict(counts), tuple((profile, more) for profile, more in counts if more > 0))


NO_CHANGE: Final = device_change(())


@lru_cache(maxsize=1 << 10)
def profiles_of(product: Product, profiles: Profiles) -> Profiles:
    """Those that a card of this product can be cut into."""
    return tuple(one for one in profiles if product.shape(one) is not None)


@lru_cache(maxsize=1 << 14)
def options(before: CardLayout, held: Held, profiles: Profiles) -> tuple[Option, ...]:
    """All ways to cut a card so that nothing more fits; what is held stays, and so do idle devices wherever that is possible."""
    product, had, kept = before.product, before.counts, Counter(one.profile for one in held)
    idle = [one for one in before.instances if one not in held]
    ways = []
    for pattern in maximal_patterns(product, held, profiles, _most(product, profiles)):
        then = Counter(dict(zip(profiles, pattern, strict=True))) + kept
        differences = {profile: then[profile] - had.get(profile, 0) for profile in sorted({*then, *had})}
        change = device_change(tuple((profile, more) for profile, more in differences.items() if more))
        if change.brings:
            new = [
                Wish(profile) for profile, count in zip(profiles, pattern, strict=True) for _ in range(count)
            ]
            after = CardLayout.cut(product, [*_fixed(held), *new], idle)
            ways.append(Option(after, change, idle_sizes(after, held)))
    return tuple(ways)


@lru_cache(maxsize=1 << 16)
def reach(product: Product, held: Held, profiles: Profiles) -> tuple[int, ...]:
    """How many devices of each profile fit beside what is held, of each alone."""
    return tuple([_fitting(product, held, one) for one in profiles])


@lru_cache(maxsize=1 << 16)
def reach_then(
    after: CardLayout, held: Held, served: tuple[tuple[MigProfile, int], ...], profiles: Profiles
) -> tuple[int, ...]:
    """The same when pods have taken these of the card's devices: each the one that leaves most within reach, as the device plugin prefers."""
    for profile, count in served:
        for _ in range(count):
            free = [one for one in after.instances if one.profile == profile and one not in held]
            held = max(
                (by_position((*held, one)) for one in free),
                key=lambda some: sum(reach(after.product, some, profiles)),
            )
    return reach(after.product, held, profiles)


def idle_sizes(layout: CardLayout, held: Held) -> tuple[int, ...]:
    """The memory slices of a card's idle devices, the largest first."""
    return tuple(sorted((one.size for one in layout.instances if one not in held), reverse=True))


def by_position(some: Iterable[Instance]) -> Held:
    return tuple(sorted(some, key=lambda one: one.position))


def _fitting(product: Product, held: Held, profile: MigProfile) -> int:
    (most,) = _most(product, (profile,))
    for count in range(most, 0, -1):
        if place(product, [*_fixed(held), *[Wish(profile)] * count]) is not None:
            return count
    return 0


def _most(product: Product, profiles: Profiles) -> Pattern:
    return tuple(shape.most if (shape := product.shape(one)) else 0 for one in profiles)


def _fixed(held: Held) -> list[Wish]:
    return [Wish(one.profile, one.position, one.size) for one in held]


def explain_option(
    option: Option,
    serves: Mapping[MigProfile, int],
    takes: Mapping[MigProfile, int],
    gain: float,
    cost: float,
) -> str:
    """Say why a card is cut so."""
    brings = dict(option.change.brings)
    if not serves:
        went = counts_in_words(profile_counts(takes).items())
        room = counts_in_words(profile_counts(brings).items())
        return f"keeps room for {room}, which pods have waited for" + (f"; idle {went} go" if went else "")
    reason = f"makes room for {counts_in_words(profile_counts(serves).items())}"
    if takes:
        reason += f"; idle {counts_in_words(profile_counts(takes).items())} go"
    return f"{reason} (worth {gain:.2f}, costs {cost:.2f})"


@dataclass(frozen=True, slots=True, eq=False)
class CardState:
    """How a card is cut, what of it is held, and what it could become. Equal states are one object, compared by identity."""

    layout: CardLayout
    held: Held
    way: Way
    profiles: Profiles  # that its product has
    options: tuple[Option, ...]
    within: Mapping[MigProfile, int]  # devices more that such a card could have, of each profile alone
    larger: tuple[
        Option, ...
    ]  # with larger idle places than it has now, and no fewer slices; the largest first
    most: Mapping[MigProfile, int] = field(init=False)  # devices more that a re-cut brings at most
    _options: dict[frozenset[MigProfile], tuple[Option, ...]] = field(default_factory=dict)
    _reached: dict[tuple[Option, Counts], DeviceChange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        changes = [option.change.counts for option in self.options]
        profiles = {profile for change in changes for profile in change}
        most = {profile: max(change.get(profile, 0) for change in changes) for profile in profiles}
        object.__setattr__(self, "most", most)

    def options_for(self, profiles: frozenset[MigProfile]) -> tuple[Option, ...]:
        """Those that bring a device of any of these profiles."""
        if profiles not in self._options:
            self._options[profiles] = tuple(
                option
                for option in self.options
                if any(profile in profiles for profile, _ in option.change.brings)
            )
        return self._options[profiles]

    def reached(self, option: Option, served: Counts) -> DeviceChange:
        """How many devices more, or fewer, are within reach once the card is cut so and these pods hold their devices.

        A device that a pod gets counts as within reach.
        """
        key = option, served
        reached = self._reached.get(key)
        if reached is None:
            if self.way is Way.MIG_MANAGER:
                then = option.after.counts
            else:
                left = reach_then(option.after, self.held, served, self.profiles)
                new = dict(served)
                then = {
                    profile: more + new.get(profile, 0)
                    for profile, more in zip(self.profiles, left, strict=True)
                }
            differences = [(profile, then.get(profile, 0) - now) for profile, now in self.within.items()]
            reached = device_change(tuple((profile, more) for profile, more in differences if more))
            self._reached[key] = reached
        return reached


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Cards in one state on nodes that serve the same queues. There is one object for each group of a look."""

    state: CardState
    queues: frozenset[int]


class CardsToCut:
    """The cards that may be cut now. A card's number is its place among them."""

    def __init__(self, cards: Iterable[tuple[Group, CardSupply]]) -> None:
        self.by_group: dict[Group, dict[int, CardSupply]] = {}
        for number, (group, card) in enumerate(cards):
            self.by_group.setdefault(group, {})[number] = card
        self.by_node: dict[str, list[tuple[Group, int]]] = {}  # as it was at first, group by group
        for group, numbered in self.by_group.items():
            for number, card in numbered.items():
                self.by_node.setdefault(card.node, []).append((group, number))

    def take_node(self, node: str) -> None:
        """All cards of this node are taken."""
        for group, number in self.by_node[node]:
            self.by_group[group].pop(number, None)


class CordonedFirst:
    """Takes cards one by one; those of nodes that are cordoned for an earlier one come first."""

    def __init__(self, cards: CardsToCut) -> None:
        self._cards = cards
        self._nodes: set[str] = set()
        self._beside: dict[Group, list[int]] = {}  # heaps: the cards of these nodes

    def take(self, group: Group) -> CardSupply:
        """A card of this group."""
        numbered, beside = self._cards.by_group[group], self._beside.get(group, [])
        while beside and beside[0] not in numbered:
            heappop(beside)
        card = numbered.pop(beside[0] if beside else next(iter(numbered)))
        if card.node not in self._nodes:
            self._nodes.add(card.node)
            for other, number in self._cards.by_node[card.node]:
                heappush(self._beside.setdefault(other, []), number)
        return card


class Groups:
    """The groups of some cards, and how many devices these have."""

    def __init__(self, cards: Sequence[CardSupply]) -> None:
        self.there = Counter[MigProfile]()  # devices
        self.held = Counter[MigProfile]()  # of these
        self.whole = 0  # cards that are not cut
        self._alike: dict[object, tuple[CardSupply, int]] = {}
        for card in cards:
            key = _identity(card)
            _, number = self._alike.get(key, (card, 0))
            self._alike[key] = card, number + 1
        for card, number in self._alike.values():
            self.whole += number * (not card.layout.mig_enabled)
            for instance in card.layout.instances:
                self.there[instance.profile] += number
            for instance in card.held:
                self.held[instance.profile] += number
        self._groups: dict[object, Group] = {}
        self.most = Counter[MigProfile]()  # devices more that a re-cut of one card brings at most

    def within(self, profiles: Profiles) -> Counter[MigProfile]:
        """How many devices of each profile there could be, of each alone, beside what is held."""
        within = Counter(self.held)
        groups: dict[tuple[CardState, frozenset[int]], Group] = {}
        for key, (card, number) in self._alike.items():
            state = _state(
                card.layout, by_position(card.held), card.way, profiles_of(card.layout.product, profiles)
            )
            self._groups[key] = groups.setdefault((state, card.queues), Group(state, card.queues))
            for profile, more in state.most.items():
                self.most[profile] = max(self.most[profile], more)
            for profile, more in state.within.items():
                within[profile] += more * number
        return within

    def group_of(self, card: CardSupply) -> Group:
        """The cards that are like this one."""
        return self._groups[_identity(card)]


def _identity(card: CardSupply) -> tuple[object, ...]:
    """What cards of one group have in common; by identity, which is fast: the cards are there as long as the groups."""
    return id(card.layout), id(card.held), card.way, card.queues


@lru_cache(maxsize=1 << 13)
def _state(layout: CardLayout, held: Held, way: Way, profiles: Profiles) -> CardState:
    if way is Way.MIG_MANAGER and held:  # which clears a card before it cuts it: so it cuts none of these
        idle = Counter(instance.profile for instance in layout.instances if instance not in held)
        return CardState(layout, held, way, profiles, (), idle, ())
    within = dict(zip(profiles, reach(layout.product, held, profiles), strict=True))
    ways, now = options(layout, held, profiles), idle_sizes(layout, held)
    larger = [option for option in ways if option.idle > now and sum(option.idle) >= sum(now)]
    larger.sort(key=lambda option: option.idle, reverse=True)
    return CardState(layout, held, way, profiles, ways, within, tuple(larger))
