"""Which idle slices to re-cut for what waits.

A re-cut is worth what it serves less what it takes. What it serves: a pod that waits would else wait until a device of its size comes free, the longer
the fewer there are. What it takes: room that other pods are expected to need, by what demand has been (`forecast`). The best re-cut
comes first, then the best of what is left, until nothing is worth it or the budget is spent (`search`). Pods that want several devices of one node
go before others of their priority (`together`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tessera.core.autopilot.groups import CardsToCut
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
    cuts = tuple(Cut(min(cut.at, now), cut.node, cut.number) for cut in past.cuts if now - cut.at < kept)
    search = Search(wants, cards, past, limits, now, used)
    demand = {
        profile: replace(now_wanted, forecast=search.levels[str(profile)][0])
        for profile, now_wanted in search.demand.items()
    }
    past = Past(now, search.levels, cuts)
    budget = limits.recuts_per_hour - sum(now - cut.at < _HOUR for cut in cuts)
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
