"""Checks of pods: what they ask for exists, none is refused, and those that wait are told why."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from tessera.core.kubernetes.node import Node, why_excluded
from tessera.core.kubernetes.pod import Pod, requested
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.text import first_of
from tessera.doctor.evidence import Evidence, SeenPod
from tessera.doctor.findings import Finding, problem, warning
from tessera.doctor.webhook import short, webhooks_of
from tessera.protocol.kubernetes.objects import node_of

_MOST_NAMED: Final = 3  # pods or nodes in one sentence


def offers(seen: Evidence) -> Iterator[Finding]:
    """What pods without a node ask for is offered by some node."""
    offered = _most(seen)
    asking: dict[tuple[str, int], list[str]] = defaultdict(list)
    for one in _waiting(seen):
        for resource, count in _gpus(one.pod).items():
            if offered.get(resource, 0) < count:
                asking[resource, count].append(_name(one))
    for (resource, count), pods in sorted(asking.items()):
        has = ", ".join(f"{most} × {name}" for name, most in sorted(offered.items())) or "no GPU at all"
        namespace, _, name = pods[0].partition("/")
        yield problem(
            f"{_some(pods)} for {count} × {resource}, which no node offers (the most that one node has: {has}); "
            "the webhook did not see the pod, or was told to leave it (fallback-policy, unmatched: admit)",
            f"kubectl delete pod -n {namespace} {name}   # its controller makes it anew, and the webhook decides",
            f"kubectl get pod -n {namespace} {name} -o yaml | tessera admit -f - --nodes <(kubectl get nodes -o yaml) -o explain",
        )


def refused(seen: Evidence) -> Iterator[Finding]:
    """No controller's pods are rejected."""
    names = [webhook.name for webhook in webhooks_of(seen)]
    told = set()
    for event in seen.refusals:
        about = event.involved_object
        ours = any(f'admission webhook "{name}" denied the request' in event.message for name in names)
        key = (about.kind, about.namespace, about.name)
        if ours and key not in told:
            told.add(key)
            reason = event.message.partition("denied the request: ")[2]
            yield problem(
                f"{about.kind} {about.namespace}/{about.name} cannot create pods, the webhook rejects them: "
                f"{short(reason)}",
                f"kubectl describe {about.kind.lower()} -n {about.namespace} {about.name}",
            )


def pending(seen: Evidence) -> Iterator[Finding]:
    """GPU pods have a node, or it is clear why not."""
    offered = _most(seen)
    nodes = [node_of(node) for node in seen.nodes]
    free = _free(seen, nodes)
    why: dict[str, list[str]] = defaultdict(list)
    for one in _waiting(seen):
        asked = _gpus(one.pod)
        if all(offered.get(resource, 0) >= count for resource, count in asked.items()):
            why[_why(one, asked, nodes, free)].append(_name(one))
    for reason, pods in why.items():
        namespace, _, name = pods[0].partition("/")
        yield warning(
            f"{_some(pods, 'wait')}: {reason}",
            f"kubectl describe pod -n {namespace} {name}",
            "tessera capacity",
        )


def _why(
    one: SeenPod, asked: Mapping[str, int], nodes: list[Node], free: Mapping[tuple[str, str], Fraction]
) -> str:
    wanted = ", ".join(f"{count} × {resource}" for resource, count in asked.items())
    having = [
        node for node in nodes if all(_has(node, resource) >= count for resource, count in asked.items())
    ]
    excluded = {node.name: why_excluded(one.pod, node) for node in having}
    open_nodes = [node for node in having if excluded[node.name] is None]
    if having and not open_nodes:
        first = next(iter(excluded))
        return f"the nodes with {wanted} are not for this pod; {first}: {excluded[first]}"
    enough = [
        node
        for node in open_nodes
        if all(free[node.name, resource] >= count for resource, count in asked.items())
    ]
    if having and not enough:
        return f"{wanted} is taken on {first_of([node.name for node in open_nodes], _MOST_NAMED)}; it runs when something is freed"
    scheduled = one.state.status.condition("PodScheduled")
    if scheduled.status == "False" and scheduled.message:
        return f"the scheduler says: {short(scheduled.message)}"
    return "the scheduler has not said why yet"


def _waiting(seen: Evidence) -> list[SeenPod]:
    return [one for one in seen.pods if not one.pod.node_name and one.state.status.phase in ("", "Pending")]


def _name(one: SeenPod) -> str:
    return f"{one.pod.namespace}/{one.pod.name}"


def _gpus(pod: Pod) -> dict[str, int]:
    return {
        resource: int(amount.value)
        for resource, amount in requested(pod).items()
        if is_whole_or_mig(resource) and amount.value
    }


def _most(seen: Evidence) -> dict[str, int]:
    most: dict[str, int] = {}
    for node in seen.nodes:
        for resource, count in node_of(node).offer.counts:
            most[resource] = max(count, most.get(resource, 0))
    return most


def _free(seen: Evidence, nodes: list[Node]) -> dict[tuple[str, str], Fraction]:
    """Node and resource → what no pod has; everything else counts as taken."""
    free: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for node in nodes:
        for resource, amount in node.allocatable.items():
            free[node.name, resource] = amount.value
    for one in seen.pods:
        if one.pod.node_name:
            for resource, count in _gpus(one.pod).items():
                free[one.pod.node_name, resource] -= count
    return free


def _has(node: Node, resource: str) -> int:
    amount = node.allocatable.get(resource)
    return int(amount.value) if amount else 0


def _some(pods: list[str], verb: str = "ask") -> str:
    if len(pods) == 1:
        return f"pod {pods[0]} {verb}s"
    return f"{len(pods)} pods {verb} ({first_of(pods, _MOST_NAMED)})"
