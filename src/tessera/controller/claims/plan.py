"""What is to be done about templates and records, from what the cluster has. Pure: the same state gives the same plan."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tessera.controller.claims.state import ClaimState, FollowedPod, Record, Template
from tessera.kube.watch.table import Key

# seconds: a Deployment that is scaled to nothing over night finds its template again
UNUSED_FOR: Final = 24 * 3600.0
# templates that no pod uses, in one namespace: a tenant who keeps changing the alternatives of its pods leaves no more behind
MOST_UNUSED: Final = 100


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
