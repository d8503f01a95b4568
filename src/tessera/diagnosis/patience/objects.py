"""Pods that wait for a node, as patience looks at them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

import msgspec

from tessera.core.admission import limits
from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.policy import PATIENCE_ANNOTATION
from tessera.core.devices.followed import is_small_place, kept_resources
from tessera.core.kubernetes.pod import DEFAULT_SCHEDULERS, Pod
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.core.requests.record import DECIDED_ANNOTATION, Mark, asked_of, mark_of
from tessera.kube.watch.table import Key, read_key
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.objects import OwnerReference
from tessera.protocol.kubernetes.pod import PodIn, decode_pod

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
    def read_waiting(cls, raw: bytes) -> "PendingPod":
        """A pod from its JSON; only its key as well where it has a node, or will not get one."""
        if _GPUS in raw:
            one = decode_pod(raw)
            if one.spec.node_name or one.status.phase != "Pending":
                return cls(read_key(raw))
        return cls.read(raw)

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
        if not _is_small(pod):
            left_alone = "large"
            asked = {name: text for name, text in pod.annotations.items() if name == PATIENCE_ANNOTATION}
            pod = Pod(namespace=pod.namespace, name=pod.name, annotations=asked)
        return cls(
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
    sections = [part for one in pod.all_containers() for part in (one.requests, one.limits)]
    resources = set().union(*sections, pod.pod_requests, pod.pod_limits, pod.overhead)
    texts = (*pod.annotations, *pod.annotations.values(), *pod.claims, pod.scheduler)
    size = sum(map(len, texts)) + _EACH * (len(texts) + len(sections) + sum(map(len, sections)))
    return size <= _MOST_TEXT and len(kept_resources(resources)) == len(resources) and is_small_place(pod)


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
