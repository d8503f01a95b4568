"""Checks of dynamic resource allocation: classes, pools of ResourceSlices, counters, and how the scheduler weighs alternatives."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node, why_excluded
from tessera.core.kubernetes.pod import Pod
from tessera.core.requests.asking import alternatives_of
from tessera.core.requests.record import RECORD_ANNOTATION, recorded
from tessera.core.resources import short as short_name
from tessera.core.text import first_of
from tessera.doctor.checks.webhook import release_of
from tessera.doctor.findings import Finding, not_applicable, note, problem, short, unseen, warning
from tessera.doctor.observations import Observations, SchedulerPod
from tessera.inventory.report import state_of
from tessera.protocol import yaml
from tessera.protocol.kubernetes.dra import DeviceClassIn, SliceIn

_MOST_NAMED: Final = 3
_COUNTERS_FIXED: Final = (1, 37)  # kubernetes/kubernetes#138917
# where 1.36.3 bound 20 pods a second instead of 69; at 100 nodes 2.3 instead of 46
_MOST_COUNTED_NODES: Final = 30
_PLUGIN: Final = "DynamicResources"
_SCORED: Final = (1, 35)  # the first release whose scheduler scores alternatives at all
_DEFAULT_WEIGHT: Final = 2  # pkg/scheduler/apis/config/v1/default_plugins.go
# The second of eight alternatives has 87.5 points of 100; how full a node is moves 200 at most (NodeResourcesFit and
# NodeResourcesBalancedAllocation, weight 1 each): from 200 / 12.5 on an alternative outweighs that.
_ENOUGH: Final = 16
_DEFAULT: Final = "default-scheduler"  # which all pods with a claim of the bridge have


def classes(seen: Observations) -> Iterator[Finding]:
    by_name: dict[str, list[DeviceClassIn]] = defaultdict(list)
    for one in seen.dra.classes:
        if one.spec.extended_resource_name:
            by_name[one.spec.extended_resource_name].append(one)
    if not by_name:
        yield not_applicable("no DeviceClass has an extendedResourceName")
    for resource, several in sorted(by_name.items()):
        if len(several) == 1:
            continue
        winner, *others = sorted(several, key=_precedence)
        names = first_of([one.metadata.name for one in others], _MOST_NAMED)
        yield warning(
            f"DeviceClass {winner.metadata.name} wins over {names} for pods that ask for {resource}: all of them have it as "
            "extendedResourceName, and the youngest is taken (of the same age, the first by name)",
            f"kubectl patch deviceclass {others[0].metadata.name} --type=json "
            """-p '[{"op":"remove","path":"/spec/extendedResourceName"}]'""",
            # 1.36.3 and 1.37.1 forget the mapping when one of several classes is changed (kubernetes/kubernetes#141103)
            f"kubectl annotate --overwrite deviceclass {winner.metadata.name} tessera.dev/touched=$(date +%s)",
        )


def _precedence(one: DeviceClassIn) -> tuple[float, str]:
    """The scheduler's order: youngest first, then by name."""
    return -(one.metadata.created or 0.0), one.metadata.name


def pools(seen: Observations) -> Iterator[Finding]:
    """Every pool is whole, and belongs to a node that is there."""
    if not seen.dra.slices:
        yield not_applicable("there are no ResourceSlices")
        return
    by_pool: dict[tuple[str, str], list[SliceIn]] = defaultdict(list)
    for one in seen.dra.slices:
        by_pool[one.spec.driver, one.spec.pool.name].append(one)
    for (driver, pool), slices in sorted(by_pool.items()):
        top = max(one.spec.pool.generation for one in slices)
        newest = [one.spec.pool for one in slices if one.spec.pool.generation == top]
        wanted = max(one.resource_slice_count for one in newest)
        if len(newest) != wanted:
            yield problem(
                f"pool {pool} of {driver}: {len(newest)} of {wanted} ResourceSlices of generation {top} are there, so nothing is "
                "allocated from it; while a driver writes them that is so for a moment",
                f"kubectl get resourceslices --field-selector spec.driver={driver}",
            ).of("ResourceSlices are missing", f"pool {pool}")
    for (driver, pool), name in sorted(seen.dra.invalid.items()):
        yield problem(
            f"pool {pool} of {driver}: the name {name} is there twice, so the scheduler takes the pool as invalid and allocates "
            "nothing from it; its driver must give each device and each counter set of a pool a name of its own",
            f"kubectl get resourceslices --field-selector spec.driver={driver} -o yaml",
        ).of("a name is there twice", f"pool {pool}")
    gone = sorted(seen.dra.by_node.keys() - {node.name for node in seen.nodes})
    for node in gone:
        drivers = sorted({one.spec.driver for one in seen.dra.by_node[node]})
        yield problem(
            f"node {node} is gone, and ResourceSlices of {first_of(drivers, _MOST_NAMED)} still offer its devices: "
            "claims can be given what nothing prepares",
            f"kubectl delete resourceslices --field-selector spec.nodeName={node}",
        ).of("ResourceSlices of a node that is gone", f"node {node}")


