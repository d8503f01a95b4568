"""Capacity and layouts on a real cluster: counted as the scheduler counts, applied to a real node."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Client, ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.cluster.client import unschedulable_message
from e2e.command import tessera
from e2e.layouts import kept, mig_layout
from e2e.test_device_plugin import EXAMPLES, MIG, annotate, plugin, pod, wait_allocatable
from tessera.core.kubernetes.quantity import Quantity

PODS = 60
OVERHEAD = "capacity-overhead"
HAS: dict[str, dict[str, str | int]] = {
    "capacity-a": {"cpu": "8", "memory": "16Gi", "pods": 20, MIG + "1g.10gb": 7, MIG + "2g.20gb": 4},
    "capacity-b": {"cpu": "6", "memory": "12Gi", "hugepages-2Mi": "64Mi", "nvidia.com/gpu": 8},
    "capacity-c": {"cpu": "4", "memory": "8Gi", "example.com/thing": 1000, MIG + "2g.20gb": 3},
}
RESOURCES = [MIG + "1g.10gb", MIG + "2g.20gb", "nvidia.com/gpu", "example.com/thing"]


@pytest.fixture
def nodes(control_plane: Client) -> Iterator[list[str]]:
    """Nodes with little of everything, and a runtime that costs something."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "71680"}
    for name, has in HAS.items():
        control_plane.add_node(name, allocatable=has, labels={**labels, "nvidia.com/gpu.count": "1"})
    runtime = {
        "metadata": {"name": OVERHEAD},
        "handler": "none",
        "overhead": {"podFixed": {"cpu": "70m", "memory": "33Mi"}},
    }
    control_plane.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime)
    yield list(HAS)
    control_plane.api.delete(f"/apis/node.k8s.io/v1/runtimeclasses/{OVERHEAD}")
    for name in HAS:
        control_plane.remove_node(name)


