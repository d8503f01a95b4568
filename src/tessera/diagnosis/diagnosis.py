"""The answer: one line first, then admission's part, the scheduler's, the nodes', and what would make it run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tessera.core.admission import explanation
from tessera.core.admission.decision import Mode, Reject, Rewrite, decide, why_exempt
from tessera.core.admission.observe import mode_in, said_by
from tessera.core.devices.capacity import PODS
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.planning.program import Solver
from tessera.core.requests.asking import alternatives_of, asked
from tessera.core.requests.record import DECIDED_ANNOTATION, as_created, asked_first
from tessera.core.text import first_of
from tessera.diagnosis.devices import obstacle, standing_for
from tessera.diagnosis.evidence import Evidence, SeenPod
from tessera.diagnosis.nodes import Lack, NodeGroup, counted, gpus_of, groups_of, lacks_of, least_lacks
from tessera.diagnosis.remedies import (
    Holder,
    Remedy,
    by_end,
    by_enforcing,
    by_layout,
    by_mending,
    by_policy,
    by_quota,
    exceeded_in,
    holders_of,
)
from tessera.protocol.kubernetes.controllers import EventIn

_DENIED: Final = "denied the request: "
_MOST_NAMED: Final = 3
_ONE: Final = Quantity.parse("1")
_RECENT: Final = (
    1800.0  # seconds; controllers try again after 1000 s at the latest (client-go's rate limiter)
)


class Cause(StrEnum):
    """What it comes down to, in one word for programs; of a pod that waits it is what the nodes lack (`Lack`)."""

    RUNS = "runs"
    OVER = "over"
    ENDING = "ending"
    STARTS = "starts"
    REJECTED = "rejected"
    QUOTA = "quota"
    NOT_CREATED = "not-created"
    GATED = "gated"
    POLICY = "policy"
    OBSERVED = "observed"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why, in parts."""

    title: str
    cause: str
    answer: str  # one line
    admission: tuple[str, ...] = ()
    scheduler: tuple[str, ...] = ()
    nodes: tuple[NodeGroup, ...] = ()
    holders: tuple[Holder, ...] = ()
    remedies: tuple[Remedy, ...] = ()  # the smallest first
    unseen: Mapping[str, str] | None = None


def diagnose(seen: Evidence, solve: Solver) -> Diagnosis:
    """The answer to "why?"."""
    found = _diagnosed(seen, solve)
    return replace(found, unseen=dict(seen.unseen))


def _diagnosed(seen: Evidence, solve: Solver) -> Diagnosis:
    if seen.workload is not None and (ended := seen.workload.state.ended):
        return Diagnosis(seen.title, Cause.OVER, f"{seen.title} has ended ({ended})")
    refusal = _refusal(seen)
    if refusal is not None:
        return _not_created(seen, refusal)
    if seen.pod is None:
        wants = seen.workload.state.wanted if seen.workload else 0
        suspended = seen.workload is not None and seen.workload.state.spec.suspend
        why = (
            "it is suspended" if suspended
            else "it wants no pods" if not wants
            else "its controller has made no pod yet, and told no reason"
        )  # fmt: skip
        return Diagnosis(seen.title, Cause.NOT_CREATED, f"{seen.title} has no pods: {why}")
    return _of_pod(seen, seen.pod, solve)


# Pods that were never created


def _refusal(seen: Evidence) -> EventIn | None:
    """The latest word on why a workload that has too few pods gets no more."""
    workload = seen.workload
    if workload is None or workload.pods >= workload.state.wanted:
        return None
    found = [one for one in workload.events if one.reason == "FailedCreate"]
    recent = [one for one in found if not one.last_seen or seen.now - one.last_seen < _RECENT]
    return recent[-1] if recent else None


def _not_created(seen: Evidence, refusal: EventIn) -> Diagnosis:
    assert seen.workload is not None  # noqa: S101 # only a workload's pods are never created
    workload, pod, message = seen.workload, seen.workload.template, refusal.message
    have = f"{workload.pods} of {workload.state.wanted} pods"
    admission = tuple(_admission(seen, pod))
    told = f"{refusal.involved_object.kind} {refusal.involved_object.name} was told: {message}"
    exceeded = exceeded_in(message)
    if exceeded is not None:
        words = ", ".join(
            f"{name}: {exceeded.used.get(name, '?')} of {exceeded.hard.get(name, '?')} used, each pod needs {text}"
            for name, text in exceeded.asked.items()
        )
        return Diagnosis(
            seen.title,
            Cause.QUOTA,
            f"{seen.title} has {have}: quota {exceeded.quota} is exceeded ({words})",
            (*admission, told),
            remedies=tuple(by_quota(exceeded, pod.namespace)),
        )
    if _DENIED in message and "admission webhook" in message:
        reason = message.partition(_DENIED)[2]
        now = decide(pod, seen.offers, seen.policy)
        remedies = list(by_policy(pod, seen.offers, seen.policy)) if isinstance(now, Reject) else []
        if not isinstance(now, Reject):
            text = f"nothing more: by now it is admitted ({now.reason}), and its controller tries again"
            remedies = [Remedy("wait", text)]
        return Diagnosis(
            seen.title,
            Cause.REJECTED,
            f"{seen.title} has {have}: the webhook rejects them: {reason}",
            admission,
            remedies=tuple(remedies),
        )
    return Diagnosis(
        seen.title,
        Cause.NOT_CREATED,
        f"{seen.title} has {have}: they cannot be created: {message}",
        (*admission, told),
    )


