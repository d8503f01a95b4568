"""Why something that is wanted gets no room."""

from collections import Counter
from collections.abc import Collection, Iterable
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
    found = [
        Refusal(one, number, Why.NAMESPACE, REASONS[Why.NAMESPACE]) for one, number in search.beyond.items()
    ]
    if search.queues:
        seen = {one: set[Why]() for one in search.queues}
        for group in {*groups, *cooling}:
            _note(search, group, seen, cools=group in cooling)
        for profile, queue in search.queues.items():
            why = _first(seen[profile], spent=spent)
            found.append(Refusal(profile, len(queue.wants), why, REASONS[why]))
    several = Counter[tuple[MigProfile, Why]]()
    for want, _ in search.pods:
        several[want.profile, search.no_node[want]] += want.number
    found += [Refusal(one, number, why, REASONS[why]) for (one, why), number in several.items()]
    return tuple(found)


def _note(search: Search, group: Group, seen: dict[MigProfile, set[Why]], *, cools: bool) -> None:
    for option in search.choices(group):
        for profile, more in option.change.items():
            queue = search.queues.get(profile)
            if more > 0 and queue is not None and queue.on(group.queues, 1):
                limit = search.forbidden(group, option)
                seen[profile].add(Why.COOL_DOWN if cools else Why(limit) if limit else Why.NOT_WORTH_IT)


def _first(seen: Collection[Why], *, spent: bool) -> Why:
    if spent and Why.NOT_WORTH_IT in seen:
        return Why.BUDGET
    return next((one for one in REASONS if one in seen), Why.NO_ROOM)
