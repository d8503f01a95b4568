"""What is to be done about templates and records, from what the cluster has. Pure; the same again gives the same."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.controller.claims.objects import BridgedPod, Claim, Template
from tessera.core.admission.alternatives import Alternatives
from tessera.core.admission.decision import recorded
from tessera.core.kubernetes.resources import short
from tessera.kube.watch.resource import Key

UNUSED_FOR: Final = (
    24 * 3600.0
)  # seconds; a Deployment that is scaled to nothing over night finds its template again


@dataclass(frozen=True, slots=True)
class Make:
    """Make a template."""

    key: Key
    alternatives: Alternatives
    pod: BridgedPod  # one that waits for it


@dataclass(frozen=True, slots=True)
class Mark:
    """Write down since when a template is unused, or that it is used again (None)."""

    template: Template
    since: float | None


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a template that was unused for a day."""

    template: Template


@dataclass(frozen=True, slots=True)
class Record:
    """Write what a pod got in place of what it asked for."""

    pod: BridgedPod
    taken: tuple[tuple[str, str], ...]  # as records have it: ("2g.20gb", "1g.10gb")
    text: str


Action = Make | Mark | Remove | Record


def plan(
    pods: Mapping[Key, BridgedPod], templates: Mapping[Key, Template], claims: Iterable[Claim], now: float
) -> list[Action]:
    """What is to be done, the most urgent first; `now` is Unix time."""
    return [*_missing(pods, templates), *_records(pods, claims), *_tidy(pods, templates, now)]


def _missing(pods: Mapping[Key, BridgedPod], templates: Mapping[Key, Template]) -> Iterator[Make]:
    """Templates that pods wait for. Those that are there are right: the API server lets nobody change them."""
    seen: set[Key] = set()
    for pod in pods.values():
        key = Key(pod.key.namespace, pod.template)
        if pod.alternatives is not None and pod.waits and key not in seen and key not in templates:
            seen.add(key)
            yield Make(key, pod.alternatives, pod)


def _records(pods: Mapping[Key, BridgedPod], claims: Iterable[Claim]) -> Iterator[Record]:
    by_uid = {pod.uid: pod for pod in pods.values()}
    for claim in claims:
        pod = by_uid.get(claim.pod_uid)
        if pod is None or pod.alternatives is None or not claim.results:
            continue
        taken = tuple(
            (short(asked), short(given))
            for asked, given in pod.alternatives.taken(claim.results)
            if asked != given
        )
        before = [f"{short(old)}->{short(new)}" for old, new in recorded(pod.record)]
        entries = [f"{old}->{new}" for old, new in taken]
        if not set(entries) <= set(before):
            yield Record(pod, taken, ",".join(dict.fromkeys([*before, *entries])))


def _tidy(
    pods: Mapping[Key, BridgedPod], templates: Mapping[Key, Template], now: float
) -> Iterator[Mark | Remove]:
    used = {Key(pod.key.namespace, pod.template) for pod in pods.values()}
    for template in templates.values():
        since = template.unused_since
        if template.key in used:
            if since is not None:
                yield Mark(template, None)
        elif since is None or since > now:  # a clock that was wrong
            yield Mark(template, now)
        elif now - since >= UNUSED_FOR:
            yield Remove(template)
