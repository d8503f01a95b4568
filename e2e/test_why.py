"""`tessera why` on a real cluster: prepared situations, told by the real scheduler, controllers and quotas, each with its first line."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.command import account_kubeconfig, tessera
from e2e.webhook import Webhook, registered

MIG = "nvidia.com/mig-"
POLICY = "gpu-webhook.k8s.io/fallback-policy"
H200 = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/gpu.memory": "71680",
    "nvidia.com/gpu.count": "1",
}
LAYOUT = """\
version: v1
mig-configs:
  selected:
  - devices: all
    mig-enabled: true
    mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]
"""
NODE = "why-a"


@pytest.fixture
def node(control_plane: Client) -> Iterator[Any]:
    """Makes the one node with GPUs, which goes when the test is over."""

    def make(has: Mapping[str, int], *, ill: Mapping[str, int] | None = None, **more: Any) -> None:
        resources: dict[str, str | int] = {MIG + name: count for name, count in has.items()}
        control_plane.add_node(NODE, allocatable={**resources, **more.pop("plain", {})}, **more)
        if ill:
            healthy = {MIG + name: str(has[name] - count) for name, count in ill.items()}
            control_plane.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": {"allocatable": healthy}})

    yield make
    control_plane.remove_node(NODE)


def spec(profile: str, cpu: str = "10m") -> Object:
    resources = {"requests": {"cpu": cpu}, "limits": {MIG + profile: "1"}}
    return {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "none", "resources": resources}],
    }


def make_pod(cluster: Client, namespace: str, name: str, profile: str, *, waits: bool, **more: Any) -> None:
    body = {
        "metadata": {"name": name, "annotations": more.get("annotations", {})},
        "spec": spec(profile, more.get("cpu", "10m")),
    }
    cluster.api.create(pods_path(namespace), body)
    if waits:
        cluster.wait_for_pod_unschedulable(name, namespace=namespace)
    else:
        cluster.wait_for_pod_bound(name, namespace=namespace)


def why(cluster: Client, namespace: str, target: str, *more: str) -> list[str]:
    done = tessera("why", target, "-n", namespace, f"--kubeconfig={cluster.kubeconfig}", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_full(control_plane: Client, namespace: str, node: Any) -> None:
    """Everything is taken: by whom, on which node, and whose end would help."""
    node({"1g.10gb": 1})
    make_pod(control_plane, namespace, "holder", "1g.10gb", waits=False)
    make_pod(control_plane, namespace, "p", "1g.10gb", waits=True)
    lines = why(control_plane, namespace, "p")
    assert (
        lines[0] == f"pod {namespace}/p waits: 1 × 1g.10gb is taken on node {NODE} (1g.10gb: 1 of 1 in use)"
    )
    assert lines[1].startswith(
        f"  run it      a pod ends on node {NODE}: {namespace}/holder (1 × 1g.10gb, for "
    )
    assert any("Unschedulable: 0/" in line for line in lines)


def test_missing(control_plane: Client, namespace: str, node: Any) -> None:
    """No node offers it; the planner knows a layout that would."""
    cut = LAYOUT.replace("[2g.20gb, 2g.20gb, 3g.30gb]", "[1g.10gb, 1g.10gb, 3g.30gb]")
    node({"1g.10gb": 2, "3g.30gb": 1}, labels=H200, annotations={"run.ai/mig.config": cut})
    make_pod(control_plane, namespace, "p", "2g.20gb", waits=True)
    found = json.loads("\n".join(why(control_plane, namespace, "p", "-o", "json")))
    assert found["answer"] == f"pod {namespace}/p waits: no node offers 1 × 2g.20gb"
    assert [one["kind"] for one in found["remedies"]] == ["layout"]
    assert NODE in found["remedies"][0]["text"]


def test_taint(control_plane: Client, namespace: str, node: Any) -> None:
    """A taint keeps the pod away."""
    node({"1g.10gb": 1}, taints=[{"key": "team", "value": "other", "effect": "NoSchedule"}])
    make_pod(control_plane, namespace, "p", "1g.10gb", waits=True)
    assert why(control_plane, namespace, "p")[0] == (
        f"pod {namespace}/p waits: 1 × 1g.10gb is only on node {NODE}, not for this pod "
        "(taint team=other:NoSchedule is not tolerated)"
    )


def test_pending_layout(control_plane: Client, namespace: str, node: Any) -> None:
    """What is asked for comes with a layout that waits for a pod."""
    labels = {**H200, "nvidia.com/mig.config.state": "pending"}
    notes = {"run.ai/mig.config": LAYOUT, "nvidia.com/mig.config.reason": "1g.10gb is in use"}
    node({"1g.10gb": 7}, labels=labels, annotations=notes)
    make_pod(control_plane, namespace, "p", "2g.20gb", waits=True)
    assert why(control_plane, namespace, "p")[0] == (
        f"pod {namespace}/p waits: 1 × 2g.20gb comes with a layout that node {NODE} has not taken yet "
        "(its layout with 2g.20gb is pending: 1g.10gb is in use)"
    )


def test_ill_device(control_plane: Client, namespace: str, node: Any) -> None:
    """One device is unhealthy, the other in use."""
    node({"1g.10gb": 2}, ill={"1g.10gb": 1})
    make_pod(control_plane, namespace, "holder", "1g.10gb", waits=False)
    make_pod(control_plane, namespace, "p", "1g.10gb", waits=True)
    assert why(control_plane, namespace, "p")[0] == (
        f"pod {namespace}/p waits: devices of node {NODE} are unhealthy (1g.10gb: 1 of 2 are unhealthy, 1 in use)"
    )


def test_plugin_away(control_plane: Client, namespace: str, node: Any) -> None:
    """The devices are there, and no plugin offers them."""
    node({"1g.10gb": 2}, ill={"1g.10gb": 2})
    make_pod(control_plane, namespace, "p", "1g.10gb", waits=True)
    assert why(control_plane, namespace, "p")[0].startswith(
        f"pod {namespace}/p waits: the device plugin of node {NODE} is unavailable (1g.10gb: 0 of 2 are offered"
    )


def test_policy(control_plane: Client, namespace: str, node: Any) -> None:
    """The namespace forbids what would be there instead."""
    node({"1g.10gb": 1})
    control_plane.kubectl("annotate", "namespace", namespace, f"{POLICY}=never")
    make_pod(control_plane, namespace, "p", "2g.20gb", waits=True)
    lines = why(control_plane, namespace, "p")
    assert lines[0] == (
        f"pod {namespace}/p waits: no node offers 1 × 2g.20gb; "
        f"namespace {namespace}'s fallback-policy is `never`, so it gets exactly this or waits"
    )
    assert f"$ kubectl annotate namespace {namespace} {POLICY}-" in lines[2]


def test_cpu(control_plane: Client, namespace: str, node: Any) -> None:
    """The device is free, and cpu is not."""
    node({"1g.10gb": 1}, plain={"cpu": "2"})
    make_pod(control_plane, namespace, "p", "1g.10gb", waits=True, cpu="4")
    assert why(control_plane, namespace, "p")[0] == (
        f"pod {namespace}/p waits: 1 × 1g.10gb is free on node {NODE}, but not all else that it asks for "
        "(cpu: 2 of 2 free, the pod needs 4)"
    )


def test_device_class_missing(control_plane: Client, namespace: str, node: Any) -> None:
    """A claim names a class that is not there; then one whose devices no slice has."""
    node({})
    dra, name = "/apis/resource.k8s.io/v1", f"2g.{namespace}"
    request = {"name": "gpu", "exactly": {"deviceClassName": name}}
    control_plane.api.create(
        f"{dra}/namespaces/{namespace}/resourceclaims",
        {"metadata": {"name": "mine"}, "spec": {"devices": {"requests": [request]}}},
    )
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": "mine"}]
    body = {"metadata": {"name": "p"}, "spec": {"containers": [container], "resourceClaims": claims}}
    control_plane.api.create(pods_path(namespace), body)
    control_plane.wait_for_pod_unschedulable("p", namespace=namespace)
    lines = why(control_plane, namespace, "p")
    assert lines[0] == f"pod {namespace}/p waits: device class {name} is not there (claim mine, request gpu)"
    assert any(f"device class {name} does not exist" in line for line in lines)
    expression = (
        "device.driver == 'gpu.tessera.dev' && device.attributes['gpu.tessera.dev'].profile == '9g.90gb'"
    )
    made = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    control_plane.api.create(f"{dra}/deviceclasses", made)
    try:
        assert why(control_plane, namespace, "p")[0] == (
            f"pod {namespace}/p waits: no ResourceSlice has a device that would do, of class {name} (claim mine, request gpu)"
        )
    finally:
        control_plane.api.delete(f"{dra}/deviceclasses/{name}")


def test_observe(control_plane: Client, namespace: str, node: Any) -> None:
    """The webhook would have helped, and only observes."""
    node({"1g.10gb": 1})
    control_plane.kubectl("label", "namespace", namespace, "gpu-webhook=observe")
    make_pod(control_plane, namespace, "p", "2g.20gb", waits=True)
    lines = why(control_plane, namespace, "p")
    assert lines[0] == (
        f"pod {namespace}/p waits: no node offers 1 × 2g.20gb, and the webhook only observes here "
        f"(namespace {namespace}, label gpu-webhook=observe)"
    )
    assert f"$ kubectl label --overwrite namespace {namespace} gpu-webhook=enforce" in lines[2]


def deployment(cluster: Client, namespace: str, profile: str, replicas: int) -> None:
    labels = {"app": "web"}
    body = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec(profile)},
        },
    }
    cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)


def failed_create(cluster: Client, namespace: str) -> bool:
    events = cluster.api.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=FailedCreate")
    return bool(events["items"])


def test_quota(control_plane: Client, namespace: str, node: Any) -> None:
    """A pod that was never created: the quota's own message is understood."""
    node({"1g.10gb": 2})
    name = f"requests.{MIG}1g.10gb"
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    control_plane.api.create(path, {"metadata": {"name": "gpus"}, "spec": {"hard": {name: "1"}}})
    control_plane.wait(
        lambda: control_plane.api.get(f"{path}/gpus").get("status", {}).get("used"), what="a quota in force"
    )
    deployment(control_plane, namespace, "1g.10gb", 2)
    control_plane.wait(lambda: failed_create(control_plane, namespace), what="a pod refused by the quota")
    lines = why(control_plane, namespace, "deploy/web")
    assert lines[0] == (
        f"deployment {namespace}/web has 1 of 2 pods: quota gpus is exceeded ({name}: 1 of 1 used, each pod needs 1)"
    )
    assert f"{name} from 1 to 2" in lines[1]
    (command,) = (line.partition("$ kubectl ")[2] for line in lines if "$ kubectl patch" in line)
    assert command.startswith(f"patch resourcequota -n {namespace} gpus --type=merge -p ")


