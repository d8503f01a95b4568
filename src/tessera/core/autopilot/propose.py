"""Which idle slices to re-cut for what waits.

A re-cut is worth what it serves less what it takes. What it serves: a pod that waits would else wait until a device of its size comes free, the longer
the fewer there are. What it takes: room that other pods are expected to need, by what demand has been (`wanted`). The best re-cut
comes first, then the best of what is left, until nothing is worth it or the budget is spent (`search`). Pods that want several devices of one node
go before others of their priority (`together`).

Idle places are kept whole: what nobody uses is cut as large as it has been wanted.

Small devices are cut in half a minute when somebody wants them. A small pod that lies in a large place keeps large ones waiting for as long as it runs,
and the scheduler puts it wherever a small device is idle. So where small devices are idle in a large place, and pods have waited for large ones, that is
cut back into a large one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Final

from tessera.core.autopilot.groups import CardsToCut, Group, Option
from tessera.core.autopilot.search import Search
from tessera.core.autopilot.shares import HOUR, count_lately
from tessera.core.autopilot.together import Together, refusals
from tessera.core.autopilot.values import CardSupply, Cut, Level, Limits, Past, Proposal, Recut, Want
from tessera.core.autopilot.wanted import IN_DEMAND
from tessera.core.mig.profile import MigProfile

_WAITED: Final = 0.05  # the same of devices that were waited for: 36 minutes in 12 hours
_SPREADS: Final = 6  # demand comes in bursts: at most its mean and so many times its spread is expected


def kept_whole(search: Search, cards: CardsToCut, budget: int) -> Iterator[Recut]:
    """The re-cuts by which idle places become larger, as many as the budget allows. Whole GPUs are left alone."""
    expected = _expected(search.levels)
    for group, numbered in cards.by_group.items():
        larger = group.state.larger if group.state.layout.mig_enabled else ()
        for card in numbered.values():
            if budget <= 0 or (option := _first(search, group, larger, expected)) is None:
                break
            budget -= 1
            yield search.keep_whole(card, option)


def _expected(levels: Mapping[str, Level]) -> dict[str, float]:
    """By the profile's name: how many devices are expected to be wanted at most."""
    found = {}
    for name, (mean, square, waited) in levels.items():
        if mean >= IN_DEMAND and waited >= _WAITED:
            found[name] = mean + _SPREADS * sqrt(max(0.0, square - mean * mean))
    return found


def _first(
    search: Search, group: Group, options: tuple[Option, ...], expected: Mapping[str, float]
) -> Option | None:
    """The first way to cut such a card that brings nothing but what is expected, takes no engines, and that the limits allow."""
    for option in options:
        may = all(
            search.there[profile] + more <= expected.get(str(profile), 0.0) and search.helps(profile, group)
            if more > 0
            else not profile.extras
            for profile, more in option.change.counts.items()
        )
        if may and not search.limit_against(group.state, option):
            return option
    return None


_PRIORITIES: Final = 8  # that are looked at one by one, the highest: each takes a walk over all cards


def propose(
    wants: Sequence[Want],
    cards: Sequence[CardSupply],
    past: Past,
    limits: Limits,
    now: float,
    used: Mapping[MigProfile, int] | None = None,
) -> Proposal:
    """The re-cuts that are worth it now. `used`: devices that pods have; None: all that is held. What may be in use stays, and is no demand."""
    kept = max(HOUR, limits.cool_down)
    cuts = tuple(Cut(min(cut.at, now), cut.node, cut.number) for cut in past.cuts if now - cut.at < kept)
    charges = count_lately(past.charges, now)
    search = Search(wants, cards, replace(past, charges=charges), limits, now, used)
    demand = {
        profile: replace(now_wanted, forecast=search.levels[str(profile)][0])
        for profile, now_wanted in search.demand.items()
    }
    past = Past(now, search.levels, cuts, charges)
    budget = limits.recuts_per_hour - sum(now - cut.at < HOUR for cut in cuts)
    cooling = {(cut.node, cut.number) for cut in cuts if now - cut.at < limits.cool_down}
    free = [card for card in cards if not card.fixed]
    cool = [card for card in free if (card.node, card.number) in cooling]
    to_cut = CardsToCut(
        (search.group_of(card), card) for card in free if (card.node, card.number) not in cooling
    )
    together = Together(search, cards, to_cut, cool)
    recuts = list[Recut]()
    for priority in sorted({want.priority for want, _ in search.pods}, reverse=True)[:_PRIORITIES]:
        if len(recuts) >= budget:
            break
        if search.highest_priority() > priority:
            recuts += search.recuts(to_cut, budget - len(recuts), above=priority)
        recuts += together.recuts(budget - len(recuts), priority, {recut.node for recut in recuts})
    recuts += search.recuts(to_cut, budget - len(recuts))
    recuts += together.recuts(budget - len(recuts), cut={recut.node for recut in recuts})
    cooled = {search.group_of(card) for card in cool}
    refused = refusals(search, to_cut.by_group, cooled, spent=len(recuts) >= budget)
    if not recuts:  # half of the budget is left for what is wanted
        recuts = [*kept_whole(search, to_cut, budget - (limits.recuts_per_hour + 1) // 2)]
    return Proposal(tuple(recuts), refused, past, demand)
