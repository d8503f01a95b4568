"""Checks of pods: what they ask for exists, none is refused, and those that wait are told why."""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Final

from tessera.core.kubernetes.node import Node, why_excluded
from tessera.core.kubernetes.pod import Amounts, Pod, requested
from tessera.core.kubernetes.resources import WHOLE_GPU, is_any_gpu, is_extended, is_whole_or_mig
from tessera.core.mig.geometry import PRODUCTS
from tessera.core.requests.asking import alternatives_of, asked
from tessera.core.text import first_of
from tessera.doctor.evidence import Evidence, Refusal, SeenPod
from tessera.doctor.findings import Finding, not_applicable, problem, short, warning
from tessera.protocol.kubernetes.objects import node_of

_MOST_NAMED: Final = 3  # pods or nodes in one sentence
_ALIKE: Final = 0.9  # of difflib's ratio: one or two letters of a resource's name are wrong
_NVIDIA: Final = "nvidia.com/"
# Seconds. A controller tries again after 1000 s at the latest (client-go's DefaultControllerRateLimiter): after
# this long without a new event it has stopped trying, or succeeded.
_OLD_EVENT: Final = 1800.0
# Controllers that make a pod anew when it is deleted, and lose nothing by it. A Job is not one of them: a pod that is
# deleted counts as failed, and its other pods may end with it.
_REPLACING: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet"})


def offers(seen: Evidence) -> Iterator[Finding]:
    """What pods without a node ask for is offered by some node."""
    offered, known = _most(seen), {name for node in seen.nodes for name in node_of(node).allocatable}
    asking: dict[tuple[str, int], list[SeenPod]] = defaultdict(list)
    misspelt: dict[str, list[SeenPod]] = defaultdict(list)
    claiming: dict[str, list[SeenPod]] = defaultdict(list)
    for one in _waiting(seen):
        claim = alternatives_of(one.pod)
        if claim is not None and not _may_be_served(one.pod, offered):
            claiming[claim.words].append(one)
        for resource, count in _gpus(requested(one.pod)).items():
            if offered.get(resource, 0) < count:
                asking[resource, count].append(one)
        for resource in requested(one.pod):
            if resource not in known and _is_meant_for_a_gpu(resource, offered):
                misspelt[resource].append(one)
    for resource, pods in sorted(misspelt.items()):
        meant = _meant(resource, offered)
        hint = f"; did you mean {meant}?" if meant else f", nor is it a GPU such as {WHOLE_GPU}"
        yield problem(f"{_some(pods)} for {resource}, which no node has{hint}", _describe(pods[0]))
    has = ", ".join(f"{most} × {name}" for name, most in sorted(offered.items())) or "no GPU at all"
    for words, pods in sorted(claiming.items()):
        yield problem(
            f"{_some(pods, 'wait')} with a claim for {words}, and no node offers any of it now (the most that one node has: "
            f"{has}); a claim keeps the alternatives that there were when its pod was created",
            _describe(pods[0]),
            *_made_anew(pods),
        )
    for (resource, count), pods in sorted(asking.items()):
        where = f"-n {pods[0].pod.namespace} {pods[0].pod.name}"
        yield problem(
            f"{_some(pods)} for {count} × {resource}, which no node offers (the most that one node has: {has}); "
            "the webhook did not see the pod, or was told to leave it (fallback-policy, unmatched: admit)",
            f"kubectl get pod {where} -o yaml | tessera admit -f - --nodes <(kubectl get nodes -o yaml) -o explain",
            *_made_anew(pods),
        )


def _made_anew(pods: Iterable[SeenPod]) -> Iterator[str]:
    """What has the webhook decide again, where that costs nothing: a controller makes the pod anew."""
    for one in pods:
        controller = one.state.metadata.controller
        if controller and controller.kind in _REPLACING:
            yield (
                f"kubectl delete pod -n {one.pod.namespace} {one.pod.name}   "
                f"# it never ran; {controller.kind} {controller.name} makes it anew, and the webhook decides"
            )
            return


def _is_meant_for_a_gpu(resource: str, offered: Mapping[str, int]) -> bool:
    """Whether a resource that no node has was meant to be a GPU: it is NVIDIA's, or looks much like a GPU's."""
    if is_any_gpu(resource) or not is_extended(resource):
        return False
    return resource.startswith(_NVIDIA) or _meant(resource, offered) is not None


