"""Why something that is wanted gets no room."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tessera.core.autopilot.groups import Group
from tessera.core.autopilot.search import Search
from tessera.core.autopilot.values import Refusal, Why
from tessera.core.mig.profile import MigProfile

REASONS: Final = {
    Why.NAMESPACE: "their namespaces want more than a quarter of all devices",
    Why.BUDGET: "the re-cuts of this hour (recutsPerHour) are used up",
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
