"""Pods that wait for a node, as patience looks at them: why one is left alone, and what will become of it.

A pod may be left alone for what it is, for its owner, its namespace, its Job, or an autoscaler; or since the webhook may
not decide about its successor.

What an eviction costs a Job was found out on Kubernetes 1.36.3 and 1.37.1 (e2e/test_patience.py,
`test_what_an_eviction_costs_a_job`):

- A pod of a Job without a podFailurePolicy counts as failed as soon as it is being deleted, whatever its phase. It costs
  one of `backoffLimit` (with `podReplacementPolicy: Failed`, too, once the pod garbage collector has marked it failed),
  and one of its index with `backoffLimitPerIndex`.
- With a podFailurePolicy the first rule that matches holds. The Eviction API gives the pod the condition DisruptionTarget
  before it deletes it. So where the first rule that matches such a pod says Ignore, the Job makes it again and counts
  nothing, with indexes too.

So only these Jobs' pods are evicted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from tessera.core.admission import limits
from tessera.core.admission.decision import why_exempt
from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.moves import Move, move_of
from tessera.core.admission.policy import PATIENCE_ANNOTATION, Mode, Policy, mode_in, patience_of
from tessera.core.admission.view.view import ClusterView
from tessera.core.devices.followed import is_small_place, kept_resources, place_bytes
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.blocked import Block
from tessera.core.kubernetes.pod import DEFAULT_SCHEDULERS, Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.core.requests.record import DECIDED_ANNOTATION, Mark, asked_of, mark_of
from tessera.core.text import duration
from tessera.diagnosis.patience.history import Doubt, doubting
from tessera.kube.watch.table import Key, read_key
from tessera.protocol.kubernetes.controllers import EventIn, decode_workload
from tessera.protocol.kubernetes.lean_pod import QUEUE_LABEL, decode_lean_pod, pod_of
from tessera.protocol.kubernetes.objects import OwnerReference
from tessera.protocol.kubernetes.pod import PodIn, decode_pod

if TYPE_CHECKING:
    from tessera.diagnosis.evidence import Evidence, SeenPod

_GPUS: Final = b"nvidia.com/"
_LONGEST_TEXT: Final = 8 * 1024  # characters of an annotation: what the webhook writes is not longer
_LONGEST_NAME: Final = 253  # characters of an object's name; an owner reference may say anything
_MOST_TEXT: Final = 32 * 1024  # bytes of containers and annotations that are kept of one pod
_EACH: Final = 100  # bytes of an amount or a text, besides its characters

# Those who place pods together, by the domains of the labels and annotations that their pods have; a pod of theirs that comes again alone may
# cost all others their places. Ray, Spark and others own their pods themselves: their kind is not among `REMAKERS`.
_GANGS: Final = (
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "volcano.sh/",
    "scheduling.volcano.sh/",
    "scheduling.k8s.io/group-name",  # Volcano's and kube-batch's
    "training.kubeflow.org/",  # MPI and others
    "scheduling.x-k8s.io/pod-group",  # the coscheduling plugin
    "pod-group.scheduling.sigs.k8s.io",
)
_KUEUE: Final = "kueue.x-k8s.io/"

# Who makes a pod again as it was first sent. Others may take its end for a failure, or make it from something that changed: they are left alone.
REMAKERS: Final = frozenset(
    {("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("", "ReplicationController"), ("batch", "Job")}
)


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of a pod."""

    group: str
    kind: str
    name: str
    uid: str

    @property
    def remakes(self) -> bool:
        """Whether it makes a pod again that is gone, as the webhook first saw it."""
        return (self.group, self.kind) in REMAKERS

    @property
    def is_job(self) -> bool:
        return (self.group, self.kind) == ("batch", "Job")


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod without a node; only its key where it asks for no GPUs."""

    key: Key
    uid: str = ""
    version: str = ""
    generate_name: str = ""
    created: float = 0.0  # Unix time
    since: float | None = None  # when the scheduler first called it unschedulable; None: it did not
    owner: Owner | None = None
    left_alone: str = ""  # why it is not evicted whatever is free, in one word; empty: it may be
    conditions: tuple[tuple[str, str], ...] = ()  # type and status: a Job may have rules about them
    pod: Pod | None = None
    spec_digest: bytes = b""  # equal for pods of equal specs, as far as decisions read these

    @property
    def is_marked(self) -> bool:
        """Whether the webhook has decided about it by what was free."""
        return self.pod is not None and mark_of(self.pod) is not Mark.NONE

    @property
    def gpus(self) -> Mapping[str, Mapping[str, int]]:
        """The GPUs that its containers ask for now."""
        return {} if self.pod is None else asked_of(self.pod)

    @classmethod
    def read_waiting(cls, raw: bytes) -> "PendingPod | None":
        """A pod from its JSON; None where it asks for no GPUs, has a node, or will not get one."""
        if _GPUS not in raw:
            return None
        one = decode_pod(raw)
        waits = not one.spec.node_name and one.status.phase == "Pending"
        return cls.read(raw) if waits else None

    @classmethod
    def read(cls, raw: bytes, decoded: PodIn | None = None) -> "PendingPod":
        """A pod from its JSON; `decoded`: the same, where someone has decoded it before."""
        if _GPUS not in raw:
            return cls(read_key(raw))
        one = decoded or decode_pod(raw)
        metadata, status, scheduled = one.metadata, one.status, one.status.condition("PodScheduled")
        pod = pod_of(one)
        left_alone = _left_alone(one, pod)
        if any(len(text) > _LONGEST_TEXT for text in pod.annotations.values()):
            pod = replace(pod, annotations=_short_ones(pod.annotations))
        pending = cls(
            read_key(raw),
            metadata.uid,
            metadata.resource_version,
            metadata.generate_name,
            metadata.created or 0.0,
            scheduled.since if scheduled.is_unschedulable else None,
            _owner(metadata.controller),
            left_alone,
            tuple((each.type, each.status) for each in status.conditions or ()),
            pod,
            blake2b(msgspec.json.encode(decode_lean_pod(raw).spec), digest_size=16).digest(),
        )
        return pending if _is_small(pod) else pending.without_spec()

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep what decisions read of the pod."""
        return 0 if self.pod is None else _text_bytes(self.pod) + place_bytes(self.pod)

    def without_spec(self) -> "PendingPod":
        """The same pod, of which no decision is made."""
        if self.pod is None:
            return self
        asked = {name: text for name, text in self.pod.annotations.items() if name == PATIENCE_ANNOTATION}
        pod = Pod(namespace=self.pod.namespace, name=self.pod.name, annotations=asked)
        return replace(self, left_alone="large", pod=pod)