# Pods that are there


def _of_pod(seen: Evidence, one: SeenPod, solve: Solver) -> Diagnosis:
    status, node = one.state.status, one.pod.node_name
    admission = tuple(_admission(seen, one.pod, one.use.record))
    title = one.name if seen.workload is None else f"{seen.title}: {one.name}"
    got = f" with {counted(gpus)}" if (gpus := gpus_of(one.use.amounts or asked(one.pod))) else ""
    fell = f" (asked for {asked_first(one.use.record)})" if one.use.record else ""

    def plainly(cause: Cause, text: str) -> Diagnosis:
        return Diagnosis(seen.title, cause, f"{title} {text}", admission, tuple(_words(one)))

    if one.state.metadata.deletion_timestamp:
        return plainly(Cause.ENDING, f"is ending{f' on node {node}' if node else ''}")
    if status.phase in ("Succeeded", "Failed"):
        told = status.message or status.reason
        return plainly(Cause.OVER, f"has ended ({status.phase}{f': {told}' if told else ''})")
    if node:
        waiting = status.waiting
        if waiting is not None:
            told = f"{waiting.reason}{f': {waiting.message}' if waiting.message else ''}"
            return plainly(Cause.STARTS, f"has node {node}{got}{fell}, and a container waits: {told}")
        if status.phase == "Pending":
            events = [event for event in one.events if event.type == "Warning"]
            told = f": {events[-1].message}" if events else ""
            return plainly(Cause.STARTS, f"has node {node}{got}{fell} and starts{told}")
        return plainly(Cause.RUNS, f"runs on node {node}{got}{fell}")
    gates = [gate.name for gate in one.state.spec.scheduling_gates or ()]
    if gates:
        return plainly(
            Cause.GATED, f"waits for {', '.join(gates)} to let the scheduler look at it (a scheduling gate)"
        )
    return _waits(seen, one, title, admission, solve)


def _waits(seen: Evidence, one: SeenPod, title: str, admission: tuple[str, ...], solve: Solver) -> Diagnosis:
    choices = _choices(one.pod)
    asks = choices[0]
    wanted = ", else ".join(text for one in choices if (text := counted(gpus_of(one)))) or "what it asks for"
    words = tuple(_words(one))
    if (blocked := obstacle(seen.devices)) is not None:
        mend = Remedy("mend", blocked.mended, (blocked.command,))
        return Diagnosis(
            seen.title, blocked.cause, f"{title} waits: {blocked.answer}", admission, words, remedies=(mend,)
        )
    if "nodes" in seen.unseen:
        told = one.state.status.condition("PodScheduled").message
        said = f"the scheduler says: {told}" if told else "the nodes could not be looked at"
        return Diagnosis(seen.title, Cause.UNSEEN, f"{title} waits: {said}", admission, words)
    groups = groups_of(least_lacks(lacks_of(seen, one.pod, choice) for choice in choices))
    lack = groups[0].lack if groups else Lack.MISSING
    first = [group for group in groups if group.lack is lack]
    taken = tuple(name for group in groups if group.lack is Lack.TAKEN for name in group.nodes)
    remedies: list[Remedy] = [*by_mending(first)]
    original = as_created(one.pod)
    observes = _observes(seen, one.pod)
    if lack in (Lack.MISSING, Lack.TOO_FEW, Lack.CLOSED, Lack.LAYOUT_FAILED):
        policies = by_enforcing if observes else by_policy
        remedies += policies(original, seen.offers, seen.policy)
    if lack not in (Lack.NOTHING, Lack.OTHER, Lack.AWAY, Lack.ILL):
        remedies += by_layout(seen, one.use, one.pod, solve)
    if taken:
        remedies += next(filter(None, (list(by_end(seen, choice, taken)) for choice in choices)), [])
    never = _never(seen, one.pod)
    cause: str = lack
    answer = _sentence(first, wanted, one)
    if lack in (Lack.MISSING, Lack.TOO_FEW):
        by_dra = [text for name in gpus_of(asks) if (text := standing_for(seen.devices, name))]
        if by_dra:
            answer = f"{answer}; {by_dra[0]}"
        elif never:
            cause, answer = Cause.POLICY, f"{answer}, and {never} lets it take nothing else"
        elif observes and remedies and remedies[0].kind == "policy":
            cause, answer = Cause.OBSERVED, f"{answer}, and the webhook only observes here ({observes})"
    return Diagnosis(
        seen.title,
        cause,
        f"{title} waits: {answer}",
        admission,
        words,
        groups,
        tuple(holders_of(seen, {name: 1 for choice in choices for name in gpus_of(choice)}, taken)),
        tuple(remedies),
    )


