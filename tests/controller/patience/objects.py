"""Pods that wait, and what is asked about them."""

import json
from types import SimpleNamespace

from tessera.core.admission.moves import Move
from tessera.diagnosis.patience.pending_pods import PendingPod
from tests.build import asking_pod

NOW = 1_800_000_000.0
CREATED = "2027-01-15T07:00:00Z"  # an hour before
MIG_1G, MIG_2G = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "lastTransitionTime": CREATED,
}


def document(name="p", namespace="a", asks=MIG_2G, owner=REPLICA_SET, metadata=None, spec=None, status=None):
    """A pod that has waited for an hour; parts of it may be given."""
    owners = {"ownerReferences": [owner]} if owner else {}
    own = {"uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": CREATED}
    return asking_pod(
        name,
        {asks: 1},
        namespace=namespace,
        metadata={**own, **owners, **(metadata or {})},
        spec=spec,
        status={"conditions": [UNSCHEDULABLE], **(status or {})},
    )


def pending(*args, **kwargs) -> PendingPod:
    return PendingPod.read(json.dumps(document(*args, **kwargs)).encode())


def owned(uid, kind="ReplicaSet", api_version="apps/v1"):
    return {"apiVersion": api_version, "kind": kind, "name": uid, "uid": uid, "controller": True}


def move(pod, resource=MIG_1G):
    return Move(pod.pod, {"main": {resource: 1}}, "1g.10gb", by_what_is_free=True)


class Judge(SimpleNamespace):
    """Answers by hand: so much is free, and everything else is as the test says."""

    def __init__(self, free=1000, seconds=300.0, **more):
        super().__init__(
            free=free, seconds=seconds, whys={}, trials={}, fresh=set(), asked=[], **{"patiences": {}, **more}
        )

    def patience(self, pod):
        return self.patiences.get(pod.key.name, self.seconds)

    def why_not(self, pod):
        return self.whys.get(pod.key.name, "")

    def trials_left(self, namespace):
        return self.trials.get(namespace)

    def is_fresh(self, pod):
        return pod.uid in self.fresh

    def move(self, pod):
        self.asked.append(pod.key.name)
        return move(pod) if self.free else None

    def keep(self, pod, move):
        self.free -= 1
