"""Cards that are alike: cut alike, with the same devices held. What is worked out about such cards is kept from one look to the next."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tessera.core.autopilot.options import (
    Held,
    Option,
    Profiles,
    by_position,
    idle_sizes,
    options,
    profiles_of,
    reach,
    reach_then,
)
from tessera.core.autopilot.values import CardSupply
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Cards that are alike. There is one object for each kind, so they are compared by identity."""

    layout: CardLayout
    held: Held
    way: Way
    queues: frozenset[int]
    profiles: Profiles  # that its product has
    options: tuple[Option, ...]
    within: Mapping[MigProfile, int]  # devices more that such a card could have, of each profile alone
    larger: tuple[
        Option, ...
    ] = ()  # options with larger idle places than it has now, and no fewer slices; the largest first
    _then: dict[object, Mapping[MigProfile, int]] = field(default_factory=dict)

    def within_then(self, option: Option, serves: Mapping[MigProfile, int]) -> Mapping[MigProfile, int]:
        """How many devices of each profile such a card has for these pods or could have, once it is cut so, and they hold theirs."""
        served = tuple(serves.items())
        key = id(option), served
        found = self._then.get(key)
        if found is None:
            if self.way is Way.MIG_MANAGER:
                had = option.after.counts
                found = {one: had.get(one, 0) for one in self.profiles}
            else:
                left = reach_then(option.after, self.held, served, self.profiles)
                new = dict(served)
                found = {one: more + new.get(one, 0) for one, more in zip(self.profiles, left, strict=True)}
            self._then[key] = found
        return found


class Groups:
    """The groups of some cards, and how many devices these have."""

    def __init__(self, cards: Sequence[CardSupply]) -> None:
        self.there = Counter[MigProfile]()  # devices
        self.held = Counter[MigProfile]()  # of these
        self.whole = 0  # cards that are not cut
        self._alike: dict[object, tuple[CardSupply, int]] = {}
        for card in cards:
            # by identity, which is fast: cards are there as long as this is
            same = id(card.layout), id(card.held), card.way, card.queues
            _, number = self._alike.get(same, (card, 0))
            self._alike[same] = card, number + 1
        for card, number in self._alike.values():
            self.whole += number * (not card.layout.mig_enabled)
            for one in card.layout.instances:
                self.there[one.profile] += number
            for one in card.held:
                self.held[one.profile] += number
        self._found: dict[object, Group] = {}

    def within(self, profiles: Profiles) -> Counter[MigProfile]:
        """How many devices of each profile there could be, of each alone, beside what is held."""
        within = Counter(self.held)
        for same, (card, number) in self._alike.items():
            mine = profiles_of(card.layout.product, profiles)
            group = _group(card.layout, by_position(card.held), card.way, card.queues, mine)
            self._found[same] = group
            for profile, more in group.within.items():
                within[profile] += more * number
        return within

    def of(self, card: CardSupply) -> Group:
        """The cards that are like this one."""
        return self._found[id(card.layout), id(card.held), card.way, card.queues]


@lru_cache(maxsize=1 << 15)
def _group(layout: CardLayout, held: Held, way: Way, queues: frozenset[int], profiles: Profiles) -> Group:
    """Whom cards serve changes with what waits; what is worked out about them does not depend on it, and is shared."""
    return replace(_kind(layout, held, way, profiles), queues=queues)


@lru_cache(maxsize=1 << 13)
def _kind(layout: CardLayout, held: Held, way: Way, profiles: Profiles) -> Group:
    queues = frozenset[int]()
    if way is Way.MIG_MANAGER and held:  # which clears a card before it cuts it: so it cuts none of these
        idle = Counter(one.profile for one in layout.instances if one not in held)
        return Group(layout, held, way, queues, profiles, (), idle)
    within = dict(zip(profiles, reach(layout.product, held, profiles), strict=True))
    every, now = options(layout, held, profiles), idle_sizes(layout, held)
    whole = [one for one in every if one.idle > now and sum(one.idle) >= sum(now)]
    larger = sorted(whole, key=lambda one: one.idle, reverse=True)
    return Group(layout, held, way, queues, profiles, every, within, tuple(larger))