def _choices(pod: Pod) -> list[Amounts]:
    """What a pod asks for, best first: by a claim of the bridge, any of its alternatives."""
    first: Amounts = {**asked(pod), PODS: _ONE}
    claim = alternatives_of(pod)
    if claim is None:
        return [first]
    others = {resource: amount for resource, amount in first.items() if resource not in claim.devices()}
    return [
        {**others, **{resource: _ONE.with_value(number) for resource, number in choice.items()}}
        for choice in claim.choices()
    ]


def _sentence(groups: list[NodeGroup], wanted: str, one: SeenPod) -> str:
    """Why no node takes it, by the nodes that are nearest to it."""
    if not groups:
        return "there are no nodes"
    names = [name for group in groups for name in group.nodes]
    where = f"node {names[0]}" if len(names) == 1 else f"nodes {first_of(names, _MOST_NAMED)}"
    reason = groups[0].reason
    match groups[0].lack:
        case Lack.NOTHING:
            told = one.state.status.condition("PodScheduled").message
            said = f"the scheduler says: {told}" if told else "the scheduler has not said anything yet"
            return (
                f"{where} has room for it, and {said}"
                if len(names) == 1
                else f"{where} have room for it, and {said}"
            )
        case Lack.AWAY:
            return f"the device plugin of {where} is away ({reason})"
        case Lack.ILL:
            return f"devices of {where} are ill ({reason})"
        case Lack.LAYOUT_PENDING:
            return f"{wanted} comes with a layout that {where} has not taken yet ({reason})"
        case Lack.LAYOUT_FAILED:
            return f"no node offers {wanted}, and the layout of {where} failed ({reason})"
        case Lack.OTHER:
            return f"{wanted} is free on {where}, but not all else that it asks for ({reason})"
        case Lack.TAKEN:
            return f"{wanted} is taken on {where} ({reason})"
        case Lack.CLOSED:
            return f"{wanted} is only on {where}, not for this pod ({reason})"
        case Lack.UNKNOWN:
            told = one.state.status.condition("PodScheduled").message
            return f"who holds {wanted} could not be read; the scheduler says: {told or 'nothing yet'}"
        case Lack.TOO_FEW:
            return f"no node has {wanted} together ({reason} on {where})"
        case _:
            return f"no node offers {wanted}"


# Admission's part


def _admission(seen: Evidence, pod: Pod, record: str = "") -> Iterator[str]:
    """What it asked for, what it was given, and what decides that now."""
    original = as_created(pod)
    exempt = why_exempt(pod, seen.offers)
    if record:
        yield f"changed when it was created: {record.replace('->', ' → ')}"
    if (claim := alternatives_of(pod)) is not None:
        yield f"its request became a claim when it was created: {claim.words}"
    for container, what in explanation.asked(original):
        yield f"asks for {what} (container {container})"
    if exempt is not None:
        yield f"the webhook leaves it alone: {exempt}"
        return
    if not explanation.asked(original):
        return
    yield from (f"rule: {rule}" for rule in explanation.rules(original, seen.offers, seen.policy))
    observes = _observes(seen, pod)
    if observes:
        yield f"the webhook only observes here ({observes}): it tells what it would do, and changes nothing"
    now = "enforced, it" if observes else "created now it"
    decision = decide(original, seen.offers, seen.policy)
    match decision:
        case Reject():
            yield f"{now} would be rejected: {decision.message}"
        case Rewrite():
            yield f"{now} would be changed: {decision.reason}"
        case _:
            yield f"{now} would stay as it is: {decision.reason}"


def _observes(seen: Evidence, pod: Pod) -> str:
    """Who has the webhook observe where a pod is; empty where it acts."""
    if mode_in(pod.namespace, seen.offers, seen.policy) is not Mode.OBSERVE:
        return ""
    return said_by(pod.namespace, seen.offers)


def _never(seen: Evidence, pod: Pod) -> str:
    if DECIDED_ANNOTATION in pod.annotations:
        return "what was decided when its workload was created"
    rules = explanation.rules(pod, seen.offers, seen.policy)
    return next((rule for rule in rules if "fallback-policy never" in rule), "")


# The scheduler's part


def _words(one: SeenPod) -> Iterator[str]:
    """What the scheduler and the kubelet said, the latest last; each thing once."""
    scheduled = one.state.status.condition("PodScheduled")
    if scheduled.status == "False" and scheduled.message:
        yield f"{scheduled.reason or 'PodScheduled'}: {scheduled.message}"
    told = dict.fromkeys(
        f"{event.reason}: {event.message}" for event in one.events if event.type == "Warning"
    )
    yield from (words for words in told if not scheduled.message or scheduled.message not in words)
