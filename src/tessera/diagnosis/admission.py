"""Admission's part in a pod's story: what it made of the request, what it would decide now, and what is in its way."""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, TypeVar

from tessera.core.admission import explanation
from tessera.core.admission.decision import decide, why_exempt
from tessera.core.admission.moves import move_of
from tessera.core.admission.outcome import Decision, Denied, Patched
from tessera.core.admission.policy import (
    MIN_MEMORY_ANNOTATION,
    MODE_LABEL,
    POLICY_ANNOTATION,
    Mode,
    Policy,
    may_claim,
    mode_in,
    mode_source,
)
from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import InvalidQuantity, Quantity
from tessera.core.requests.asking import alternatives_of
from tessera.core.requests.record import DECIDED_ANNOTATION, RECORD_ANNOTATION, Mark, apply, mark_of
from tessera.core.resources import of_short
from tessera.diagnosis.evidence import Evidence, SeenPod
from tessera.diagnosis.nodes import Lack, request_of
from tessera.diagnosis.remedy import CreatedAgain, Remedy
from tessera.inventory.report import amount

Annotated = TypeVar("Annotated", Pod, Namespace)

# the API server's words for a pod that a quota does not let in (k8s.io/apiserver, plugin resourcequota)
_EXCEEDED: Final = re.compile(
    r"exceeded quota: (?P<quota>[^,\s]+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<hard>\S+)"
)


def admission_of(seen: Evidence, pod: Pod, created: Pod) -> Iterator[str]:
    """What a pod asked for when it was created, what it was given, and what decides that now."""
    exempt = why_exempt(pod, seen.offers)
    if record := pod.annotations.get(RECORD_ANNOTATION, ""):
        yield f"changed when it was created: {record.replace('->', ' → ')}"
    if mark_of(pod) is not Mark.NONE:
        yield "decided about by what was free when it was created (gpu-webhook.k8s.io/decided-when)"
    if (claim := alternatives_of(pod)) is not None:
        yield f"its request became a claim when it was created: {claim.words}"
    for container, what in explanation.asked(created):
        yield f"asks for {what} (container {container})"
    if exempt is not None:
        yield f"the webhook leaves it alone: {exempt}"
        return
    if not explanation.asked(created):
        return
    yield from (f"rule: {rule}" for rule in explanation.rules(created, seen.offers, seen.policy))
    with _without_room(seen, pod):
        free = explanation.free_now(created, seen.offers, seen.policy)
    if free:
        yield f"free for it: {free}"
    yield from _unavailable(seen, pod)
    observes = who_observes(seen, pod)
    if observes:
        yield f"the webhook only observes here ({observes}): it reports what it would do, and changes nothing"
    now = "enforced, it" if observes else "created now it"
    # whether it would be a claim is not known without the classes; that they are unseen is said
    decision = _decided(seen, pod, created, may_claim="deviceclasses" not in seen.unseen)
    match decision:
        case Denied():
            yield f"{now} would be rejected: {decision.message}"
        case Patched():
            yield f"{now} would be changed: {decision.reason}"
        case _:
            yield f"{now} would stay as it is: {decision.reason}"


def _unavailable(seen: Evidence, pod: Pod) -> Iterator[str]:
    """The parts that admission needs and that are unavailable."""
    webhook, controller = seen.presences.webhook, seen.presences.controller
    if webhook is not None and not webhook.at_work:
        yield f"{webhook.words(seen.now)}; pods are created without its decision, or not at all"
    if (
        controller is not None
        and not controller.at_work
        and may_claim(seen.offers.namespaces.get(pod.namespace), seen.policy.fallback.dra)
    ):
        yield f"{controller.words(seen.now)}; no request becomes a claim"


def by_controller(seen: Evidence, pod: Pod) -> Iterator[Remedy]:
    """The claim that a pod's request would become, if the controller were at work."""
    away = seen.presences.controller
    if away is not None and not away.at_work:
        view = copy(seen.offers)
        view.controller = True
        tried = decide(pod, view, seen.policy)
        if isinstance(tried, Patched) and tried.conversion == "claim":
            text = f"{away.remedy}: created again, {tried.reason}"
            yield Remedy("mend", text, (away.command,))


def who_observes(seen: Evidence, pod: Pod) -> str:
    """Who has the webhook observe where a pod is; empty where it acts."""
    namespace = seen.offers.namespaces.get(pod.namespace)
    return mode_source(namespace) if mode_in(namespace, seen.policy.mode) is Mode.OBSERVE else ""


