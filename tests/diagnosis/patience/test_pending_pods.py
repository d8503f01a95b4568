"""What is read of a pod that waits."""

import json

import pytest

from tessera.diagnosis.patience.pending_pods import PendingPod
from tessera.kube.watch.table import Key
from tests.controller.patience.objects import MIG_2G, UNSCHEDULABLE, document, owned, pending

GATED = {**UNSCHEDULABLE, "reason": "SchedulingGated"}


def test_a_pod_that_waits():
    """Its owner, its version for the eviction, and since when the scheduler calls it unschedulable."""
    pod = pending()
    assert (pod.key, pod.uid, pod.version, pod.since) == (Key("a", "p"), "uid-p", "7", 1_800_000_000.0 - 3600)
    assert (pod.owner and pod.owner.uid, pod.owner and pod.owner.remakes, pod.left_alone) == ("rs", True, "")
    assert pod.gpus == {"main": {MIG_2G: 1}}


@pytest.mark.parametrize(
    ("status", "waits"),
    [
        ({}, True),
        ({"conditions": []}, False),
        ({"conditions": [GATED]}, False),
        ({"conditions": [{**UNSCHEDULABLE, "status": "True", "reason": ""}]}, False),
    ],
)
def test_only_the_scheduler_says_that_a_pod_is_unschedulable(status, waits):
    """A pod that it has not looked at, or that has gates, does not wait yet."""
    assert (pending(status=status).since is not None) is waits


@pytest.mark.parametrize(
    ("metadata", "spec", "resources"),
    [
        ({}, {}, {f"ex.io/invented-{number}": "1" for number in range(9000)}),
        ({}, {}, {f"ex.io/invented-{number}": "1" for number in range(60)}),
        ({}, {"tolerations": [{"key": f"key-{number}"} for number in range(190)] * 10}, {}),
        ({}, {"schedulerName": "x" * 200_000}, {}),
        ({"annotations": {f"ex.io/{number}": "x" * 4000 for number in range(60)}}, {}, {}),
    ],
)
def test_fault_70_a_pod_that_is_too_large_is_left_alone(metadata, spec, resources):
    """Little of it is kept, and no decision is made by it; what its patience is stays known."""
    annotations = {**metadata.get("annotations", {}), "gpu-webhook.k8s.io/patience": "1m"}
    large = document(metadata={**metadata, "annotations": annotations}, spec=spec)
    large["spec"]["containers"][0]["resources"]["limits"] |= resources
    pod = PendingPod.read(json.dumps(large).encode())
    assert pod.left_alone == "large"
    assert pod.gpus == {}
    assert pod.pod is not None
    assert pod.pod.annotations == {"gpu-webhook.k8s.io/patience": "1m"}
    assert (pod.pod.containers, pod.pod.tolerations, pod.pod.scheduler) == ((), (), "")


def test_an_owner_has_a_short_name():
    """An owner reference may say anything: as much is kept of it as a name has."""
    owner = {**owned("x"), "uid": "u" * 100_000, "name": "n" * 100_000}
    pod = pending(metadata={"ownerReferences": [owner]})
    assert pod.owner is not None
    assert (len(pod.owner.uid), len(pod.owner.name)) == (253, 253)


def test_pods_without_gpus_are_not_read():
    """Nearly all pods ask for none."""
    assert pending(asks="cpu").pod is None


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"metadata": {"deletionTimestamp": "2027-01-15T07:30:00Z"}}, "deleted"),
        ({"spec": {"nodeName": "n"}}, "started"),
        ({"status": {"startTime": "2027-01-15T07:30:00Z"}}, "started"),
        ({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}}, "gated"),
        ({"status": {"nominatedNodeName": "n", "conditions": [UNSCHEDULABLE]}}, "nominated"),
        ({"spec": {"schedulerName": "volcano"}}, "scheduler"),
        ({"spec": {"schedulerName": "default-scheduler"}}, ""),
        ({"metadata": {"annotations": {"gpu-webhook.k8s.io/decided": "template"}}}, "template"),
        ({"metadata": {"annotations": {"gpu-webhook.k8s.io/alternatives": "x"}}}, "claim"),
        ({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}, "kueue"),
        ({"metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}}}, "kueue"),
        ({"metadata": {"annotations": {"kueue.x-k8s.io/workload": "w"}}}, "kueue"),
        ({"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "s"}}}, "gang"),
        ({"metadata": {"labels": {"leaderworkerset.sigs.k8s.io/name": "s"}}}, "gang"),
        ({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "g"}}}, "gang"),
        ({"metadata": {"labels": {"volcano.sh/job-name": "j"}}}, "gang"),
        ({"metadata": {"labels": {"training.kubeflow.org/job-name": "mpi"}}}, "gang"),
        ({"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}}, "gang"),
        ({"spec": {"schedulingGroup": {"podGroupName": "g"}}}, "gang"),
        ({"metadata": {"labels": {"app": "volcano.sh"}}}, ""),
    ],
)
def test_who_is_left_alone(parts, reason):
    """Who has started, is about to, waits for others, or would come again as it is."""
    assert pending(**parts).left_alone == reason


@pytest.mark.parametrize(
    ("owner", "remakes"),
    [
        (owned("x"), True),
        (owned("x", "StatefulSet"), True),
        (owned("x", "ReplicationController", "v1"), True),
        (owned("x", "Job", "batch/v1"), True),
        (owned("x", "Job", "batch.volcano.sh/v1alpha1"), False),
        (owned("x", "DaemonSet"), False),
        (owned("x", "RayCluster", "ray.io/v1"), False),
        (owned("x", "Pod", "v1"), False),
    ],
)
def test_whose_pods_come_again(owner, remakes):
    """Kubernetes' own controllers make a pod again; what others take its end for is not known."""
    found = pending(owner=owner).owner
    assert found is not None
    assert found.remakes is remakes


def test_a_bare_pod_has_no_owner():
    """Nor has one whose owner is no controller."""
    assert pending(owner=None).owner is None
    assert pending(owner={**owned("x"), "controller": False}).owner is None