def _meant(resource: str, offered: Mapping[str, int]) -> str | None:
    """The GPU resource that was probably meant: one that nodes offer, else one that some card can have."""
    cards = {profile.resource for product in PRODUCTS for profile in product.profiles}
    choices = sorted(offered), sorted({WHOLE_GPU} | cards)
    for names in choices:
        for name in names:
            if _letters(name) == _letters(resource):
                return name
    for names in choices:
        if close := difflib.get_close_matches(resource, names, 1, _ALIKE):
            return close[0]
    return None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def refused(seen: Evidence) -> Iterator[Finding]:
    """No controller's pods are rejected."""
    names = [webhook.name for webhook in seen.webhooks]
    if not names:
        yield not_applicable("no webhook is configured")
    told = set()
    for refusal in seen.refusals:
        event = refusal.event
        about = event.involved_object
        ours = any(f'admission webhook "{name}" denied the request' in event.message for name in names)
        key = (about.kind, about.namespace, about.name)
        if ours and key not in told and not _is_over(refusal, seen.now):
            told.add(key)
            reason = event.message.partition("denied the request: ")[2]
            yield problem(
                f"{about.kind} {about.namespace}/{about.name} cannot create pods, the webhook rejects them: "
                f"{short(reason)}",
                f"kubectl describe {about.kind.lower()} -n {about.namespace} {about.name}",
            )


def _is_over(refusal: Refusal, now: float) -> bool:
    """Whether it is history: the controller is gone, wants no more pods than it has, or has long stopped trying."""
    last = refusal.event.last_seen
    owner = refusal.owner
    if refusal.gone or (last is not None and now - last > _OLD_EVENT):
        return True
    counts = refusal.event.involved_object.kind in ("ReplicaSet", "ReplicationController", "StatefulSet")
    return owner is not None and (
        owner.metadata.deletion_timestamp is not None or (counts and owner.status.replicas >= owner.wanted)
    )


def pending(seen: Evidence) -> Iterator[Finding]:
    """GPU pods have a node, or it is clear why not."""
    offered = _most(seen)
    nodes = [node_of(node) for node in seen.nodes]
    free = _free(seen, nodes)
    why: dict[str, list[SeenPod]] = defaultdict(list)
    for one in _waiting(seen):
        wanted = _gpus(asked(one.pod))
        if wanted and _may_be_served(one.pod, offered):
            why[_why(one, wanted, nodes, free)].append(one)
    for reason, pods in why.items():
        yield warning(f"{_some(pods, 'wait')}: {reason}", _describe(pods[0]), "tessera capacity")


def _why(
    one: SeenPod, asks: Mapping[str, int], nodes: list[Node], free: Mapping[tuple[str, str], Fraction]
) -> str:
    wanted = ", ".join(f"{count} × {resource}" for resource, count in asks.items())
    having = [
        node for node in nodes if all(_has(node, resource) >= count for resource, count in asks.items())
    ]
    excluded = {node.name: why_excluded(one.pod, node) for node in having}
    open_nodes = [node for node in having if excluded[node.name] is None]
    if having and not open_nodes:
        first = next(iter(excluded))
        return f"the nodes with {wanted} are not for this pod; {first}: {excluded[first]}"
    enough = [
        node
        for node in open_nodes
        if all(free[node.name, resource] >= count for resource, count in asks.items())
    ]
    if having and not enough:
        return f"{wanted} is taken on {first_of([node.name for node in open_nodes], _MOST_NAMED)}; it runs when something is freed"
    scheduled = one.state.status.condition("PodScheduled")
    if scheduled.status == "False" and scheduled.message:
        return f"the scheduler says: {short(scheduled.message)}"
    return "the scheduler has not said why yet"


def _waiting(seen: Evidence) -> list[SeenPod]:
    return [one for one in seen.pods if not one.pod.node_name and one.state.status.phase in ("", "Pending")]


def _describe(one: SeenPod) -> str:
    return f"kubectl describe pod -n {one.pod.namespace} {one.pod.name}"


def _may_be_served(pod: Pod, offered: Mapping[str, int]) -> bool:
    """Whether nodes offer what a pod asks for, or of each request of its claim some alternative."""
    claim = alternatives_of(pod)
    plain = _gpus(requested(pod)).items()
    return all(offered.get(resource, 0) >= count for resource, count in plain) and all(
        any(offered.get(other.resource, 0) >= one.count for other in one.alternatives)
        for one in (claim.requests if claim else ())
    )


def _gpus(amounts: Amounts) -> dict[str, int]:
    return {
        resource: int(amount.value)
        for resource, amount in amounts.items()
        if is_whole_or_mig(resource) and amount.value
    }


def _most(seen: Evidence) -> dict[str, int]:
    most: dict[str, int] = {}
    for node in seen.nodes:
        served = seen.dra.served.get(node.metadata.name, {})
        for resource, count in replace(node_of(node), dra=served).offer.counts:
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
            for resource, count in _gpus(requested(one.pod)).items():
                free[one.pod.node_name, resource] -= count
    return free


def _has(node: Node, resource: str) -> int:
    amount = node.allocatable.get(resource)
    return int(amount.value) if amount else 0


def _some(pods: list[SeenPod], verb: str = "ask") -> str:
    names = [f"{one.pod.namespace}/{one.pod.name}" for one in pods]
    if len(names) == 1:
        return f"pod {names[0]} {verb}s"
    return f"{len(names)} pods {verb} ({first_of(names, _MOST_NAMED)})"
