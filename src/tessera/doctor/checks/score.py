"""The check of how the scheduler weighs a claim's alternatives between nodes, and of pods for which that went wrong."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node, why_excluded
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.resources import short as short_name
from tessera.core.requests.asking import alternatives_of
from tessera.core.requests.record import RECORD_ANNOTATION, recorded
from tessera.core.text import first_of
from tessera.doctor.checks.webhook import release_of
from tessera.doctor.evidence import Evidence, Scheduler
from tessera.doctor.findings import Finding, not_applicable, note, short, unseen, warning
from tessera.inventory.report import state_of
from tessera.protocol import yaml

_MOST_NAMED: Final = 3
_PLUGIN: Final = "DynamicResources"
_SCORED: Final = (1, 35)  # the first release whose scheduler scores alternatives at all
_DEFAULT_WEIGHT: Final = 2  # pkg/scheduler/apis/config/v1/default_plugins.go
# The second of eight alternatives has 87.5 points of 100; how full a node is moves 200 at most (NodeResourcesFit and
# NodeResourcesBalancedAllocation, weight 1 each): from 200 / 12.5 on an alternative outweighs that.
_ENOUGH: Final = 16
_DEFAULT: Final = "default-scheduler"  # which all pods with a claim of the bridge have


def score(seen: Evidence) -> Iterator[Finding]:
    """Between nodes, the scheduler prefers the first alternative of a claim."""
    wishes = seen.dra.alternatives
    if not wishes:
        yield not_applicable("no claim and no template asks for alternatives (firstAvailable)")
        return
    if len(seen.dra.nodes) < 2:
        yield not_applicable("fewer than two nodes have devices to choose from")
        return
    if why := seen.unseen.get("schedulers"):
        yield unseen(f"could not run: schedulers: {short(why)}")
    elif not seen.dra.schedulers:
        yield unseen(
            f"the scheduler's configuration is not seen: it is no pod in kube-system; {_PLUGIN} should have weight {_ENOUGH} or "
            f"more, since {first_of(wishes, 1)} asks for alternatives"
        )
    for one in seen.dra.schedulers:
        yield from _weighed(one, seen)
    weight = _default_weight(seen)
    if weight is None or weight < _ENOUGH:  # else what is free now became so later: it would have won
        yield from _lost(seen)


def _lost(seen: Evidence) -> Iterator[Finding]:
    """Pods that were given a later alternative, while an earlier one is free on another node that they could use."""
    free: dict[str, list[Node]] = defaultdict(list)  # resource → ready nodes with some of it free
    for node in seen.nodes:
        if state_of(node) == "ready":
            for resource in seen.dra.free.get(node.name, ()):
                free[resource].append(node)
    found: dict[tuple[str, str], list[tuple[Pod, str]]] = defaultdict(list)
    for one in seen.pods:
        if one.pod.node_name:
            for better, got, where in _better(one.pod, free, seen.dra.free):
                found[better, got].append((one.pod, where))
    for (better, got), pods in sorted(found.items()):
        first, where = pods[0]
        names = first_of([f"{pod.namespace}/{pod.name} on {pod.node_name}" for pod, _ in pods], _MOST_NAMED)
        who = f"pod {names} has" if len(pods) == 1 else f"{len(pods)} pods have"
        listed = "" if len(pods) == 1 else f" ({names})"
        yield warning(
            f"{who} {short_name(got)} by a claim{listed}, and {seen.dra.free[where][better]} × {short_name(better)}, an earlier "
            f"alternative, is free now on node {where}: if it was free then, an emptier node won over it; {_PLUGIN} with "
            "weight 20 in the scheduler's configuration prevents that (examples/scheduler.yaml)",
            f"kubectl describe pod -n {first.namespace} {first.name}",
            f"kubectl describe node {where}",
        )


def _better(
    pod: Pod, nodes: Mapping[str, list[Node]], free: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, str, str]]:
    """Of each request that fell back: an earlier alternative, what it got, and the node where the former is free."""
    claim = alternatives_of(pod)
    given = dict(recorded(pod.annotations.get(RECORD_ANNOTATION, "")))
    anywhere = replace(pod, node_name="")
    for request in claim.requests if claim else ():
        every = [one.resource for one in request.alternatives]
        got = given.get(request.asked, request.asked)
        for better in every[: every.index(got)] if got in every else ():
            where = next(
                (
                    node.name
                    for node in nodes.get(better, ())
                    if free[node.name][better] >= request.count
                    and node.name != pod.node_name  # there the scheduler takes the best that is free
                    and why_excluded(anywhere, node) is None
                ),
                None,
            )
            if where is not None:
                yield better, got, where
                break


def _default_weight(seen: Evidence) -> int | None:
    """The least weight that a scheduler gives the alternatives; None where it is not known."""
    found: list[int] = []
    for one in seen.dra.schedulers:
        try:
            weights = _weights_of(one, seen)
        except InvalidInput:
            return None
        if weights is None:
            return None
        found += [weights[_DEFAULT]] if _DEFAULT in weights else []
    return min(found) if found else None


def _weights_of(one: Scheduler, seen: Evidence) -> dict[str, int] | None:
    """What each profile makes the plugin's score count; None where its configuration is not seen."""
    default = _DEFAULT_WEIGHT if release_of(seen) >= _SCORED else 0
    if one.text is not None:
        return _weights(one.text, default)
    return None if one.file else {_DEFAULT: default}


def _weighed(one: Scheduler, seen: Evidence) -> Iterator[Finding]:
    try:
        weights = _weights_of(one, seen)
    except InvalidInput as error:
        yield unseen(f"the configuration of scheduler {one.pod} cannot be read: {short(str(error))}")
        return
    if weights is None:
        yield unseen(
            f"the configuration of scheduler {one.pod} is not seen: {one.file} lies on its node; {_PLUGIN} should have weight "
            f"{_ENOUGH} or more there"
        )
        return
    for profile, weight in weights.items():
        if weight < _ENOUGH:
            yield note(
                f"scheduler {one.pod}, profile {profile}: {_PLUGIN} has weight {weight}, so an emptier node with a later "
                f"alternative can win over a fuller one with the first; from {_ENOUGH} on it does not"
            )


def _weights(text: str, default: int) -> dict[str, int]:
    """What each profile of a KubeSchedulerConfiguration makes the plugin's score count."""
    document = yaml.load(text.encode(), "KubeSchedulerConfiguration")
    profiles = (document.get("profiles") if isinstance(document, Mapping) else None) or [{}]
    try:
        return {
            str(one.get("schedulerName", _DEFAULT)): _weight(one.get("plugins") or {}, default)
            for one in profiles
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(f"profiles: {error}") from error


def _weight(plugins: Mapping[str, Any], default: int) -> int:
    """`score` says more than `multiPoint`, and what is enabled more than what is disabled."""
    for point in ("score", "multiPoint"):
        said = plugins.get(point) or {}
        for one in said.get("enabled") or ():
            if one.get("name") == _PLUGIN:
                return int(one.get("weight") or 1)  # as the scheduler takes it
        if any(one.get("name") in (_PLUGIN, "*") for one in said.get("disabled") or ()):
            return 0
    return default