def test_rejected(control_plane: Client, namespace: str, node: Any, tmp_path: Path) -> None:
    """A pod that was never created, since the webhook rejects it: its words, the policy that would help, and a plan that counts it."""
    node({"1g.10gb": 2})
    control_plane.kubectl("annotate", "namespace", namespace, f"{POLICY}=larger")
    with Webhook(control_plane, tmp_path) as webhook, registered(control_plane, webhook):
        deployment(control_plane, namespace, "2g.20gb", 1)
        control_plane.wait(
            lambda: failed_create(control_plane, namespace), what="a pod refused by the webhook"
        )
        lines = why(control_plane, namespace, "deploy/web")
        planned = tessera("mig", "plan", "-o", "json", f"--kubeconfig={control_plane.kubeconfig}")
    told = [line for line in planned.stderr.splitlines() if line.startswith("rejected workloads ask for ")]
    assert any("× 2g.20gb" in line for line in told), planned.stderr
    assert lines[0].startswith(
        f"deployment {namespace}/web has 0 of 1 pods: the webhook rejects them: asked for {MIG}2g.20gb: 1"
    )
    assert f"the annotation {POLICY} of namespace {namespace} is removed: it gets 1g.10gb" in lines[1]


def test_with_few_rights(control_plane: Client, namespace: str, node: Any, tmp_path: Path) -> None:
    """A tenant who may read pods and events of a namespace alone hears the scheduler's words, and what could not be read."""
    node({"1g.10gb": 1})
    make_pod(control_plane, namespace, "holder", "1g.10gb", waits=False)
    make_pod(control_plane, namespace, "p", "1g.10gb", waits=True)
    control_plane.kubectl("create", "rolebinding", "reader", "-n", namespace, "--clusterrole=view",
                          f"--serviceaccount={namespace}:default")  # fmt: skip
    kubeconfig = account_kubeconfig(control_plane, namespace, tmp_path)
    done = tessera("why", "p", "-n", namespace, f"--kubeconfig={kubeconfig}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"pod {namespace}/p waits: the scheduler says: 0/")
    assert any("not seen" in line and "nodes" in line for line in lines)
