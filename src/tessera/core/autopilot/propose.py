"""Which idle slices to cut anew for what waits.

The oldest want of the highest priority comes first. Of the cards that could take it, the one is cut that loses the least of what is idle;
what else fits on it stays as it was.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from tessera.core.autopilot.values import (
    CardSupply,
    Kind,
    Limits,
    Past,
    ProfileDemand,
    Proposal,
    Recut,
    Refusal,
    Want,
    Why,
)
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Wish, place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way
from tessera.core.planning.kinds import ANYWHERE

_HOUR = 3600.0


def propose(
    wants: Sequence[Want], cards: Sequence[CardSupply], past: Past, limits: Limits, now: float
) -> Proposal:
    """The re-cuts that are worth it now."""
    kept = max(_HOUR, limits.cool_down)
    past = replace(past, at=now, cuts=tuple(one for one in past.cuts if now - one.at < kept))
    budget = limits.recuts_per_hour - sum(now - one.at < _HOUR for one in past.cuts)
    cooling = {(one.node, one.number) for one in past.cuts if now - one.at < limits.cool_down}
    there = Counter(one.profile for card in cards for one in card.layout.instances)
    whole = sum(not card.layout.mig_enabled for card in cards)
    recuts: list[Recut] = []
    refused: Counter[tuple[MigProfile, Why]] = Counter()
    left = list(cards)
    for want in sorted(wants, key=lambda one: (-one.priority, one.since)):
        for _ in range(want.number):
            found = None
            if len(recuts) >= budget:
                refused[want.profile, Why.BUDGET] += 1
                continue
            for card in left:
                if card.fixed or (card.node, card.number) in cooling:
                    continue
                if not card.layout.mig_enabled and whole <= limits.keep_whole:
                    continue
                if want.queue not in card.queues and want.queue != ANYWHERE:
                    continue
                after = _room(card, want.profile)
                if after is None or not _within(there, card.layout, after, limits):
                    continue
                lost = sum(one.size for one in {*card.layout.instances} - {*after.instances})
                if found is None or lost < found[0]:
                    found = lost, card, after
            if found is None:
                refused[want.profile, Why.NO_ROOM] += 1
                continue
            _, card, after = found
            left.remove(card)
            takes = Counter(one.profile for one in {*card.layout.instances} - {*after.instances})
            there.update(after.counts)
            there.subtract(card.layout.counts)
            whole -= not card.layout.mig_enabled
            reason = f"makes room for 1 {want.profile}"
            recuts.append(
                Recut(
                    card.node,
                    card.number,
                    card.layout,
                    after,
                    {want.profile: 1},
                    dict(takes),
                    1.0,
                    float(found[0]),
                    reason,
                )
            )
    refusals = tuple(
        Refusal(profile, number, why, _REASONS[why]) for (profile, why), number in refused.items()
    )
    return Proposal(tuple(recuts), refusals, past, _demand(wants, cards))


_REASONS = {
    Why.NO_ROOM: "no card has room for it, even with all that is idle taken away",
    Why.BUDGET: "the budget of re-cuts an hour is spent",
}


def _room(card: CardSupply, profile: MigProfile) -> CardLayout | None:
    """The card with one more device of the profile, and as many idle ones as fit beside it."""
    product = card.layout.product
    if card.way is Way.MIG_MANAGER and card.held:
        return None
    idle = [one for one in card.layout.instances if one not in card.held]
    for count in range(len(idle), -1, -1):
        for stay in sorted(combinations(idle, count), key=lambda some: -sum(one.size for one in some)):
            wishes = [Wish(one.profile, one.position, one.size) for one in (*card.held, *stay)]
            instances = place(product, [*wishes, Wish(profile)])
            if instances is not None:
                return CardLayout(product, mig_enabled=True, instances=instances)
    return None


def _within(there: Mapping[MigProfile, int], before: CardLayout, after: CardLayout, limits: Limits) -> bool:
    old, new = before.counts, after.counts
    for profile in {*old, *new}:
        change = new.get(profile, 0) - old.get(profile, 0)
        number = there[profile] + change
        if change < 0 and number < limits.minimum.get(profile, 0):
            return False
        if change > 0 and number > limits.maximum.get(profile, number):
            return False
    return True


def _demand(wants: Sequence[Want], cards: Sequence[CardSupply]) -> dict[MigProfile, ProfileDemand]:
    counts = {kind: Counter[MigProfile]() for kind in Kind}
    for want in wants:
        counts[want.kind][want.profile] += want.number
    held: Counter[MigProfile] = Counter()
    every: Counter[MigProfile] = Counter()
    for card in cards:
        held.update(one.profile for one in card.held)
        every.update(one.profile for one in card.layout.instances)
    return {
        profile: ProfileDemand(
            counts[Kind.WAITING][profile],
            counts[Kind.FELL_BACK][profile],
            counts[Kind.REJECTED][profile],
            held[profile],
            every[profile] - held[profile],
        )
        for profile in sorted({*every, *(want.profile for want in wants)})
    }