def why_never(seen: Evidence, pod: Pod) -> str:
    """Who says that a pod may take nothing else; empty where it may."""
    if DECIDED_ANNOTATION in pod.annotations:
        return "this was decided when its workload was created"
    rules = explanation.rules(pod, seen.offers, seen.policy)
    return next((rule for rule in rules if "fallback-policy is `never`" in rule), "")


def by_policy(seen: Evidence, pod: Pod) -> Iterator[Remedy]:
    """The one setting or annotation without which admission would give the pod something that nodes offer."""
    offers, policy = seen.offers, seen.policy
    if isinstance(decide(pod, offers, policy), Patched):
        return
    for text, other_pod, view, other_policy, commands in _variants(pod, offers, policy):
        tried = decide(other_pod, view, other_policy)
        if isinstance(tried, Patched) and tried.replaced:
            yield _remedy(seen, "policy", text, pod, tried, *commands)
            return
    # last, since it is another team's to give
    free = decide(pod, offers, replace(policy, fallback=replace(policy.fallback, respects_quota=False)))
    if isinstance(free, Patched) and free.replaced:
        names = ", ".join(one.name for one in offers.quotas.get(pod.namespace, ()))
        wanted = ", ".join(new for _, new in free.replaced)
        text = f"a quota of namespace {pod.namespace} ({names}) leaves room for {wanted}"
        command = f"kubectl describe resourcequota -n {pod.namespace}"
        yield _remedy(seen, "quota", text, pod, free, command)


def by_creating_again(seen: Evidence, one: SeenPod) -> Iterator[Remedy]:
    """What the webhook gives a pod now: the pod was created without the webhook, or the nodes have changed since."""
    webhook, now = seen.presences.webhook, _decided(seen, one.pod, one.created)
    if not isinstance(now, Patched) or webhook is None or not webhook.at_work:
        return  # where there is none, creating the pod again changes nothing
    by = {of_short(old): of_short(new) for old, new in now.replaced}
    if by and request_of(apply(one.created, by)).gpus != request_of(one.pod).gpus:
        name = f"-n {one.pod.namespace} {one.pod.name}"
        again = f"kubectl get pod {name} -o yaml | kubectl replace --force -f -"
        command = again if one.state.metadata.controller is None else f"kubectl delete pod {name}"
        yield _remedy(seen, "policy", "the webhook decides about it anew", one.created, now, command)


def by_moving(seen: Evidence, one: SeenPod) -> Iterator[Remedy]:
    """What has come free since for a pod that waits; nothing where nobody knows what is free, as without `when: full` and patience."""
    webhook, key = seen.presences.webhook, f"{one.pod.namespace}/{one.pod.name}"
    if webhook is not None and webhook.at_work and not who_observes(seen, one.pod):
        move = move_of(one.pod, key, seen.offers, seen.policy)
        if move is not None:
            # as it is now it has the webhook's mark, and would not be decided about
            bare = one.state.metadata.controller is None
            who = "you create it again as you first wrote it" if bare else "it is created again"
            command = f"kubectl delete pod -n {one.pod.namespace} {one.pod.name}"
            yield Remedy("policy", f"{move.words} now: it gets that when {who}", (command,))


def _decided(seen: Evidence, pod: Pod, created: Pod, *, may_claim: bool = True) -> Decision:
    """What would be decided about a pod of the cluster if it were created now; its own room does not count."""
    with _without_room(seen, pod):
        return decide(created, seen.offers, seen.policy, may_claim=may_claim)


def _without_room(seen: Evidence, pod: Pod) -> AbstractContextManager[None]:
    free = seen.offers.free
    return nullcontext() if free is None else free.without_room(f"{pod.namespace}/{pod.name}")


def by_enforcing(seen: Evidence, pod: Pod) -> Iterator[Remedy]:
    """What the webhook would do if it did more than observe."""
    tried = decide(pod, seen.offers, seen.policy)
    if isinstance(tried, Patched) and tried.replaced:
        command = f"kubectl label --overwrite namespace {pod.namespace} {MODE_LABEL}={Mode.ENFORCE.value}"
        yield _remedy(seen, "policy", f"the webhook acts in namespace {pod.namespace}", pod, tried, command)


def _remedy(seen: Evidence, kind: str, text: str, pod: Pod, tried: Patched, *commands: str) -> Remedy:
    """What a pod gets when it is created again; it runs where some node has that free."""
    gets = ", ".join(f"{new} in place of {old}" for old, new in tried.replaced)
    by = {of_short(old): of_short(new) for old, new in tried.replaced}
    nearest = seen.nodes.nearest(request_of(apply(pod, by)))
    words = f"{text}: it gets {gets} when it is created again"
    if nearest and nearest[0].lack is Lack.NOTHING:
        return Remedy(kind, words, commands, (CreatedAgain(by),))
    return Remedy(kind, f"{words}, and waits until a node has that free", commands)


