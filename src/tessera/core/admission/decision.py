"""One pod, one decision: missing limits, then fallback, then injection, then one set of edits.

Each of these is a stage: it takes the pod as the stage before left it, and gives back the pod with what there is to
say about it, or rejects it. A pod that is bound to one node is never rejected, since its controller would stall: what
a stage would reject it for becomes a warning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tessera.core.admission import bridge, injection, limits
from tessera.core.admission.bridge import Converted, NotConverted
from tessera.core.admission.fallback import full
from tessera.core.admission.fallback.asking import ask, too_many_whole_gpus
from tessera.core.admission.fallback.found import AsAsked, Unmatched
from tessera.core.admission.fallback.full import Chosen
from tessera.core.admission.fallback.search import FallbackSearch
from tessera.core.admission.outcome import Allowed, Cause, Code, Decision, Denied, Momentary, Patched
from tessera.core.admission.policy import (
    MIRROR_ANNOTATION,
    Dra,
    FallbackPolicy,
    Policy,
    When,
    dra_in,
    when_of,
)
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import is_other
from tessera.core.kubernetes.pod import Pod, SetAnnotation, difference, needs
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, MOST_ALTERNATIVES, template_name
from tessera.core.requests.asking import asked_profiles, bad_count, complete_limits, misspelt, why_untouched
from tessera.core.requests.record import (
    DECIDED_ANNOTATION,
    MARK_ANNOTATION,
    RECORD_ANNOTATION,
    apply,
    mark_text,
    recorded,
    with_later_containers,
    with_record,
    written,
)
from tessera.core.resources import short
from tessera.core.text import cut_warning, quoted
from tessera.core.values import value

EXEMPT_LABEL: Final = ("gpu-webhook", "disabled")
# codes of pods that are rejected for what nodes offer: another layout may help them
UNMET: Final = frozenset({"not_offered", "quota"})


@value
class _Stage:
    """A pod as one stage leaves it, and what there is to say about that."""

    pod: Pod
    reason: str = ""
    warnings: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    gpu_type: str | None = None
    bridge: Converted | NotConverted | None = None  # what became of its request where it could be a claim
    unmet: bool = False  # no node offers what it asks for: it waits
    by: str = ""  # where `when: full` holds: `full`, or why what is free does not matter
    cause: Cause = "missing"  # of what is replaced


def decide(
    pod: Pod, view: ClusterView, policy: Policy, *, may_claim: bool = True, is_template: bool = False
) -> Decision:
    """Decide about one pod that is about to be created; `may_claim`: its request can become a claim."""
    exempt = why_exempt(pod, view)
    if exempt is not None:
        return Allowed(exempt)
    if _is_converted(pod):
        return Allowed("its request is a claim already")
    limits.check(pod)
    bad = bad_count(pod, policy.gpu_resources)
    if bad is not None:  # nothing can be computed with it, bound or not
        spared = _spared(Denied("bad_quantity", bad), pod)
        return spared if isinstance(spared, Denied) else _decided(pod, (spared,))
    complete = _complete(pod, policy)
    fallen = _fall_back(complete.pod, view, policy, may_claim=may_claim, is_template=is_template)
    fallen = _spared(fallen, complete.pod)
    if isinstance(fallen, Denied):
        return fallen
    injected = _spared(_inject(fallen.pod, view, policy), fallen.pod)
    if isinstance(injected, Denied):
        return replace(injected, by=fallen.by) if fallen.by else injected
    return _decided(pod, (fallen, complete, _claim(injected, fallen.bridge)))


def decide_template(template: Pod, view: ClusterView, policy: Policy) -> Decision:
    """Decide about a workload's pod template for all the pods that will be made from it: they keep the decision.

    Its request stays what it is: who reads templates, such as Kueue, counts extended resources and no alternatives.
    """
    decision = decide(template, view, policy, may_claim=False, is_template=True)
    if (
        isinstance(decision, Denied)
        or DECIDED_ANNOTATION in template.annotations
        or not asked_profiles(template)
        or why_exempt(template, view) is not None
    ):
        return decision
    marker = SetAnnotation(DECIDED_ANNOTATION, "template")
    if isinstance(decision, Allowed):
        return Patched((marker,), decision.reason, warnings=decision.warnings, audit=decision.audit)
    return replace(decision, edits=(*decision.edits, marker))


def why_exempt(pod: Pod, view: ClusterView) -> str | None:
    """Why nothing is decided about a pod; None when it is looked at."""
    if MIRROR_ANNOTATION in pod.annotations:
        return "a mirror pod: its kubelet runs it already"
    namespace = view.namespaces.get(pod.namespace)
    if namespace is not None and namespace.labels.get(EXEMPT_LABEL[0]) == EXEMPT_LABEL[1]:
        return f"namespace {pod.namespace} is exempt ({'='.join(EXEMPT_LABEL)})"
    return None


def _is_converted(pod: Pod) -> bool:
    """Whether a pod is the bridge's own work, come again: all that it asked for is in its claim."""
    text = pod.annotations.get(ALTERNATIVES_ANNOTATION)
    return text is not None and template_name(text) in pod.claims and not asked_profiles(pod)


