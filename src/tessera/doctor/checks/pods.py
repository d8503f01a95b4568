"""Checks of pods: what they ask for exists, none is refused, and why some wait.

Why a pod waits is the diagnosis' answer (`tessera.diagnosis`), the same that `tessera why` gives; here pods with the same answer
become one finding.
"""

from collections.abc import Collection, Iterator
from typing import Final

from tessera.core.text import first_of
from tessera.diagnosis.evidence import SeenPod
from tessera.diagnosis.nodes import Lack
from tessera.diagnosis.reading import KINDS
from tessera.diagnosis.waiting import Cause, WaitReason
from tessera.doctor.findings import MOST_ALIKE, Finding, Severity, not_applicable, problem, short
from tessera.doctor.observations import FailedCreate, Observations
from tessera.protocol.kubernetes.controllers import RECENT, denial_in

_MOST_NAMED: Final = 3  # pods in one sentence
# Controllers that make a pod again when it is deleted, and lose nothing by it. A Job is not one of them: a pod that is
# deleted counts as failed, and its other pods may end with it.
_REPLACING: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet"})
# nothing that ends or recovers by itself brings what these pods ask for
_NOT_OFFERED: Final = frozenset(
    {"class-missing", "no-devices", Lack.MISSING, Lack.TOO_FEW, Cause.POLICY, Cause.OBSERVED}
)


def offers(seen: Observations) -> Iterator[Finding]:
    for why, pods, example in _waiting(seen, offered=False):
        yield _finding(Severity.PROBLEM, why, pods, example, *_created_again(pods))


def pending(seen: Observations) -> Iterator[Finding]:
    for why, pods, example in _waiting(seen, offered=True):
        severity = Severity.NOTE if why.cause == Cause.GATED else Severity.WARNING
        yield _finding(severity, why, pods, example, "tessera capacity")


def _waiting(seen: Observations, *, offered: bool) -> Iterator[tuple[WaitReason, list[SeenPod], bool]]:
    """The pods that wait for what some node offers, or for what none does; those with the same answer together.

    Where pods that ask for the same have many answers, they are together too: the first answer is an example then.
    """
    found: dict[tuple[str, str], dict[str, tuple[WaitReason, list[SeenPod]]]] = {}
    for one, why in seen.waiting:
        # of those that wait for GPUs, for what was meant to be one, or with claims that cannot be served
        if (why.cause in _NOT_OFFERED) is not offered and (why.request.gpus or why.obstacle):
            answers = found.setdefault((why.cause, why.wanted), {})
            answers.setdefault(why.answer, (why, []))[1].append(one)
    for answers in found.values():
        if len(answers) <= MOST_ALIKE:
            yield from ((why, pods, False) for why, pods in answers.values())
        else:
            first, *_ = answers.values()
            yield first[0], [one for _, pods in answers.values() for one in pods], True


def _finding(
    severity: Severity, why: WaitReason, pods: list[SeenPod], example: bool, *commands: str
) -> Finding:
    first = pods[0].pod
    who = f"pod {first.namespace}/{first.name} waits" if len(pods) == 1 else _some(pods)
    such_as = f", such as {first.namespace}/{first.name}" if example else ""
    text = f"{who}{such_as}: {short(why.answer)}"
    return Finding(severity, text, (f"tessera why {first.name} -n {first.namespace}", *commands))


def _some(pods: list[SeenPod]) -> str:
    """`12 pods in 3 namespaces wait (team/a, team/b, other/c and 9 more)`."""
    names = [f"{one.pod.namespace}/{one.pod.name}" for one in pods]
    spaces = len({one.pod.namespace for one in pods})
    where = f" in {spaces} namespaces" if spaces > 1 else ""
    return f"{len(names)} pods{where} wait ({first_of(names, _MOST_NAMED)})"


def _created_again(pods: Collection[SeenPod]) -> Iterator[str]:
    """What has the webhook decide again, where that costs nothing: a controller makes the pod again."""
    for one in pods:
        controller = one.state.metadata.controller
        if controller and controller.kind in _REPLACING:
            yield (
                f"kubectl delete pod -n {one.pod.namespace} {one.pod.name}   "
                f"# it never ran; {controller.kind} {controller.name} makes it again, and the webhook decides"
            )
            return


def refused(seen: Observations) -> Iterator[Finding]:
    names = [webhook.name for webhook in seen.webhooks]
    if not names:
        yield not_applicable("no webhook is configured")
    reported = set()
    for refusal in seen.refusals:
        event = refusal.event
        about = event.involved_object
        denial, key = denial_in(event.message), (about.kind, about.namespace, about.name)
        if denial and denial.webhook in names and key not in reported and not _is_over(refusal, seen.now):
            reported.add(key)
            kind = about.kind.lower()
            why = f"tessera why {kind}/{about.name} -n {about.namespace}"
            yield problem(
                f"{about.kind} {about.namespace}/{about.name} cannot create pods, the webhook rejects them: "
                f"{short(denial.reason)}",
                *((why,) if kind in KINDS else ()),
                f"kubectl describe {kind} -n {about.namespace} {about.name}",
            )


def _is_over(refusal: FailedCreate, now: float) -> bool:
    """Whether it is history: the controller is gone, wants no more pods than it has, or has long stopped trying."""
    last = refusal.event.last_seen
    owner = refusal.owner
    if refusal.gone or (last is not None and now - last > RECENT):
        return True
    counts = refusal.event.involved_object.kind in ("ReplicaSet", "ReplicationController", "StatefulSet")
    return owner is not None and (
        owner.metadata.deletion_timestamp is not None or (counts and owner.status.replicas >= owner.wanted)
    )
