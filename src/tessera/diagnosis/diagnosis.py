"""The answer: one line first, then admission's part, the scheduler's, the nodes', and what would make it run."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tessera.core.admission.decision import UNMET, decide
from tessera.core.admission.outcome import Denied
from tessera.core.devices.capacity import pod_use
from tessera.core.dra.slices import DRIVER
from tessera.core.planning.program import Solver
from tessera.core.requests.asking import alternatives_of, asked
from tessera.core.requests.record import RECORD_ANNOTATION, asked_first
from tessera.core.text import age
from tessera.diagnosis.admission import (
    admission_of,
    by_controller,
    by_creating_again,
    by_enforcing,
    by_moving,
    by_policy,
    by_quota,
    exceeded_in,
    who_observes,
)
from tessera.diagnosis.devices import on_start
from tessera.diagnosis.evidence import Evidence, SeenPod, SeenWorkload, Target
from tessera.diagnosis.nodes import Lack, NodeGroup, counted, gpus_of, groups_of, request_of
from tessera.diagnosis.patience.pending_pods import outlook
from tessera.diagnosis.remedies import Holder, by_layout, holders_of, on_nodes, unknown_layouts
from tessera.diagnosis.remedy import Remedy, repaired
from tessera.diagnosis.waiting import Cause, WaitingPods, WaitReason
from tessera.inventory.presence import Presence
from tessera.kube.watch.table import Key
from tessera.protocol.kubernetes.controllers import EventIn, denial_in, latest_refusal
from tessera.protocol.kubernetes.objects import ObjectReference, seconds


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
    patience: tuple[str, ...] = ()  # what becomes of it when it waits for long
    unseen: Mapping[str, str] = field(default_factory=dict)


def diagnose(seen: Evidence, target: Target, solve: Solver) -> Diagnosis:
    found = _diagnosed(seen, target, solve)
    return replace(found, unseen={**seen.unseen, **found.unseen})


def _diagnosed(seen: Evidence, target: Target, solve: Solver) -> Diagnosis:
    title, workload = target.title, target.workload
    if workload is not None and (ended := workload.state.ended):
        return Diagnosis(title, Cause.OVER, f"{title} has ended ({ended})")
    if workload is not None and (refusal := _refusal(seen, workload)) is not None:
        return _not_created(seen, workload, refusal, solve)
    if target.pod is None:
        why = "its controller has made no pod yet, and reported no reason"
        if workload is None or not workload.state.wanted:
            why = "it wants no pods"
        if workload is not None and workload.state.spec.suspend:
            why = "it is suspended"
        return Diagnosis(title, Cause.NOT_CREATED, f"{title} has no pods: {why}")
    patience = tuple(outlook(seen, target.pod)) if target.pod.waits else ()
    return replace(_of_pod(seen, target, target.pod, solve), patience=patience)


def _refusal(seen: Evidence, workload: SeenWorkload) -> EventIn | None:
    """Why a workload that has too few pods gets no more: the latest event, else its condition."""
    if workload.pods >= workload.state.wanted:
        return None
    if (found := latest_refusal(workload.events, seen.now)) is not None or not workload.state.failure:
        return found
    kind, _, name = workload.title.partition(" ")
    about = ObjectReference(kind, name.rpartition("/")[2])
    return EventIn(involved_object=about, message=workload.state.failure)


def _not_created(seen: Evidence, workload: SeenWorkload, refusal: EventIn, solve: Solver) -> Diagnosis:
    title, pod, message = workload.title, workload.template, refusal.message
    have = f"{workload.pods} of {workload.state.wanted} pods"
    admission = tuple(admission_of(seen, pod, pod))
    exceeded = exceeded_in(message)
    if exceeded is not None:
        words = ", ".join(
            f"{name}: {exceeded.used.get(name, '?')} of {exceeded.hard.get(name, '?')} used, each pod needs {text}"
            for name, text in exceeded.asked.items()
        )
        answer = f"{title} has {have}: quota {exceeded.quota} is exceeded ({words})"
        about, remedies = refusal.involved_object, tuple(by_quota(exceeded, pod.namespace))
        told = f"{about.kind} {about.name} was told: {message}"
        return Diagnosis(title, Cause.QUOTA, answer, (*admission, told), remedies=remedies)
    if (denial := denial_in(message)) is not None and denial.is_ours:
        reason, uncertain = denial.reason, dict[str, str]()
        now = decide(pod, seen.offers, seen.policy)
        if isinstance(now, Denied):
            if now.message.startswith(
                reason.removesuffix(" …")
            ):  # of a long message an Event keeps the beginning
                reason = now.message
            remedies = tuple(by_policy(seen, pod))
            if now.code in UNMET:  # else no layout gets it admitted
                layouts = tuple(by_layout(seen, pod, pod_use(pod, "Pending"), solve))
                remedies += layouts
                uncertain = {} if layouts else unknown_layouts(seen, request_of(pod))
            same = f"would be rejected: {reason}"  # which is the answer
            admission = tuple(
                line.replace(same, "would be rejected for the same reason") for line in admission
            )
        else:
            text = f"nothing more: by now it is admitted ({now.reason}), and its controller tries again"
            remedies = (Remedy("wait", text),)
        answer = f"{title} has {have}: the webhook rejects them: {reason}"
        return Diagnosis(title, Cause.REJECTED, answer, admission, remedies=remedies, unseen=uncertain)
    answer = f"{title} has {have}: they cannot be created: {message}"
    failed = Diagnosis(title, Cause.NOT_CREATED, answer, admission)
    webhook = seen.presences.webhook if "failed calling webhook" in message else None
    return failed if webhook is None else _with_part(seen, failed, webhook)


def _of_pod(seen: Evidence, target: Target, one: SeenPod, solve: Solver) -> Diagnosis:
    judge, seen = WaitingPods(seen), replace(seen, offers=seen.offers.without(one.pod))
    status, node = one.state.status, one.pod.node_name
    drivers = seen.inventory.dra.drivers_of(Key(one.pod.namespace, one.pod.name))
    title = one.name if target.workload is None else f"{target.title}: {one.name}"
    found = Diagnosis(
        target.title, "", "", tuple(admission_of(seen, one.pod, one.created)), tuple(_words(one))
    )
    got = f" with {counted(gpus)}" if (gpus := gpus_of(asked(one.pod))) else ""
    record = one.pod.annotations.get(RECORD_ANNOTATION, "")
    got += f" (asked for {asked_first(record)})" if record else ""

    def plainly(cause: Cause, text: str) -> Diagnosis:
        plain = replace(found, cause=cause, answer=f"{title} {text}")
        own = cause in (Cause.STARTS, Cause.ENDING) and DRIVER in drivers
        driver = seen.presences.drivers.get(node) if own else None
        return plain if driver is None else _with_part(seen, plain, driver)

    if one.state.metadata.deletion_timestamp:
        return plainly(Cause.ENDING, f"is ending{_ends(seen, one, drivers)}")
    if status.ended:
        told = status.message or status.reason
        return plainly(Cause.OVER, f"has ended ({status.phase}{f': {told}' if told else ''})")
    if not node:
        return _waits(seen, one, judge.why(one), title, found, solve)
    if (waiting := status.waiting) is not None:
        told = f"{waiting.reason}{f': {waiting.message}' if waiting.message else ''}"
        starts = plainly(Cause.STARTS, f"has node {node}{got}, and a container waits: {told}")
        return replace(starts, remedies=(*starts.remedies, *on_start(node, told)))
    if status.phase == "Pending":
        events = [event for event in one.events if event.type == "Warning"]
        told = f": {events[-1].message}" if events else ""
        starts = plainly(Cause.STARTS, f"has node {node}{got} and starts{told}")
        return replace(starts, remedies=(*starts.remedies, *on_start(node, told)))
    return plainly(Cause.RUNS, f"runs on node {node}{got}")


def _ends(seen: Evidence, one: SeenPod, drivers: Collection[str]) -> str:
    """Where a pod that is to be deleted still is, and what it waits for."""
    metadata, node = one.state.metadata, one.pod.node_name
    if metadata.finalizers and (not node or one.state.status.ended):
        return f": a controller must remove its finalizer {', '.join(metadata.finalizers)}"
    if not node:
        return ""
    over = seconds(metadata.deletion_timestamp) or seen.now  # the time of the deletion, and the grace period
    if over > seen.now:
        return f" on node {node}: its containers have {int(over - seen.now)} s left to end"
    text = f" on node {node}: its containers' time has been over {age(seen.now, over)}, and the kubelet has not reported their end"
    found = seen.inventory.capacity.get(node)
    if found is not None and not found.ready:
        return f"{text}; the node is not ready"
    return text + (
        f"; it does so once driver {', '.join(sorted(drivers))} has released the pod's claim"
        if drivers
        else ""
    )


def _with_part(seen: Evidence, found: Diagnosis, part: Presence) -> Diagnosis:
    """The same; where a part of Tessera that it needs is unavailable, with that part."""
    if part.at_work:
        return found
    return replace(found, answer=f"{found.answer}; {part.words(seen.now)}", remedies=(repaired(part),))


def _waits(
    seen: Evidence, one: SeenPod, why: WaitReason, title: str, found: Diagnosis, solve: Solver
) -> Diagnosis:
    found = replace(found, cause=why.cause, answer=f"{title} waits: {why.answer}")
    if why.obstacle is not None:
        return replace(found, remedies=(Remedy("mend", why.obstacle.remedy, (why.obstacle.command,)),))
    if why.cause is Cause.SILENT:
        command = f"kubectl describe pod -n {one.pod.namespace} {one.pod.name}"
        return replace(found, remedies=(Remedy("mend", "what it waits for is there", (command,)),))
    if why.cause in (Cause.GATED, Cause.UNSEEN):
        return found
    request = why.request
    groups = groups_of(seen.nodes.lacks(request))
    lack = groups[0].lack if groups else Lack.MISSING
    taken = [group for group in groups if group.lack is Lack.TAKEN]
    remedies = list(why.repairs)
    if lack is not Lack.NOTHING and alternatives_of(one.pod) is None:
        remedies += by_controller(seen, one.created)
    if lack is not Lack.TAKEN:
        remedies += on_nodes(seen, request, [group for group in groups if group.lack is lack])
    if lack in (Lack.MISSING, Lack.TOO_FEW, Lack.CLOSED, Lack.LAYOUT_FAILED):
        if who_observes(seen, one.pod):
            remedies += by_enforcing(seen, one.created)
        else:
            remedies += [*by_creating_again(seen, one), *by_policy(seen, one.created)]
    elif lack in (Lack.TAKEN, Lack.OTHER):
        remedies += by_moving(seen, one)
    if lack not in (Lack.NOTHING, Lack.OTHER, Lack.PLUGIN_UNAVAILABLE, Lack.UNHEALTHY):
        use = pod_use(one.pod, one.state.status.phase)
        layouts = list(by_layout(seen, one.pod, use, solve))
        remedies += layouts
        found = replace(found, unseen={} if layouts else unknown_layouts(seen, request))
    remedies += on_nodes(seen, request, taken)[:1]
    holders = holders_of(seen, request.gpus, [name for group in taken for name in group.nodes])
    return replace(found, nodes=groups, holders=tuple(holders), remedies=tuple(remedies))


def _words(one: SeenPod) -> Iterator[str]:
    """What the scheduler and the kubelet said, the latest last; each thing once."""
    scheduled = one.state.status.condition("PodScheduled")
    if one.unscheduled:
        yield f"{scheduled.reason or 'PodScheduled'}: {one.unscheduled}"
    told = dict.fromkeys(
        f"{event.reason}: {event.message}" for event in one.events if event.type == "Warning"
    )
    yield from (words for words in told if not scheduled.message or scheduled.message not in words)