def _owner(found: OwnerReference | None) -> Owner | None:
    if found is None:
        return None
    group, slash, _ = found.api_version.partition("/")
    texts = (group if slash else "", found.kind, found.name, found.uid)
    return Owner(*(text[:_LONGEST_NAME] for text in texts))


def _short_ones(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations that decisions may read: none of those is longer."""
    return {name: text for name, text in annotations.items() if len(text) <= _LONGEST_TEXT}


def _is_small(pod: Pod) -> bool:
    """Whether all that decisions read of a pod is kept. Its author can write a megabyte, and thousands wait."""
    try:
        limits.check(pod)
    except BeyondLimits:
        return False
    resources = set().union(*_sections(pod), pod.pod_requests, pod.pod_limits, pod.overhead)
    are_all_kept = len(kept_resources(resources)) == len(resources)
    return _text_bytes(pod) <= _MOST_TEXT and are_all_kept and is_small_place(pod)


def _sections(pod: Pod) -> list[Mapping[str, Quantity]]:
    return [part for container in pod.all_containers() for part in (container.requests, container.limits)]


def _text_bytes(pod: Pod) -> int:
    """About how many bytes it takes to keep a pod's containers and annotations."""
    sections = _sections(pod)
    texts = (*pod.annotations, *pod.annotations.values(), *pod.claims, pod.scheduler)
    return sum(map(len, texts)) + _EACH * (len(texts) + len(sections) + sum(map(len, sections)))


def _left_alone(one: PodIn, pod: Pod) -> str:
    """Why a pod is left alone; the one table of it."""
    keys = {*(one.metadata.labels or ()), *pod.annotations}
    reasons = {
        "deleted": one.metadata.deletion_timestamp is not None,
        "started": bool(one.spec.node_name or one.status.start_time or one.status.container_statuses),
        "gated": pod.gated,
        "nominated": bool(one.status.nominated_node_name),  # a place is being made for it
        "scheduler": pod.scheduler not in DEFAULT_SCHEDULERS,
        "template": DECIDED_ANNOTATION in pod.annotations,  # it comes again as it is
        "claim": ALTERNATIVES_ANNOTATION in pod.annotations,  # the scheduler chooses itself
        "kueue": pod.queued or _any_begins(keys, (_KUEUE,)),
        "gang": one.spec.scheduling_group is not None or _any_begins(keys, _GANGS),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _any_begins(keys: Iterable[str], domains: tuple[str, ...]) -> bool:
    return any(key.startswith(domains) for key in keys)


_EVICTED: Final = ("DisruptionTarget", "True")  # the condition that the Eviction API gives a pod


@dataclass(frozen=True, slots=True)
class Job:
    """A Job, and its rules about conditions of its pods: what a pod has, by type and status, and what is done then."""

    uid: str
    rules: tuple[tuple[tuple[tuple[str, str], ...], str], ...] = ()
    stands_aside: bool = False  # it is suspended or being deleted, or Kueue manages it

    @classmethod
    def read(cls, raw: bytes) -> "Job":
        one = decode_workload(raw)
        policy = one.spec.pod_failure_policy
        rules = tuple(
            (tuple((each.type, each.status) for each in rule.on_pod_conditions), rule.action)
            for rule in (policy.rules if policy else None) or ()
            if rule.on_pod_conditions
        )
        aside = one.spec.suspend or one.metadata.deletion_timestamp is not None
        return cls(one.metadata.uid, rules, aside or QUEUE_LABEL in (one.metadata.labels or {}))

    def is_free(self, conditions: Iterable[tuple[str, str]]) -> bool:
        """Whether evicting a pod with these conditions costs no retry."""
        has = {*conditions, _EVICTED}
        action = next((action for wanted, action in self.rules if not has.isdisjoint(wanted)), "")
        return action == "Ignore" and not self.stands_aside


# What autoscalers say on a pod for which they bring a node: the cluster-autoscaler, and Karpenter
_SCALES_UP: Final = frozenset({"TriggeredScaleUp", "Nominated"})
# Seconds after which they have given up: the cluster-autoscaler's --max-node-provision-time, and Karpenter's time to register
_SCALE_UP_SECONDS: Final = 900.0

WORDS: Final[Mapping[str, str]] = {
    "deleted": "it is being deleted",
    "started": "it has a node, or had one",
    "gated": "a controller must remove its scheduling gates first",
    "nominated": "the scheduler is making a place for it (status.nominatedNodeName)",
    "scheduler": "it names another scheduler",
    "template": "it was decided about with its workload's template, and would come again as it is",
    "claim": "its request became a claim, and the scheduler chooses itself",
    "kueue": "Kueue counts what it asks for",
    "gang": "it belongs to a group of pods that are placed together",
    "large": "it asks for more different things than are kept of one pod",
    "blocked": "it waits for something else: a free device was in reach and it did not get it, or the scheduler does not look at it",
    "bare": "no controller makes it again",
    "owner": "its controller may take the end of a pod for a failure",
    "exempt": "the webhook leaves it alone",
    "observed": "the webhook only observes in its namespace",
    "job": "its Job would count the eviction as a failure (its podFailurePolicy does not ignore DisruptionTarget), is suspended, or is Kueue's",
    "webhook": "a pod of its namespace came back without the webhook's decision",
    "elsewhere": "pods of two other namespaces came back without the webhook's decision",
    "scale_up": "an autoscaler brings a node for it",
}


def left_by_owner(pod: PendingPod) -> str:
    """Why a pod is left alone for the sake of who would make it again; empty: it is not."""
    if pod.owner is None:
        return "bare"
    return "" if pod.owner.remakes else "owner"


def left_by_namespace(pod: PendingPod, view: ClusterView, policy: Policy) -> str:
    """Why a pod is left alone where the webhook would not decide about its successor; empty: it is not."""
    if pod.pod is not None and why_exempt(pod.pod, view) is not None:
        return "exempt"
    namespace = view.namespaces.get(pod.key.namespace)
    return "observed" if mode_in(namespace, policy.mode) is Mode.OBSERVE else ""


def left_by_block(pod: PendingPod, view: ClusterView) -> str:
    """Why a pod is left alone that waits for something else than a device; empty: it is not."""
    block = view.free.block_of("/".join(pod.key)) if view.free is not None else None
    return "blocked" if block in (Block.IN_REACH, Block.SILENT) else ""


def left_by_doubt(pod: PendingPod, doubts: Mapping[str, Doubt], now: float) -> str:
    """Why a pod is left alone where its successor may come without the webhook's decision; empty: it is not.

    The times of the doubts are of the same clock as `now`.
    """
    doubt = doubts.get(pod.key.namespace)
    if doubt is not None and now < doubt.until:
        return "webhook"
    return "elsewhere" if doubting(doubts, now) else ""


def left_by_job(pod: PendingPod, job: Job | None) -> str:
    """Why a pod of a Job is left alone, if it is one's; the Job is None where it is gone."""
    if pod.owner is None or not pod.owner.is_job:
        return ""
    return "" if job is not None and job.is_free(pod.conditions) else "job"


def left_by_autoscaler(events: Iterable[EventIn], now: float) -> str:
    """Why a pod with these Events is left alone for an autoscaler; empty: it is not."""
    some = (one.last_seen or now for one in events if one.reason in _SCALES_UP)
    return "scale_up" if any(now - at < _SCALE_UP_SECONDS for at in some) else ""


def outlook(seen: "Evidence", one: "SeenPod") -> Iterator[str]:
    """What becomes of a pod without a node by its patience; nothing where nobody speaks of patience."""
    configured, namespace = seen.policy.fallback, seen.offers.namespaces.get(one.pod.namespace)
    pod = PendingPod.read(one.raw, one.state)
    if pod.pod is None:
        return
    try:
        patience = patience_of(one.pod, namespace, configured)
    except InvalidInput as error:
        yield f"not evicted: {error}"
        return
    said_by = "fallback.patience"
    if PATIENCE_ANNOTATION in one.pod.annotations:
        said_by = "the pod's annotation patience"
    elif namespace is not None and PATIENCE_ANNOTATION in namespace.annotations:
        said_by = f"the annotation patience of namespace {namespace.name}"
    elif configured.patience is None:
        return
    if patience is None:
        yield f"not evicted: {said_by} is off"
        return
    doubts = seen.history.doubts if seen.history else {}
    move = move_of(pod.pod, "/".join(pod.key), seen.offers.without(pod.pod), seen.policy)
    left = (
        pod.left_alone
        or left_by_owner(pod)
        or left_by_namespace(pod, seen.offers, seen.policy)
        or left_by_block(pod, seen.offers)
        or left_by_doubt(pod, doubts, seen.now)
        or left_by_job(pod, one.job)
        or left_by_autoscaler(one.events, seen.now)
    )
    if left:
        yield f"left alone: {WORDS[left]}"
        yield from _doubts(pod, left, doubts, seen.now)
        if left == "bare" and move is not None:
            yield f"{move.words}: delete it, and create it again as you first wrote it"
        return
    wait = seen.history.wait(pod.owner.uid, patience) if seen.history and pod.owner else patience
    said = f"{said_by}: {duration(patience)}"
    if wait > patience:
        said += f", {duration(wait)} by now: evictions did not help"
    yield _due(seen, pod, wait, said, move)


def _doubts(pod: PendingPod, left: str, doubts: Mapping[str, Doubt], now: float) -> Iterator[str]:
    """Which pods cast doubt on the webhook, and how long that counts, if a pod is left alone for it."""
    if left == "webhook":
        doubt = doubts[pod.key.namespace]
        ends = f"until one of them has the webhook's mark, or for {duration(doubt.until - now)}"
        yield f"pod {doubt.pod} came back without it; no pod of the namespace is evicted {ends}"
    elif left == "elsewhere":
        spaces = doubting(doubts, now)
        pods = ", ".join(f"{namespace}/{doubts[namespace].pod}" for namespace in sorted(spaces)[:2])
        longest = duration(sorted(doubts[namespace].counts_until for namespace in spaces)[-2] - now)
        ends = f"until one has the webhook's mark, or for {longest}"
        yield f"pods {pods} came back without it; no pod is evicted {ends}"


def _due(seen: "Evidence", pod: PendingPod, wait: float, said: str, move: Move | None) -> str:
    away = seen.presences.patience
    if away is not None and not away.at_work:
        return f"nobody evicts it: {away.words(seen.now)}"
    if pod.since is None:
        return f"not evicted: the scheduler has not called it unschedulable ({said})"
    due = pod.since + wait - seen.now
    when = f"in about {duration(due)}" if due >= 1 else "soon: 10 a minute at most, one of an owner at a time"
    if move is not None:
        return f"evicted and decided about again {when} ({said}): {move.words} now"
    known = "nothing else is free for it now" if seen.offers.free else "what is free could not be read"
    return f"evicted and decided about again {when}, if something else is free for it then ({said}); {known}"
