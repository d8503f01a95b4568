"""What a pod that waits would get if it were created again now: the webhook's own decision, made with the same view."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tessera.core.admission.decision import decide
from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.outcome import Allowed, Denied
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.view import ClusterView
from tessera.core.kubernetes.pod import Pod
from tessera.core.requests.record import ASKED_ANNOTATION, RECORD_ANNOTATION, apply, as_created, asked_of
from tessera.core.resources import of_short, short

_WRITTEN = (RECORD_ANNOTATION, ASKED_ANNOTATION)  # by the webhook; its controller makes a pod without them


@dataclass(frozen=True, slots=True)
class Remade:
    """A pod as the webhook would leave it if it were created again now."""

    pod: Pod
    by_what_is_free: bool  # decided under `full`: it carries the mark


@dataclass(frozen=True, slots=True)
class Move:
    """A pod would get something else now, and it is free."""

    pod: Pod  # as its successor will be
    gpus: Mapping[str, Mapping[str, int]]  # of its containers
    words: str  # it would get 1g.10gb in place of 2g.20gb, which is free
    by_what_is_free: bool  # decided under `full`: the successor carries the mark


def move_of(pod: Pod, key: str, view: ClusterView, policy: Policy) -> Move | None:
    """What a pod that waits would get; None where that is the same, or not free, or nothing.

    The view is without its own part of the quotas (`ClusterView.without`); its own room does not count. A pod for which there is room as it is waits for something else, or is about to be
    placed: it has nothing to win.
    """
    free = view.free
    if free is None:
        return None
    with free.without_room(key):
        if free.has_room(pod):
            return None
        remade = remade_of(pod, view, policy)
        if remade is None:
            return None
        gets, has = asked_of(remade.pod), asked_of(pod)
        if gets == has or not free.has_room(remade.pod):
            return None
    words = f"{_words(gets)} in place of {_words(has)} is free for it"
    return Move(remade.pod, gets, words, remade.by_what_is_free)


def remade_of(pod: Pod, view: ClusterView, policy: Policy) -> Remade | None:
    """What the webhook would make of a pod if it were created again now; None where that is not known.

    That is so for a pod that it would reject, for one whose request would become a claim, and for one beyond
    the limits.
    """
    created = _as_created(pod)
    try:
        decision = decide(created, view, policy)
    except BeyondLimits:
        return None
    if isinstance(decision, Denied) or decision.conversion == "claim":
        return None
    if decision.momentary is not None:
        return Remade(decision.momentary.pod, by_what_is_free=True)
    if isinstance(decision, Allowed):
        return Remade(created, by_what_is_free=False)
    replaced = {of_short(old): of_short(new) for old, new in decision.replaced}
    return Remade(apply(created, replaced), by_what_is_free=False)


def _as_created(pod: Pod) -> Pod:
    created = as_created(pod)
    kept = {name: text for name, text in created.annotations.items() if name not in _WRITTEN}
    return replace(created, annotations=kept)


def _words(gpus: Mapping[str, Mapping[str, int]]) -> str:
    names = dict.fromkeys(short(resource) for some in gpus.values() for resource in some)
    return " and ".join(names)
