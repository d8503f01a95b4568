"""Fallback and injection through a real API server, as users meet them: kubectl in, stored pods out."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.command import tessera
from e2e.webhook import Webhook, registered

MIG = "nvidia.com/mig-"
GPU = "nvidia.com/gpu"
INJECTION = """
injection:
  resourceMap:
    V100:
      nvidia.com/gpu:
        resourceList:
          - {name: cpu, coefficient: 4000, unit: m}
          - {name: memory, coefficient: 8, unit: Gi}
        annotations: {tke.cloud.tencent.com/networks: tke-route-eni}
      amd.com/gpu: {resourceList: [{name: cpu, coefficient: 1}]}
  namespaceResourceMap:
    gpu-training:
      V100: {nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 6}, {name: memory, coefficient: 12, unit: Gi}]}}
"""


@pytest.fixture(scope="module")
def webhook(own_control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """The webhook, registered as users register it."""
    folder = tmp_path_factory.mktemp("webhook")
    with (
        Webhook(own_control_plane, folder, config=INJECTION) as running,
        registered(own_control_plane, running, failurePolicy="Fail"),
    ):
        yield running


class Nodes:
    """Nodes of one test, which the webhook has seen when `add` returns, and which go with the test."""

    def __init__(self, cluster: Client, webhook: Webhook) -> None:
        self._cluster, self._webhook = cluster, webhook
        self._names: list[str] = []

    def add(self, name: str, has: Mapping[str, int], **more: Any) -> None:
        self._cluster.add_node(name, allocatable=has, **more)
        self._names.append(name)
        self._settle()

    def clear(self) -> None:
        for name in self._names:
            self._cluster.remove_node(name)
        self._names.clear()
        self._settle()

    def _settle(self) -> None:
        nodes = len(self._cluster.api.get("/api/v1/nodes")["items"])
        self._webhook.until(
            lambda: self._webhook.metric("gpu_webhook_node_view_nodes") == nodes,
            what=f"{nodes} nodes in the view",
        )


@pytest.fixture
def nodes(own_control_plane: Client, webhook: Webhook) -> Iterator[Nodes]:
    """A way to add nodes."""
    made = Nodes(own_control_plane, webhook)
    yield made
    made.clear()


def pod(name: str, *resources: Object, **metadata: Any) -> Object:
    """A pod with a container for each `resources`."""
    containers = [{"name": f"c{i}", "image": "busybox", "resources": one} for i, one in enumerate(resources)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": containers},
    }


def limits(resource: str, count: int = 1) -> Object:
    return {"limits": {resource: count}}


def stored(cluster: Client, namespace: str, name: str) -> Object:
    return cluster.api.get(f"{pods_path(namespace)}/{name}")


def apply(cluster: Client, namespace: str, document: Object) -> str:
    """`kubectl apply`; what it printed on standard error, where warnings are."""
    done = cluster.try_kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document))
    assert done.returncode == 0, done.stderr
    return done.stderr


STORIES = [
    ("2g to 1g", "2g.20gb", {MIG + "1g.10gb": 28, MIG + "2g.20gb": 0}, MIG + "1g.10gb", "2g.20gb->1g.10gb"),
    ("3g to 2g", "3g.30gb", {MIG + "1g.10gb": 4, MIG + "2g.20gb": 4}, MIG + "2g.20gb", "3g.30gb->2g.20gb"),
    ("3g to 1g", "3g.30gb", {MIG + "1g.10gb": 28}, MIG + "1g.10gb", "3g.30gb->1g.10gb"),
    ("3g to gpu", "3g.30gb", {GPU: 8}, GPU, "3g.30gb->gpu"),
    ("upgrade", "1g.10gb", {MIG + "2g.20gb": 8, MIG + "3g.30gb": 4}, MIG + "2g.20gb", "1g.10gb->2g.20gb"),
    ("no change", "3g.30gb", {MIG + "2g.20gb": 8, MIG + "3g.30gb": 4}, MIG + "3g.30gb", None),
]


@pytest.mark.parametrize(
    ("story", "asked", "has", "expected", "record"), STORIES, ids=[story[0] for story in STORIES]
)
def test_fallback(
    own_control_plane: Client, namespace: str, nodes: Nodes, webhook: Webhook,
    story: str, asked: str, has: dict[str, int], expected: str, record: str | None,
) -> None:  # fmt: skip
    """Each story of fallback with kubectl: the stored pod, its record, the warning that kubectl prints, the counter."""
    nodes.add("story", has)
    before = webhook.metric(
        f'gpu_webhook_fallback_total{{from="{asked}",to="{(record or "->").partition("->")[2]}"}}'
    )
    printed = apply(own_control_plane, namespace, pod("p", limits(MIG + asked)))
    found = stored(own_control_plane, namespace, "p")
    resources = found["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {expected: "1"}, "requests": {expected: "1"}}
    assert found["metadata"].get("annotations", {}).get("gpu-webhook.k8s.io/fallback") == record
    if record is None:
        assert "GPU fallback" not in printed
    else:
        assert (
            f"Warning: GPU fallback {record}: no node that this pod can use offers {asked} as asked"
            in printed
        )
        after = webhook.metric(
            f'gpu_webhook_fallback_total{{from="{asked}",to="{record.partition("->")[2]}"}}'
        )
        assert after == before + 1
        webhook.until(lambda: told(webhook, namespace), what="a line about the pod in the log")
        assert told(webhook, namespace)[-1]["pod"] == "p"
        assert asked in told(webhook, namespace)[-1]["reason"]
    assert own_control_plane.wait_for_pod_bound("p", namespace=namespace) == "story"


def told(webhook: Webhook, namespace: str) -> list[dict[str, Any]]:
    """What the webhook logged about a namespace's pods."""
    return [line for line in webhook.lines() if line.get("namespace") == namespace]


