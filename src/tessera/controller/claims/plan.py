"""What is to be done about templates and records, from what the cluster has; and when what failed is tried again.

A plan is pure: the same state gives the same plan. Retries are of each object by itself, so that none waits for another.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from tessera.controller.claims.objects import FollowedPod, Template
from tessera.controller.claims.state import ClaimState, Record
from tessera.kube.clock import Clock
from tessera.kube.watch.resource import Key

# seconds: a Deployment that is scaled to nothing over night finds its template again
UNUSED_FOR: Final = 24 * 3600.0
# templates that no pod uses, in one namespace: a tenant who keeps changing the alternatives of its pods leaves no more behind
MOST_UNUSED: Final = 100

_FIRST_RETRY: Final = 1.0  # seconds
# seconds: thousands of pods in a namespace that is being deleted, or with a quota on templates, make some ten requests a second
_LONGEST_RETRY: Final = 300.0


@dataclass(frozen=True, slots=True)
class Make:
    """Make the template that a pod waits for."""

    key: Key
    pod: FollowedPod


@dataclass(frozen=True, slots=True)
class _OfTemplate:
    template: Template

    @property
    def key(self) -> Key:
        return self.template.key


@dataclass(frozen=True, slots=True)
class Mark(_OfTemplate):
    """Write down since when a template is unused, or that it is used again (None)."""

    since: float | None


class Remove(_OfTemplate):
    """Remove a template that is not used."""


Action = Make | Mark | Remove | Record


def plan(state: ClaimState, now: float) -> tuple[Iterator[Action], ...]:
    """What is to be done, of each kind the most urgent first; `now` is Unix time. The state must not change meanwhile."""
    return _missing(state), iter(state.records.values()), _tidy(state, now)


def _missing(state: ClaimState) -> Iterator[Make]:
    """Templates that pods wait for, of each namespace in turns: thousands in one keep no other waiting.

    Those that are there are right: the API server lets nobody change them. Nothing is made while tickets cannot be checked.
    """
    if state.keys is None:
        return
    found: list[tuple[int, Make]] = []
    turns: Counter[str] = Counter()
    for key, pods in state.waiting.items():
        if key not in state.templates:
            found.append((turns[key.namespace], Make(key, next(iter(pods.values())))))
            turns[key.namespace] += 1
    for _, make in sorted(found, key=lambda one: one[0]):
        yield make


def _tidy(state: ClaimState, now: float) -> Iterator[Mark | Remove]:
    unused: dict[str, list[tuple[float, Template]]] = {}
    for template in state.templates.values():
        since = template.unused_since
        if template.leaves:
            continue
        if template.key not in state.users:
            known = since is not None and since <= now  # else it is new here, or a clock was wrong
            unused.setdefault(template.key.namespace, []).append(
                (since if since and known else now, template)
            )
        elif since is not None:
            yield Mark(template, None)
    for some in unused.values():
        some.sort(key=lambda one: -one[0])
        for place, (since, template) in enumerate(some):
            if place >= MOST_UNUSED or now - since >= UNUSED_FOR:
                yield Remove(template)
            elif since != template.unused_since:
                yield Mark(template, since)


class Retries:
    """Waits that double from failure to failure of one thing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[Hashable, tuple[float, float]] = {}  # until when, and how long that is

    def is_due(self, what: Hashable) -> bool:
        wait = self._waits.get(what)
        return wait is None or wait[0] <= self._clock.now()

    def put_off(self, what: Hashable) -> None:
        _, before = self._waits.get(what, (0.0, _FIRST_RETRY / 2))
        seconds = min(2 * before, _LONGEST_RETRY)
        self._waits[what] = self._clock.now() + seconds, seconds

    def let_be(self, what: Hashable, seconds: float) -> None:
        """Leave it alone for so long at least; after the next failure the first wait is short again."""
        until, _ = self._waits.get(what, (0.0, 0.0))
        self._waits[what] = max(until, self._clock.now() + seconds), _FIRST_RETRY / 2

    def next(self) -> float | None:
        """Seconds until something is due; None where nothing waits. What was due long ago is forgotten: it was done, or is not needed."""
        now = self._clock.now()
        self._waits = {what: wait for what, wait in self._waits.items() if wait[0] > now - _LONGEST_RETRY}
        waiting = [until for until, _ in self._waits.values() if until > now]
        return min(waiting) - now if waiting else None
