"""Rollouts of layouts on a real API server: cordons, evictions and PodDisruptionBudgets; the nodes are objects with a stand-in cutter."""

from collections.abc import Iterator

import pytest

from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.command import tessera
from e2e.layouts import NODES, StandInCutter, add_gpu_node
from tessera.protocol.mig.rollouts import RESULT, ROLLOUT

MIG = "nvidia.com/mig-"
HALF = MIG + "3g.71gb"


def node_of(cluster: Client, name: str) -> Object:
    return cluster.api.get(f"{NODES}/{name}")


def cordoned(cluster: Client, name: str) -> bool:
    return bool(node_of(cluster, name)["spec"].get("unschedulable"))


def add_running_pod(cluster: Client, namespace: str, name: str, node: str, resource: str = HALF) -> None:
    """A pod that counts as running: nobody runs it, and it is gone when it is deleted."""
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    body = {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    cluster.api.create(pods_path(namespace), body)
    ready = {"type": "Ready", "status": "True"}
    status = {"status": {"phase": "Running", "conditions": [ready]}}
    cluster.api.patch(f"{pods_path(namespace)}/{name}/status", status, kind="strategic")


@pytest.fixture
def pool(control_plane: Client, namespace: str) -> Iterator[str]:
    """Six nodes with two H200 each, cut into halves; they are named after their pool."""
    names = [f"{namespace}-{number}" for number in range(6)]
    for name in names:
        add_gpu_node(control_plane, name, namespace)
    yield namespace
    for name in names:
        control_plane.remove_node(name)


def test_drained_as_far_as_budgets_allow(control_plane: Client, pool: str) -> None:
    """`mig apply --drain` evicts only pods that hold devices which go. A PodDisruptionBudget is respected: the node gets uncordoned as it
    was after its time, and named; without the budget the node is cut, and uncordoned."""
    cluster, node = control_plane, f"{pool}-0"
    add_running_pod(cluster, pool, "train", node)
    add_running_pod(cluster, pool, "other", node, "nvidia.com/gpu")
    budgets = f"/apis/policy/v1/namespaces/{pool}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}}
    cluster.api.create(budgets, {"metadata": {"name": "train"}, "spec": spec})
    seen = lambda one: one and one.get("status", {}).get("currentHealthy") == 1  # noqa: E731
    cluster.wait_for(budgets, "train", seen, what="the budget's status")
    options = ("--drain", "--yes", f"--kubeconfig={cluster.kubeconfig}")
    with StandInCutter(cluster, pool) as cutter:
        kept = tessera("mig", "apply", "1g.18gb=4", node, *options, "--drain-timeout=4s")
        assert kept.returncode == 1, kept.stdout + kept.stderr
        assert f"refused: pods still hold devices that would go: {pool}/train (1 × 3g.71gb)" in kept.stdout
        assert "not evicted: Cannot evict pod as it would violate the pod's disruption budget" in kept.stderr
        assert (cordoned(cluster, node), cutter.cuts.total()) == (False, 0)

        cluster.api.delete(f"{budgets}/train")
        done = tessera("mig", "apply", "1g.18gb=4", node, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert cutter.cuts.total() == 1
    after = node_of(cluster, node)
    assert after["status"]["allocatable"][MIG + "1g.18gb"] == "8"
    assert {ROLLOUT, RESULT}.isdisjoint(after["metadata"]["annotations"])
    assert not after["spec"].get("unschedulable")
    left = [one["metadata"]["name"] for one in cluster.api.get(pods_path(pool))["items"]]
    assert left == ["other"]
