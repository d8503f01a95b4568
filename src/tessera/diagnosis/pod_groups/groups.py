"""All pods that wait, in groups: pods of one owner that ask for the same have one answer.

A group keeps only its oldest pod. So thousands of pods that wait take as much memory as they have owners.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tessera.core.admission.policy import POLICY_ANNOTATION
from tessera.diagnosis.evidence import Evidence, SeenPod
from tessera.diagnosis.nodes import PodRequest, gpus_of, request_of
from tessera.diagnosis.waiting import WaitingPods

MOST_GROUPS: Final = 200  # that are explained: the others are counted
_MOST_KEPT: Final = 10_000  # groups of which a pod is kept


@dataclass(slots=True)
class PodGroup:
    """Pods of one owner that ask for the same, and the one of them that waits longest."""

    oldest: SeenPod
    request: PodRequest
    pods: int = 0

    def add(self, pod: SeenPod) -> None:
        """Count a pod."""
        self.pods += 1
        self.oldest = min(self.oldest, pod, key=_creation)

    @property
    def devices(self) -> dict[str, int]:
        """The GPUs that each pod asks for first."""
        return gpus_of(self.request.choices[0])

    @property
    def rank(self) -> tuple[int, str]:
        """The group that wants most devices comes first, then the one that waits longest."""
        return -self.pods * sum(self.devices.values()), _creation(self.oldest)


def _creation(pod: SeenPod) -> str:
    """When a pod was created, as the API writes it: later texts are later times."""
    return pod.state.metadata.creation_timestamp or ""


class PodGroups:
    """Sorts pods that wait into groups, one after the other."""

    def __init__(self) -> None:
        self._groups: dict[object, PodGroup] = {}
        self.pods = 0

    def clear(self) -> None:
        """Forget all pods: a list begins again."""
        self._groups.clear()
        self.pods = 0

    def add(self, pod: SeenPod) -> None:
        """Count a pod in its group."""
        self.pods += 1
        request = request_of(pod.pod)
        policy = pod.pod.annotations.get(POLICY_ANNOTATION, "")
        key = (pod.pod.namespace, pod.state.metadata.maker, policy, tuple(pod.gates), request.key)
        group = self._groups.get(key)
        if group is None and len(self._groups) < _MOST_KEPT:
            group = self._groups[key] = PodGroup(pod, request)
        if group is not None:
            group.add(pod)

    def first(self) -> list[PodGroup]:
        """The groups to explain."""
        return sorted(self._groups.values(), key=lambda group: group.rank)[:MOST_GROUPS]

    def __len__(self) -> int:
        return len(self._groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDiagnosis:
    """Why the pods of a group wait."""

    namespace: str
    owner: str  # `Job night`, or how the pods' names begin; empty for pods that were made alone
    pods: int
    oldest: str  # the pod that waits longest, by which all are judged
    since: float  # Unix time
    devices: Mapping[str, int]  # for each pod
    asks: str  # `1 × 2g.20gb`, with alternatives; empty: no GPU
    cause: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDiagnosis:
    """Why all pods wait, by groups; `more` groups and pods are counted only."""

    now: float
    pods: int
    groups: Sequence[GroupDiagnosis]
    more_groups: int
    more_pods: int
    unseen: Mapping[str, str] = field(default_factory=dict)
    decided_with: str = ""


def explain_groups(seen: Evidence, groups: PodGroups) -> WaitingDiagnosis:
    """Say of each group why its oldest pod waits, as the diagnosis of that pod does."""
    judge = WaitingPods(seen)
    explained = [_explain(judge, group) for group in groups.first()]
    return WaitingDiagnosis(
        now=seen.now,
        pods=groups.pods,
        groups=explained,
        more_groups=len(groups) - len(explained),
        more_pods=groups.pods - sum(group.pods for group in explained),
        unseen=seen.unseen,
        decided_with=seen.decided_with,
    )


def _explain(judge: WaitingPods, group: PodGroup) -> GroupDiagnosis:
    why, pod = judge.why(group.oldest), group.oldest
    return GroupDiagnosis(
        namespace=pod.pod.namespace,
        owner=pod.state.metadata.maker,
        pods=group.pods,
        oldest=pod.pod.name,
        since=pod.state.metadata.created or 0.0,
        devices=group.devices,
        asks=why.wanted,
        cause=why.cause,
        answer=why.answer,
    )