def _variants(
    pod: Pod, offers: Offers, policy: Policy
) -> Iterator[tuple[str, Pod, Offers, Policy, tuple[str, ...]]]:
    """The same question with one thing less in the way, and what to type; last of all with no annotation in the way."""
    keys, namespace = (POLICY_ANNOTATION, MIN_MEMORY_ANNOTATION), offers.namespaces.get(pod.namespace)
    for key in keys:
        if key in pod.annotations:
            yield f"the pod's annotation {key} is removed", _without(pod, key), offers, policy, ()
        if namespace is not None and key in namespace.annotations:
            text = f"the annotation {key} of namespace {namespace.name} is removed"
            command = f"kubectl annotate namespace {namespace.name} {key}-"
            yield text, pod, _with(offers, _without(namespace, key)), policy, (command,)
    given = policy.fallback
    no_minimum = replace(given, min_memory=None, min_memory_fraction=Fraction(0))
    minimums = "smaller fallback.minMemory and fallback.minMemoryFraction"
    for setting, better in (
        ("fallback.enabled: true", replace(given, enabled=True)),
        ("fallback.downgrades: true", replace(given, downgrades=True)),
        ("fallback.upgrades: true", replace(given, upgrades=True)),
        ("fallback.wholeGPU: true", replace(given, whole_gpu=True)),
        ("a smaller fallback.minMemory", replace(given, min_memory=None)),
        ("a smaller fallback.minMemoryFraction", replace(given, min_memory_fraction=Fraction(0))),
        (minimums, no_minimum),
    ):
        if better != given:
            allowing = replace(policy, fallback=better)
            yield f"{setting} in the webhook's configuration", pod, offers, allowing, ()
    if namespace is not None and any(key in namespace.annotations for key in keys):
        domain = keys[0].partition("/")[0]
        text = f"the annotations {domain}/… of the pod and of namespace {namespace.name} are removed"
        yield text, _without(pod, *keys), _with(offers, _without(namespace, *keys)), policy, ()
    if no_minimum != given:
        view = _with(offers, _without(namespace, MIN_MEMORY_ANNOTATION)) if namespace else offers
        text = f"no annotation {MIN_MEMORY_ANNOTATION}, and {minimums} in the webhook's configuration"
        yield text, _without(pod, MIN_MEMORY_ANNOTATION), view, replace(policy, fallback=no_minimum), ()


def _without(one: Annotated, *keys: str) -> Annotated:
    return replace(one, annotations={key: text for key, text in one.annotations.items() if key not in keys})


def _with(offers: Offers, namespace: Namespace) -> Offers:
    """The same view with another state of a namespace. The two share the index of nodes."""
    view = copy(offers)
    view.namespaces = {**offers.namespaces, namespace.name: namespace}
    return view


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A quota that did not let a pod in: what was asked, used and allowed, by the quota's own names."""

    quota: str
    asked: Mapping[str, str]
    used: Mapping[str, str]
    hard: Mapping[str, str]


def exceeded_in(message: str) -> Exceeded | None:
    """What the API server says when a quota is exceeded."""
    found = _EXCEEDED.search(message)
    if found is None:
        return None
    return Exceeded(found["quota"], *(_amounts(found[name]) for name in ("asked", "used", "hard")))


def _amounts(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.rstrip(".").split(","))
    return {name: value for name, equals, value in pairs if equals}


def by_quota(one: Exceeded, namespace: str) -> Iterator[Remedy]:
    """The quota raised to what is used and asked for together."""
    try:
        needed = {
            name: Quantity.parse(one.used.get(name, "0")) + Quantity.parse(text)
            for name, text in one.asked.items()
        }
    except InvalidQuantity:
        return
    words = ", ".join(f"{name} from {one.hard.get(name, '0')} to {amount(n)}" for name, n in needed.items())
    hard = ", ".join(f'"{name}": "{amount(n)}"' for name, n in needed.items())
    patch = '{"spec": {"hard": {' + hard + "}}}"
    yield Remedy(
        "quota",
        f"quota {one.quota} is raised: {words}; or pods of namespace {namespace} that hold these end",
        (f"kubectl patch resourcequota -n {namespace} {one.quota} --type=merge -p '{patch}'",),
    )