def test_rejection(own_control_plane: Client, namespace: str, nodes: Nodes) -> None:
    """A pod for which nothing fits is refused, and kubectl says what was asked, tried and offered."""
    nodes.add("cpu-only", {})
    done = own_control_plane.try_kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(pod("p", limits(MIG + "2g.20gb")))
    )
    assert done.returncode == 1
    assert (
        'admission webhook "gpu-allocation.k8s.io" denied the request: asked for nvidia.com/mig-2g.20gb: 1'
        in done.stderr
    )
    assert "tried gpu" in done.stderr
    assert "offer no GPU at all" in done.stderr


def test_three_data_centres(own_control_plane: Client, namespace: str, nodes: Nodes) -> None:
    """One YAML but for its nodeSelector, three data centres in one cluster: each gives what it has."""
    centres = {
        "h200": ({MIG + "2g.20gb": 8, MIG + "3g.30gb": 4}, MIG + "3g.30gb"),
        "a100": ({MIG + "1g.10gb": 4, MIG + "2g.20gb": 4}, MIG + "2g.20gb"),
        "v100": ({GPU: 8}, GPU),
    }
    for centre, (has, _) in centres.items():
        nodes.add(f"dc-{centre}", has, labels={"centre": centre})
    for centre, (_, expected) in centres.items():
        document = pod(centre, limits(MIG + "3g.30gb"))
        document["spec"]["nodeSelector"] = {"centre": centre}
        apply(own_control_plane, namespace, document)
        assert stored(own_control_plane, namespace, centre)["spec"]["containers"][0]["resources"][
            "limits"
        ] == {expected: "1"}
        assert own_control_plane.wait_for_pod_bound(centre, namespace=namespace) == f"dc-{centre}"