def _spared(stage: _Stage | Denied, before: Pod) -> _Stage | Denied:
    """A pod that is bound to one node goes on as it was; any other is rejected."""
    if isinstance(stage, Denied) and before.bound_to:
        warning = f"bound to node {quoted(before.bound_to)}, so left as it is: {stage.message}"
        return _Stage(before, warning, (warning,), unmet=stage.code in UNMET)
    return stage


def _decided(pod: Pod, stages: Sequence[_Stage]) -> Decision:
    *_, last = stages
    replaced = tuple(pair for one in stages for pair in one.replaced)
    reason = "; ".join(one.reason for one in stages if one.reason) or why_untouched(pod)
    warnings = tuple(map(cut_warning, (*(words for one in stages for words in one.warnings), *misspelt(pod))))
    audit = {"fallback": written(replaced)} if replaced else {}
    if last.gpu_type is not None:
        audit["injection"] = last.gpu_type
    edits = tuple(difference(pod, last.pod))
    conversion = ""
    match next((one.bridge for one in stages if one.bridge is not None), None):
        case Converted() as bridged:
            edits, conversion = (*edits, *bridged.edits()), "claim"
            audit["claim"] = str(bridged.alternatives)
        case NotConverted() as kept:
            conversion = kept.skip_reason
    unmet = any(one.unmet for one in stages)
    by, cause, momentary = stages[0].by, stages[0].cause, None
    if by == "full":
        momentary = Momentary(last.pod, SetAnnotation(MARK_ANNOTATION, mark_text(last.pod)))
    if cause == "full":
        audit["fallback-reason"] = cause
    if not edits:
        return Allowed(reason, warnings, audit, conversion, unmet, by, momentary)
    return Patched(
        edits, reason, replaced, last.gpu_type, warnings, audit, conversion, unmet, by, momentary, cause
    )


# Missing limits


def _complete(pod: Pod, policy: Policy) -> _Stage:
    complete = complete_limits(pod, policy.gpu_resources)
    return _Stage(complete, "" if complete is pod else "limits added where a GPU request had none")


# Fallback


def _fall_back(
    pod: Pod, view: ClusterView, policy: Policy, *, may_claim: bool, is_template: bool
) -> _Stage | Denied:
    asked = asked_profiles(pod)
    if not policy.fallback.enabled:
        return _Stage(pod, "fallback is disabled" if asked else "")
    if not asked:
        return _Stage(pod, warnings=tuple(too_many_whole_gpus(pod, view, policy)))
    try:
        search = ask(pod, asked, view, policy)
        crossing = _bridge(pod, search, view, policy) if may_claim else None
        when = when_of(pod, view.namespaces.get(pod.namespace), policy.fallback)
    except InvalidInput as error:
        return Denied("bad_annotation", str(error))
    if isinstance(crossing, Converted):
        return _bridged(pod, crossing)
    if when is When.FULL:
        stage = _chosen(pod, full.choose(pod, search, view, policy, is_template=is_template), policy)
    else:
        stage = _chosen(pod, Chosen(search.choose()), policy)
    if crossing is None or isinstance(stage, Denied):
        return stage
    warnings = (
        (f"GPU request is not a claim: {crossing.why}",) if crossing.skip_reason == "controller_away" else ()
    )
    reason = f"{stage.reason}; no claim: {crossing.why}"
    return replace(stage, reason=reason, warnings=(*stage.warnings, *warnings), bridge=crossing)


