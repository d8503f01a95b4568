"""What is to be done about templates and records, from what the cluster has. Pure; the same again gives the same."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tessera.controller.claims.objects import BridgedPod, Claim, Template
from tessera.core.admission.alternatives import read
from tessera.core.admission.decision import record_with
from tessera.core.kubernetes.resources import short
from tessera.kube.watch.resource import Key

UNUSED_FOR: Final = (
    24 * 3600.0
)  # seconds; a Deployment that is scaled to nothing over night finds its template again


# templates that no pod uses, in one namespace: who makes and removes pods with ever other alternatives leaves no more behind
MOST_UNUSED: Final = 100


@dataclass(frozen=True, slots=True)
class Make:
    """Make the template that a pod waits for."""

    key: Key
    pod: BridgedPod


@dataclass(frozen=True, slots=True)
class Mark:
    """Write down since when a template is unused, or that it is used again (None)."""

    template: Template
    since: float | None

    @property
    def key(self) -> Key:
        """What is written."""
        return self.template.key


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a template that is not used."""

    template: Template

    @property
    def key(self) -> Key:
        """What is removed."""
        return self.template.key


@dataclass(frozen=True, slots=True)
class Record:
    """Write what a pod got in place of what it asked for."""

    pod: BridgedPod
    taken: tuple[tuple[str, str], ...]  # as records have it: ("2g.20gb", "1g.10gb")
    text: str

    @property
    def key(self) -> Key:
        """What is written."""
        return self.pod.key


Action = Make | Mark | Remove | Record


def plan(
    pods: Mapping[Key, BridgedPod], templates: Mapping[Key, Template], claims: Iterable[Claim], now: float
) -> tuple[Iterator[Action], ...]:
    """What is to be done, of each kind the most urgent first; `now` is Unix time."""
    return _missing(pods, templates), _records(pods, claims), _tidy(pods, templates, now)


def _missing(pods: Mapping[Key, BridgedPod], templates: Mapping[Key, Template]) -> Iterator[Make]:
    """Templates that pods wait for, of each namespace in turns: thousands in one keep no other waiting.

    Those that are there are right: the API server lets nobody change them.
    """
    found: dict[Key, tuple[int, Make]] = {}
    turns: Counter[str] = Counter()
    for pod in pods.values():
        if pod.text is None or not pod.waits:
            continue
        key = Key(pod.key.namespace, pod.template)
        if key not in found and key not in templates:
            found[key] = turns[key.namespace], Make(key, pod)
            turns[key.namespace] += 1
    for _, make in sorted(found.values(), key=lambda one: one[0]):
        yield make


def _records(pods: Mapping[Key, BridgedPod], claims: Iterable[Claim]) -> Iterator[Record]:
    # of the claim's own namespace: a claim can name any pod as its owner
    by_uid = {(pod.key.namespace, pod.uid): pod for pod in pods.values()}
    for claim in claims:
        pod = by_uid.get((claim.key.namespace, claim.pod_uid)) if claim.results else None
        taken = _taken(pod.text, claim.results) if pod is not None and pod.text is not None else ()
        if pod is None or not taken:
            continue
        if not {f"{asked}->{given}" for asked, given in taken} <= set(pod.record.split(",")):
            yield Record(pod, taken, record_with(pod.record, taken))


# Thousands of claims got one of a few things in place of one of a few others, and stay so.
@lru_cache(maxsize=256)
def _taken(text: str, results: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """What was asked and what was given in its place, as records have it."""
    found = read(text).taken(results)
    return tuple((short(asked), short(given)) for asked, given in found if asked != given)


def _tidy(
    pods: Mapping[Key, BridgedPod], templates: Mapping[Key, Template], now: float
) -> Iterator[Mark | Remove]:
    used = {Key(pod.key.namespace, pod.template) for pod in pods.values()}
    unused: dict[str, list[tuple[float, Template]]] = {}
    for template in templates.values():
        since = template.unused_since
        if template.leaves:
            continue
        if template.key not in used:
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
