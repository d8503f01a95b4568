"""Why a pod that waits is left alone, whatever its patience, and the words for it.

It may be for its owner, its namespace, its Job, or an autoscaler; or the webhook may not decide about its
successor.

Whether a Job pays for the eviction of a pod that never started.

Found out on Kubernetes 1.36.3 and 1.37.1 (e2e/test_patience.py, `test_what_an_eviction_costs_a_job`):

- A pod of a Job without a podFailurePolicy counts as failed as soon as it is being deleted, whatever its phase: it costs one of `backoffLimit` (with
  `podReplacementPolicy: Failed`, too, once the pod garbage collector has marked it failed), and one of its index with `backoffLimitPerIndex`.
- With a podFailurePolicy the first rule that matches holds. The Eviction API gives the pod the condition DisruptionTarget before it deletes it. So where the
  first rule that matches such a pod says Ignore, the Job makes it again and counts nothing, with indexes too.

So only these Jobs' pods are evicted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.admission.decision import why_exempt
from tessera.core.admission.policy import Mode, Policy, mode_in
from tessera.core.admission.view.view import ClusterView
from tessera.diagnosis.patience.history import Doubt
from tessera.diagnosis.patience.objects import PendingPod
from tessera.protocol.kubernetes.controllers import EventIn, decode_workload
from tessera.protocol.kubernetes.lean_pod import QUEUE_LABEL

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
_DOUBTS_THAT_COUNT: Final = 2  # namespaces: what the pods of one do says nothing about the others

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


def doubting(doubts: Mapping[str, Doubt], now: float) -> list[str]:
    """The namespaces for whose doubts no pod is evicted anywhere; none where there are too few."""
    counting = [namespace for namespace, doubt in doubts.items() if now < doubt.counts_until]
    return counting if len(counting) >= _DOUBTS_THAT_COUNT else []


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
