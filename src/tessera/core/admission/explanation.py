"""A decision, taken apart for a person: what was asked, what holds, which nodes counted, what was tried."""

from collections.abc import Iterable, Iterator
from typing import Final

from tessera.core.admission.decision import why_exempt
from tessera.core.admission.fallback.asking import ask
from tessera.core.admission.fallback.found import Replace, Trial, Unmatched
from tessera.core.admission.fallback.full import choose, search_now, why_as_missing
from tessera.core.admission.policy import (
    DRA_ANNOTATION,
    WHEN_ANNOTATION,
    Dra,
    FallbackPolicy,
    Policy,
    When,
    constraints_of,
    dra_in,
    when_of,
)
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node, is_other, why_excluded, why_too_small
from tessera.core.kubernetes.pod import Pod, needs
from tessera.core.requests.asking import asked_profiles, complete_limits
from tessera.core.resources import is_any_gpu, short
from tessera.core.text import first_of

_MOST_NAMED: Final = 5  # candidates in one sentence


def asked(pod: Pod) -> list[tuple[str, str]]:
    """The GPU resources a pod asks for, by container: `("main", "nvidia.com/gpu: 1")`."""
    return [
        (container.name, f"{resource}: {container.asked(resource)}")
        for container in pod.all_containers()
        for resource in container.resources()
        if is_any_gpu(resource)
    ]


def nodes(pod: Pod, every: Iterable[Node], policy: Policy) -> list[tuple[Node, str | None]]:
    """Each node, and why it does not count for the pod; None where it does."""
    wanted = needs(pod, is_other)
    transient = policy.fallback.transient_taints
    return [(node, why_excluded(pod, node, transient) or why_too_small(wanted, node)) for node in every]


def view_of_free(pod: Pod, view: ClusterView, policy: Policy) -> ClusterView | None:
    """What is free, where that matters for a pod."""
    try:
        when = when_of(pod, view.namespaces.get(pod.namespace), policy.fallback)
    except InvalidInput:
        return None
    matters = when is When.FULL and asked_profiles(pod) and why_as_missing(pod, view) is None
    return view.now(pod.namespace) if matters else None


def trials(pod: Pod, view: ClusterView, policy: Policy) -> list[Trial]:
    """Every candidate in the order in which it is considered; none where fallback does not look at the pod."""
    if not policy.fallback.enabled or why_exempt(pod, view) is not None:
        return []
    try:
        complete = complete_limits(pod, policy.gpu_resources)
        search = ask(complete, asked_profiles(complete), view, policy)
        when = when_of(pod, view.namespaces.get(pod.namespace), policy.fallback)
    except InvalidInput:
        return []
    if when is When.FULL and why_as_missing(complete, view) is None:
        now = search_now(search, view, complete.namespace)
        outcome = choose(complete, search, view, policy, is_template=False).found
    else:
        now, outcome = None, search.choose()
    if isinstance(outcome, Unmatched):
        return list(outcome.trials)
    return list(search.trials(outcome.by if isinstance(outcome, Replace) else {}, now))


def free_now(pod: Pod, view: ClusterView, policy: Policy) -> str:
    """What is free of what a pod may get, beside what is offered; empty where what is free does not matter for it."""
    if view_of_free(pod, view, policy) is None:
        return ""
    offered = (one for one in trials(pod, view, policy) if one.offered)
    words = dict.fromkeys(f"{short(one.candidate)} ({one.reason})" for one in offered)
    return first_of(list(words), _MOST_NAMED)


def rules(pod: Pod, view: ClusterView, policy: Policy) -> Iterator[str]:
    """What holds for this pod beyond the usual, each with the setting or the annotation that says so."""
    given = policy.fallback
    if not given.enabled:
        yield "no fallback (fallback.enabled: false)"
        return
    switches = {"downgrades": given.downgrades, "upgrades": given.upgrades, "wholeGPU": given.whole_gpu}
    yield from (f"fallback.{name}: false" for name, allowed in switches.items() if not allowed)
    if given.whole_gpu and given.max_whole_gpus != FallbackPolicy().max_whole_gpus:
        yield f"at most {given.max_whole_gpus} whole GPUs (fallback.maxWholeGPUs)"
    try:
        constraints = constraints_of(pod, view.namespaces.get(pod.namespace))
        dra_in(view.namespaces.get(pod.namespace), given.dra)
        yield from _free(pod, view, given)
    except InvalidInput:
        return
    yield from (
        reason for reason in (constraints.never, constraints.no_smaller, constraints.no_larger) if reason
    )
    for profile in asked_profiles(pod).values():
        for minimum in given.minimums(profile):
            constraints = constraints.at_least(minimum)
    if constraints.minimum is not None:
        yield f"at least {constraints.minimum}"
    yield from _quotas(pod, view, given)
    yield from _claims(pod, view, given)
    for resource in asked_profiles(pod):
        if resource in given.chains:
            names = ", ".join(map(short, given.chains[resource])) or "nothing"
            yield f"{short(resource)} becomes {names} (fallback.chains)"
    if given.autoscaled and not pod.bound_to:
        yield f"{', '.join(sorted(map(short, given.autoscaled)))} can come (fallback.autoscaled)"
    if not given.reject_unmatched:
        yield "the webhook admits unmatched pods (fallback.unmatched: admit)"
    if pod.bound_to:
        yield f"bound to node {pod.bound_to}: never rejected"


def _free(pod: Pod, view: ClusterView, policy: FallbackPolicy) -> Iterator[str]:
    """Whether what is free matters, and by which setting."""
    namespace = view.namespaces.get(pod.namespace)
    if not asked_profiles(pod) or when_of(pod, namespace, policy) is not When.FULL:
        return
    who = "fallback.when: full"
    if WHEN_ANNOTATION in pod.annotations:
        who = "the pod's fallback-when"
    elif namespace is not None and WHEN_ANNOTATION in namespace.annotations:
        who = f"namespace {namespace.name}'s fallback-when"
    skipped = why_as_missing(pod, view)
    if skipped is None:
        yield f"what is free now decides ({who})"
    else:
        yield f"what is free does not matter ({who}): {skipped.why}"


def _claims(pod: Pod, view: ClusterView, policy: FallbackPolicy) -> Iterator[str]:
    namespace = view.namespaces.get(pod.namespace)
    dra = dra_in(namespace, policy.dra)
    own = namespace is not None and DRA_ANNOTATION in namespace.annotations
    who = f"namespace {pod.namespace}'s dra {dra.value}" if own else f"fallback.dra: {dra.value}"
    if dra is Dra.FIRST_AVAILABLE:
        yield f"requests become claims, and the scheduler falls back ({who})"
    elif dra is Dra.OFF:
        yield f"what DRA offers does not count ({who})"


def _quotas(pod: Pod, view: ClusterView, policy: FallbackPolicy) -> Iterator[str]:
    quotas = view.quotas.get(pod.namespace, ())
    if policy.respects_quota:
        yield from (f"replacements within the quota {one}" for one in quotas)
    elif quotas:
        yield "quotas do not matter (fallback.quota: ignore)"
