"""Whether a Job pays for the eviction of a pod that never started.

Found out on Kubernetes 1.36.3 and 1.37.1 (e2e/test_patience.py, `test_what_an_eviction_costs_a_job`):

- A pod of a Job without a podFailurePolicy counts as failed as soon as it is being deleted, whatever its phase: it costs one of `backoffLimit` (with
  `podReplacementPolicy: Failed`, too, once the pod garbage collector has marked it failed), and one of its index with `backoffLimitPerIndex`.
- With a podFailurePolicy the first rule that matches holds. The Eviction API gives the pod the condition DisruptionTarget before it deletes it. So where the
  first rule that matches such a pod says Ignore, the Job makes it again and counts nothing, with indexes too.

So only these Jobs' pods are evicted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tessera.protocol.kubernetes.controllers import decode_workload
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