def counters(seen: Observations) -> Iterator[Finding]:
    nodes = {one.spec.node_name for one in seen.dra.slices if one.spec.shared_counters}
    if not nodes:
        yield not_applicable("no ResourceSlice has shared counters")
    elif release_of(seen) < _COUNTERS_FIXED and len(nodes) > _MOST_COUNTED_NODES:
        version = seen.version.git_version if seen.version else "of an unknown version"
        yield warning(
            f"{len(nodes)} nodes have devices with shared counters, and the API server is {version}: before 1.37 each of them "
            f"slows the scheduling of every claim down, much so beyond {_MOST_COUNTED_NODES} nodes; upgrade, or offer "
            "layouts instead of `partitioning: dynamic` on some nodes"
        )


# How the scheduler weighs a claim's alternatives between nodes


def score(seen: Observations) -> Iterator[Finding]:
    wishes = seen.dra.alternatives
    if not wishes:
        yield not_applicable("no claim and no template asks for alternatives (firstAvailable)")
        return
    if len(seen.dra.by_node) < 2:
        yield not_applicable("fewer than two nodes have devices to choose from")
        return
    if why := seen.unseen.get("schedulers"):
        yield unseen(f"could not run: schedulers: {short(why)}")
    elif not seen.dra.schedulers:
        yield unseen(
            f"the scheduler's configuration is not seen: it is no pod in kube-system; {_PLUGIN} should have weight {_ENOUGH} or "
            f"more, since {first_of(wishes, 1)} asks for alternatives"
        )
    least: list[int] = []  # of pods with a claim of the bridge, by scheduler; 0 where it is not known
    for one in seen.dra.schedulers:
        try:
            weights = _weights(one, seen)
        except InvalidInput as error:
            yield unseen(f"the configuration of scheduler {one.pod} {error}")
            least.append(0)
            continue
        least += [weights[_DEFAULT]] if _DEFAULT in weights else []
        for profile, weight in weights.items():
            if weight < _ENOUGH:
                yield note(
                    f"scheduler {one.pod}, profile {profile}: {_PLUGIN} has weight {weight}, so an emptier node with a later "
                    f"alternative can win over a fuller one with the first; from {_ENOUGH} on it does not"
                )
    if min(least, default=0) < _ENOUGH:  # else what is free now became so later: it would have won
        yield from _lost(seen)


def _lost(seen: Observations) -> Iterator[Finding]:
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


def _weights(one: SchedulerPod, seen: Observations) -> dict[str, int]:
    """What each profile makes the plugin's score count; `InvalidInput` where its configuration is not seen, or cannot be read."""
    default = _DEFAULT_WEIGHT if release_of(seen) >= _SCORED else 0
    if one.text is None and one.file:
        should = f"{_PLUGIN} should have weight {_ENOUGH} or more there"
        raise InvalidInput(f"is not seen: {one.file} lies on its node; {should}")
    try:
        document = yaml.load((one.text or "").encode(), "KubeSchedulerConfiguration")
        profiles = (document.get("profiles") if isinstance(document, Mapping) else None) or [{}]
        return {
            str(one.get("schedulerName", _DEFAULT)): _weight(one.get("plugins") or {}, default)
            for one in profiles
        }
    except InvalidInput as error:
        raise InvalidInput(f"cannot be read: {short(str(error))}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(f"cannot be read: profiles: {short(str(error))}") from error


def _weight(plugins: Mapping[str, Any], default: int) -> int:
    """`score` says more than `multiPoint`, and what is enabled more than what is disabled."""
    for point in ("score", "multiPoint"):
        configured = plugins.get(point) or {}
        for one in configured.get("enabled") or ():
            if one.get("name") == _PLUGIN:
                return int(one.get("weight") or 1)  # as the scheduler takes it
        if any(one.get("name") in (_PLUGIN, "*") for one in configured.get("disabled") or ()):
            return 0
    return default