def test_requests_alone(own_control_plane: Client, namespace: str, nodes: Nodes) -> None:
    """A pod with requests alone is accepted, since its limits are added."""
    nodes.add("gpu", {GPU: 1})
    apply(own_control_plane, namespace, pod("p", {"requests": {GPU: 1}}))
    resources = stored(own_control_plane, namespace, "p")["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {GPU: "1"}, "limits": {GPU: "1"}}


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_workloads(own_control_plane: Client, namespace: str, nodes: Nodes, kind: str) -> None:
    """The pods of a Deployment of five and of a Job are rewritten one by one as the controllers make them."""
    nodes.add("small", {MIG + "1g.10gb": 28})
    template = {"metadata": {"labels": {"app": "w"}}, "spec": pod("", limits(MIG + "2g.20gb"))["spec"]}
    if kind == "Deployment":
        spec = {"replicas": 5, "selector": {"matchLabels": {"app": "w"}}, "template": template}
        document, count = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w"}, "spec": spec}, 5
    else:
        template["spec"]["restartPolicy"] = "Never"
        document, count = (
            {
                "apiVersion": "batch/v1",
                "kind": kind,
                "metadata": {"name": "w"},
                "spec": {"template": template},
            },
            1,
        )
    apply(own_control_plane, namespace, document)
    pods = own_control_plane.wait(
        lambda: (
            found if len(found := own_control_plane.api.get(pods_path(namespace))["items"]) == count else None
        ),
        what=f"{count} pods",
    )
    for one in pods:
        assert one["metadata"]["annotations"]["gpu-webhook.k8s.io/fallback"] == "2g.20gb->1g.10gb"
        assert one["spec"]["containers"][0]["resources"]["limits"] == {MIG + "1g.10gb": "1"}


def test_exhaustion(own_control_plane: Client, namespace: str, nodes: Nodes) -> None:
    """2 nodes × 4 GPUs, ten pods asking for 2g.20gb: all are rewritten, eight are bound, two wait with the reason."""
    for name in ("full-a", "full-b"):
        nodes.add(name, {GPU: 4})
    for i in range(10):
        apply(own_control_plane, namespace, pod(f"p{i}", limits(MIG + "2g.20gb")))

    def eight_bound() -> list[Object] | None:
        found: list[Object] = own_control_plane.api.get(pods_path(namespace))["items"]
        return found if sum(bool(one["spec"].get("nodeName")) for one in found) == 8 else None

    items = own_control_plane.wait(eight_bound, what="eight pods bound")
    assert all(p["metadata"]["annotations"]["gpu-webhook.k8s.io/fallback"] == "2g.20gb->gpu" for p in items)
    waiting = [p["metadata"]["name"] for p in items if not p["spec"].get("nodeName")]
    assert len(waiting) == 2
    for name in waiting:
        assert "Insufficient nvidia.com/gpu" in own_control_plane.wait_for_pod_unschedulable(
            name, namespace=namespace
        )


V100 = {"annotations": {"task.bkbcs.tencent.com/gpu-type": "V100"}}


def test_injection(own_control_plane: Client, namespace: str, nodes: Nodes) -> None:
    """V100 × 2 is stored with 8 CPUs and 16Gi; beside a side container it is 7 and 14Gi."""
    nodes.add("v100", {GPU: 8})
    apply(own_control_plane, namespace, pod("two", limits(GPU, 2), **V100))
    found = stored(own_control_plane, namespace, "two")
    expected = {GPU: "2", "cpu": "8", "memory": "16Gi"}
    assert found["spec"]["containers"][0]["resources"] == {"limits": expected, "requests": expected}
    assert found["metadata"]["annotations"]["tke.cloud.tencent.com/networks"] == "tke-route-eni"
    apply(
        own_control_plane,
        namespace,
        pod("mixed", {"requests": {GPU: 2}}, {"requests": {"cpu": "1000m", "memory": "2Gi"}}, **V100),
    )
    expected = {GPU: "2", "cpu": "7", "memory": "14Gi"}
    first, second = stored(own_control_plane, namespace, "mixed")["spec"]["containers"]
    assert first["resources"] == {"limits": expected, "requests": expected}
    assert second["resources"] == {"requests": {"cpu": "1", "memory": "2Gi"}}


def test_injection_of_a_namespace(own_control_plane: Client, nodes: Nodes) -> None:
    """A namespace's rule wins."""
    nodes.add("v100", {GPU: 8})
    own_control_plane.api.create("/api/v1/namespaces", {"metadata": {"name": "gpu-training"}})
    try:
        own_control_plane.wait_for_service_account(namespace="gpu-training")
        apply(own_control_plane, "gpu-training", pod("one", limits(GPU), **V100))
        resources = stored(own_control_plane, "gpu-training", "one")["spec"]["containers"][0]["resources"]
        assert resources["limits"] == {GPU: "1", "cpu": "6", "memory": "12Gi"}
    finally:
        own_control_plane.api.delete(pods_path("gpu-training"), gracePeriodSeconds="0")
        own_control_plane.api.delete("/api/v1/namespaces/gpu-training")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (pod("p", limits(GPU), limits("amd.com/gpu"), **V100), "asks for nvidia.com/gpu and amd.com/gpu"),
        (
            pod("p", limits(GPU), {"requests": {"cpu": "5"}}, **V100),
            "ask for 5 cpu, more than the 4 that 1 GPU × 4 allow",
        ),
        (pod("p", limits(GPU, 0), **V100), "asks for 0 of nvidia.com/gpu"),
    ],
)
def test_injection_errors(
    own_control_plane: Client, namespace: str, webhook: Webhook, document: Object, message: str
) -> None:
    """Each error rejects the pod and says what to change."""
    done = own_control_plane.try_kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document))
    assert done.returncode == 1
    assert message in done.stderr


def test_only_gpu_pods_are_sent(own_control_plane: Client, namespace: str, webhook: Webhook) -> None:
    """The match conditions keep every other pod away from the webhook, by its own counter; exempt namespaces too."""

    requests = webhook.requests
    before = requests()
    apply(own_control_plane, namespace, pod("plain", {"limits": {"cpu": 1}}))
    with own_control_plane.namespace(labels={"gpu-webhook": "disabled"}) as exempt:
        apply(own_control_plane, exempt, pod("gpu", limits(GPU)))
    assert requests() == before
    apply(own_control_plane, namespace, pod("gpu", limits(GPU)))
    assert requests() == before + 1


def test_dry_run_answers_as_tessera_admit_does(
    own_control_plane: Client,
    namespace: str,
    nodes: Nodes,
    webhook: Webhook,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A dry run by the server shows what `tessera admit` showed offline."""
    nodes.add("small", {MIG + "1g.10gb": 28})
    folder = tmp_path_factory.mktemp("offline")
    (folder / "nodes.json").write_text(own_control_plane.kubectl("get", "nodes", "-o", "json"))
    document = json.dumps(pod("p", limits(MIG + "3g.30gb")))
    offline = tessera(
        "admit", "-f", "-", "--from", folder / "nodes.json", "-o", "json", "-n", namespace, stdin=document
    )
    shown = own_control_plane.kubectl(
        "apply", "-n", namespace, "-f", "-", "--dry-run=server", "-o", "json", stdin=document
    )
    ours, theirs = json.loads(offline.stdout), json.loads(shown)
    assert (
        theirs["spec"]["containers"][0]["resources"]["limits"]
        == ours["spec"]["containers"][0]["resources"]["limits"]
    )
    key = "gpu-webhook.k8s.io/fallback"
    assert (
        theirs["metadata"]["annotations"][key] == ours["metadata"]["annotations"][key] == "3g.30gb->1g.10gb"
    )
