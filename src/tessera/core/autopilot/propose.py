"""Which idle slices to re-cut for what waits.

A re-cut is worth what it serves less what it takes. What it serves: a pod that waits would else wait until a device of its size comes free, the longer
the fewer there are. What it takes: room that other pods are expected to need, by what demand has been (`forecast`). The best re-cut
comes first, then the best of what is left, until nothing is worth it or the budget is spent (`search`). Pods that want several devices of one node
go before others of their priority (`together`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tessera.core.autopilot.groups import Group
from tessera.core.autopilot.places import kept_whole
from tessera.core.autopilot.refusals import refusals
from tessera.core.autopilot.search import Search
from tessera.core.autopilot.together import Together
from tessera.core.autopilot.values import CardSupply, Cut, Limits, Past, Proposal, Recut, Want
from tessera.core.mig.profile import MigProfile

_HOUR: Final = 3600.0
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
    kept = max(_HOUR, limits.cool_down)
    cuts = tuple(Cut(min(one.at, now), one.node, one.number) for one in past.cuts if now - one.at < kept)
    search = Search(wants, cards, past, limits, now, used)
    demand = {
        profile: replace(one, forecast=search.levels[str(profile)][0])
        for profile, one in search.demand.items()
    }
    past = Past(now, search.levels, cuts)
    budget = limits.recuts_per_hour - sum(now - one.at < _HOUR for one in cuts)
    cooling = {(one.node, one.number) for one in cuts if now - one.at < limits.cool_down}
    cool = [one for one in cards if not one.fixed and (one.node, one.number) in cooling]
    cooled = {*map(search.group, cool)}
    groups = dict[Group, list[CardSupply]]()
    for card in cards:
        if not card.fixed and (card.node, card.number) not in cooling:
            groups.setdefault(search.group(card), []).append(card)
    together = Together(search, cards, groups, cool)
    recuts = list[Recut]()
    for priority in sorted({want.priority for want, _ in search.pods}, reverse=True)[:_PRIORITIES]:
        if len(recuts) >= budget:
            break
        if search.highest_priority() > priority:
            recuts += search.recuts(groups, budget - len(recuts), above=priority)
        recuts += together.recuts(budget - len(recuts), priority, {one.node for one in recuts})
    recuts += search.recuts(groups, budget - len(recuts))
    recuts += together.recuts(budget - len(recuts), cut={one.node for one in recuts})
    found = refusals(search, groups, cooled, spent=len(recuts) >= budget)
    if not recuts:  # half of the budget is left for what is wanted
        recuts = [*kept_whole(search, groups, budget - (limits.recuts_per_hour + 1) // 2)]
    return Proposal(tuple(recuts), found, past, demand)