def random_pod(dice: random.Random, name: str) -> Object:
    """A pod with requests in all the places that the scheduler looks at."""

    def container(kind: str) -> Object:
        plain = {
            resource: amount
            for resource, amount in (
                ("cpu", dice.choice(["50m", "0.1", "1", "333m"])),
                ("memory", dice.choice(["64Mi", "100M", "1Gi", "12345678"])),
                ("ephemeral-storage", "1Gi"),
            )
            if dice.random() < 0.5
        }
        extended = {dice.choice(RESOURCES): str(dice.randint(1, 2))} if dice.random() < 0.4 else {}
        if dice.random() < 0.1:
            extended |= {"hugepages-2Mi": "4Mi"}
            plain |= {"memory": "64Mi"}
        requests = plain if dice.random() < 0.5 else {}
        limits = extended if requests else {**plain, **extended}
        return {"name": kind, "image": "none", "resources": {"requests": requests, "limits": limits}}

    spec: Object = {
        "terminationGracePeriodSeconds": 600,
        "containers": [container(f"c{i}") for i in range(dice.randint(1, 3))],
    }
    if dice.random() < 0.5:
        spec["initContainers"] = [
            container(f"i{i}") | ({"restartPolicy": "Always"} if dice.random() < 0.5 else {})
            for i in range(dice.randint(1, 3))
        ]
    if dice.random() < 0.3:
        spec["runtimeClassName"] = OVERHEAD
    if dice.random() < 0.3:
        spec["resources"] = {"requests": {"cpu": "3", "memory": "4Gi"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def settled(one: Object) -> bool:
    return bool(one["spec"].get("nodeName") or unschedulable_message(one))


def described(cluster: Client, node: str) -> dict[str, Quantity]:
    """What `kubectl describe node` prints under "Allocated resources", and how many pods it counts."""
    text = cluster.kubectl("describe", "node", node)
    (pods,) = re.findall(r"Non-terminated Pods:\s+\((\d+) in total\)", text)
    section = text.split("Allocated resources:")[1].split("\nEvents:")[0]
    rows = re.findall(r"^  (\S+) +(\S+)(?: \(\d+%\))? +\S+", section.split("--------", 1)[1], re.MULTILINE)
    return {"pods": Quantity.parse(pods), **{name: Quantity.parse(amount) for name, amount in rows if name[0] != "-"}}  # fmt: skip


def capacity(cluster: Client, *options: str) -> Object:
    done = tessera("capacity", f"--kubeconfig={cluster.kubeconfig}", "--output=json", *options)
    assert done.returncode == 0, done.stderr
    found: Object = json.loads(done.stdout)
    return found


def test_capacity_is_what_kubectl_describes(control_plane: Client, namespace: str, nodes: list[str]) -> None:
    """After a random mix of pods, allocated is what `kubectl describe node` says, for every resource of every node."""
    dice, api = random.Random(6), control_plane.api

    def places() -> dict[str, str]:
        items = api.get(pods_path(namespace))["items"]
        return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in items}

    for number in range(PODS):
        api.create(pods_path(namespace), random_pod(dice, f"p{number}"))
    control_plane.wait(
        lambda: all(map(settled, api.get(pods_path(namespace))["items"])),
        what="a word of the scheduler on every pod",
    )
    bound = [name for name, node in places().items() if node]
    assert len(bound) >= 15
    for name, phase in zip(bound[:6], ["Succeeded", "Failed", "Running"] * 2, strict=True):
        api.patch(f"{pods_path(namespace)}/{name}/status", {"status": {"phase": phase}})
    for name in bound[6:9]:  # no kubelet confirms their end: they go on being deleted
        api.delete(f"{pods_path(namespace)}/{name}")

    for _ in range(10):  # pods that ended make room, and the scheduler fills it: look while nothing moves
        before = places()
        found = capacity(control_plane, "--all", "--pods", f"--namespace={namespace}")
        expected = {node: described(control_plane, node) for node in nodes}
        if before == places():
            break
    else:
        pytest.fail("the scheduler never came to rest")
    allocated = {
        one["name"]: {name: Quantity.parse(usage["allocated"]) for name, usage in one["resources"].items()}
        for one in found["nodes"]
    }
    for node in nodes:
        ours, theirs = allocated[node], expected[node]
        assert ours == {name: theirs.get(name, Quantity.parse("0")) for name in ours}
        assert {name for name, amount in theirs.items() if amount} <= ours.keys()
    assert sum(bool(amount) for node in nodes for amount in allocated[node].values()) >= 12
    for one in found["nodes"]:
        for usage in one["resources"].values():
            amounts = {name: Quantity.parse(text) for name, text in usage.items()}
            assert amounts["allocated"] + amounts["available"] == amounts["allocatable"]

    waiting = sum(not node for node in before.values())
    assert waiting >= 5
    assert int(found["total"]["pods"]["asked"]) >= waiting  # others may wait too
    states = [one["state"] for one in found["pods"]]
    assert {state: states.count(state) for state in set(states)} == {
        "holds": len(before) - waiting - 4 - 3,  # four have ended, three are ending
        "ending": 3,
        "waits": waiting,
    }


def test_capacity_for_scripts(control_plane: Client, nodes: list[str]) -> None:
    """`--fail-below` and `-l` on a real API server."""
    where, ours = f"--kubeconfig={control_plane.kubeconfig}", f"kubernetes.io/hostname in ({','.join(nodes)})"
    assert tessera("capacity", where, "-l", ours, "--fail-below=2g.20gb=7").returncode == 0
    done = tessera("capacity", where, "-l", ours, "--fail-below=2g.20gb=8")
    assert (done.returncode, done.stderr) == (3, f"{MIG}2g.20gb: 7 available, less than 8\n")
    done = tessera("capacity", where, "-l", "kubernetes.io/hostname in (capacity-b,x),!old", "--output=csv")
    assert done.stdout.splitlines()[1:] == ["capacity-b,NVIDIA-H200,nvidia.com/gpu,8,0,8,"]


def test_apply_on_a_real_api_server(control_plane: Client, nodes: list[str]) -> None:
    """A dry run changes nothing, a layout is written to the node, and put back when no plugin makes it true."""
    where, name = f"--kubeconfig={control_plane.kubeconfig}", "capacity-a"

    def node() -> Object:
        return control_plane.api.get(f"/api/v1/nodes/{name}")

    before = node()["metadata"].get("annotations", {})
    done = tessera("mig", "apply", where, "3g.30gb=2", name, "--dry-run=server")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{name}: the API server would accept it")
    assert node()["metadata"].get("annotations", {}) == before
    done = tessera("mig", "apply", where, "3g.30gb=3", name, "--yes")
    assert done.returncode == 2
    assert "3g.30gb ×3" in done.stderr
    done = tessera("mig", "apply", where, "3g.30gb=2", name, "--yes", "--timeout=2s")
    assert done.returncode == 1
    assert f"{name}: put back: the layout is not applied after 2 s" in done.stdout
    assert node()["metadata"].get("annotations", {}) == before
    done = tessera(
        "mig", "apply", where, "3g.30gb=2", "-l", f"kubernetes.io/hostname={name}", "--yes", "--no-wait"
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 written")
    assert "3g.30gb" in node()["metadata"]["annotations"]["run.ai/mig.config"]


def test_apply_really_changes_the_node(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """`mig apply` on a node with Tessera's device plugin: its kubelet offers the new devices when the command ends."""
    cluster, where = cluster_with_node, f"--kubeconfig={cluster_with_node.kubeconfig}"
    annotate(cluster, None)
    try:
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            wait_allocatable(cluster, {MIG + "2g.20gb": "8", MIG + "3g.30gb": "4"})
            cluster.apply(pod("holder", MIG + "3g.30gb", 1), namespace=node_namespace)
            cluster.wait_for_pod_phase("holder", "Running", namespace=node_namespace)
            done = tessera("mig", "apply", where, "1g.10gb=7", cluster.node_name, "--dry-run=client")
            assert f"pod {node_namespace}/holder holds 1 × 3g.30gb; 4 of 4 are removed" in done.stdout
            # a device in use stays until its pod ends: the node says pending, and gets its old layout back
            done = tessera("mig", "apply", where, "1g.10gb=7", cluster.node_name, "--yes", "--timeout=15s")
            assert done.returncode == 1, done.stdout + done.stderr
            assert "state pending" in done.stdout
            wait_allocatable(cluster, {MIG + "2g.20gb": "8", MIG + "3g.30gb": "4"})
            cluster.kubectl("delete", "pod", "holder", "-n", node_namespace)
            cluster.wait_gone(pods_path(node_namespace), "holder")
            done = tessera("mig", "apply", where, "1g.10gb=7", cluster.node_name, "--yes")
            assert done.returncode == 0, done.stdout + done.stderr
            wait_allocatable(cluster, {MIG + "1g.10gb": "28", MIG + "2g.20gb": "0"}, timeout=1.0)
            shown = tessera("mig", "show", "--cluster", cluster.node_name, where)
            assert shown.stdout.startswith("cards 0-3  Simulated H200-70GB, 7×1g.10gb\n")
            found = capacity(cluster, "-l", f"kubernetes.io/hostname={cluster.node_name}")
            assert found["total"][MIG + "1g.10gb"]["available"] == "28"
            assert found["room"]["7g.70gb"] == {"free": 0, "beside": 0, "recut": 4, "lost": 4}
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {MIG + "1g.10gb": "0"})


def test_a_mig_layout_changes_the_node(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A MigLayout on a node with Tessera's device plugin: the pod that holds a device which goes is evicted, the kubelet offers the new
    devices, and the node is uncordoned."""
    cluster = cluster_with_node
    annotate(cluster, None)
    try:
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            wait_allocatable(cluster, {MIG + "2g.20gb": "8", MIG + "3g.30gb": "4"})
            cluster.apply(pod("holder", MIG + "3g.30gb", 1), namespace=node_namespace)
            cluster.wait_for_pod_phase("holder", "Running", namespace=node_namespace)
            layout = mig_layout("real", layouts=[{"perCard": {"1g.10gb": 7}}])
            layout["spec"]["nodeSelector"] = {"kubernetes.io/hostname": cluster.node_name}
            layout["spec"]["rollout"] = {"whenInUse": "Drain"}
            with kept(cluster, tmp_path, layout) as condition:
                cluster.wait(lambda: condition("Ready") == "True", what="the layout on the node")
                wait_allocatable(cluster, {MIG + "1g.10gb": "28", MIG + "2g.20gb": "0"}, timeout=1.0)
                assert cluster.api.find(f"{pods_path(node_namespace)}/holder") is None
                node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")
                assert not node["spec"].get("unschedulable")
                where = f"--kubeconfig={cluster.kubeconfig}"
                refused = tessera("mig", "apply", where, "2g.20gb=3", cluster.node_name, "--yes")
                assert (refused.returncode, "MigLayout real keeps its layout" in refused.stdout) == (1, True)
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {MIG + "1g.10gb": "0"})