def _chosen(pod: Pod, chosen: Chosen, policy: Policy) -> _Stage | Denied:
    outcome = chosen.found
    if isinstance(outcome, Unmatched):
        return _unmatched(pod, outcome, policy.fallback, chosen.by)
    if isinstance(outcome, AsAsked):
        return _Stage(with_later_containers(pod), chosen.as_asked, by=chosen.by)
    replaced = tuple((short(old), short(new)) for old, new in outcome.by.items())
    return _Stage(
        apply(pod, outcome.by, with_record(pod, replaced)),
        "; ".join(chosen.replaced.format(old, new) for old, new in replaced) + chosen.after,
        tuple(f"GPU fallback {old}->{new}: {chosen.why.format(old, new)}" for old, new in replaced),
        replaced,
        by=chosen.by,
        cause=chosen.cause,
    )


def _bridge(
    pod: Pod, search: FallbackSearch, view: ClusterView, policy: Policy
) -> Converted | NotConverted | None:
    """What the bridge says about a pod; None where there is none."""
    dra = dra_in(view.namespaces.get(pod.namespace), policy.fallback.dra)
    if dra is not Dra.FIRST_AVAILABLE:
        return None
    if any(new in search.asked for _, new in recorded(pod.annotations.get(RECORD_ANNOTATION, ""))):
        return NotConverted("replaced", "what it asks for was chosen at an earlier admission")
    return bridge.bridge(pod, search, view, policy.fallback)


def _bridged(pod: Pod, crossing: Converted) -> _Stage:
    """The pod as it came, since injection goes by what was asked, and the claim that its request will be."""
    words = {short(one.asked): one.words for one in crossing.alternatives.requests}
    warnings = [
        f"GPU request {asked} is a claim: {few}, the first that is free" for asked, few in words.items()
    ]
    warnings += [
        f"GPU request {short(asked)}: a claim has at most {MOST_ALTERNATIVES} alternatives, which leaves out {', '.join(map(short, beyond))}"
        for asked, beyond in crossing.cut
    ]
    reason = "; ".join(f"{asked} becomes a claim for {few}" for asked, few in words.items())
    return _Stage(pod, reason, tuple(warnings), bridge=crossing)


def _claim(stage: _Stage, crossing: Converted | NotConverted | None) -> _Stage:
    """The pod with its claim in place of what it asked for."""
    if not isinstance(crossing, Converted):
        return stage
    return replace(stage, pod=bridge.without_amounts(stage.pod, crossing))


def _unmatched(pod: Pod, outcome: Unmatched, policy: FallbackPolicy, by: str) -> _Stage | Denied:
    message = str(outcome)
    if outcome.never:
        why = outcome.never
    elif not policy.reject_unmatched:
        why = "the webhook admits unmatched pods"
    else:
        unmatched: Code = "quota" if outcome.over_quota else "not_offered"
        # what is free had no part in it
        return Denied("too_many_profiles" if outcome.too_many else unmatched, message)
    wanted = ", ".join(f"{short(one)} ×{count}" for one, count in outcome.asked)
    warning = f"no node offers {wanted} now; the pod waits as it is ({why})"
    return _Stage(pod, f"{message}; {why}", (warning,), unmet=True, by=by)


# Injection


def _inject(pod: Pod, view: ClusterView, policy: Policy) -> _Stage | Denied:
    outcome = injection.inject(pod, policy.injection)
    if isinstance(outcome, injection.Refused):
        return Denied(outcome.reason, outcome.message)
    if not isinstance(outcome, injection.Injected):
        return _Stage(pod, warnings=outcome.warnings)
    gpu_type, gpu = outcome.gpu_type, short(outcome.resource)
    reason = f"resources of GPU type {gpu_type} injected per {gpu}"
    if outcome.pod is pod:  # it was injected at an earlier admission
        reason = f"has the resources of GPU type {gpu_type} per {gpu} already"
    return _Stage(
        outcome.pod,
        reason,
        (*outcome.warnings, *_nowhere(pod, outcome.pod, view)),
        gpu_type=outcome.gpu_type,
    )


def _nowhere(before: Pod, after: Pod, view: ClusterView) -> Iterator[str]:
    """A word about injected resources that no node has: the pod would wait for ever, or until one comes."""
    nowhere = [resource for resource in needs(after, is_other) if not view.has_anywhere(resource)]
    had = needs(before, is_other) if nowhere else ()
    for resource in nowhere:
        if resource not in had:
            yield f"injected {resource}: no node has it now"
