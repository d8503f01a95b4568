"""Kueue counts a Job by its template. With templates decided about at creation, what it counts is what runs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import kueue
from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.test_admission import MIG, Nodes, limits, pod
from e2e.webhook import Webhook, configuration, registered
from tessera.protocol import yaml

ONE, TWO = MIG + "1g.10gb", MIG + "2g.20gb"
QUEUE = f"""\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: any}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: slices}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
    - coveredResources: [{ONE}]
      flavors: [{{name: any, resources: [{{name: {ONE}, nominalQuota: 2}}]}}]
"""


@pytest.fixture(scope="module")
def webhook(own_control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """Kueue, and the webhook registered for pods and for Jobs."""
    folder = tmp_path_factory.mktemp("webhook")
    with (
        kueue.kueue(own_control_plane, tmp_path_factory.mktemp("kueue")),
        Webhook(own_control_plane, folder) as running,
        registered(own_control_plane, running, failurePolicy="Fail"),
    ):
        _register_jobs(own_control_plane, running)
        yield running


def _register_jobs(cluster: Client, webhook: Webhook) -> None:
    """Add the second webhook, as the chart does for `webhook.workloads`."""
    pods = configuration(webhook.client)["webhooks"][0]
    jobs = {
        **{key: value for key, value in pods.items() if key != "matchConditions"},
        "name": f"workloads.{pods['name']}",
        "rules": [
            {"operations": ["CREATE"], "apiGroups": ["batch"], "apiVersions": ["*"], "resources": ["jobs"]}
        ],
    }
    patch = json.dumps([{"op": "add", "path": "/webhooks/-", "value": jobs}])
    cluster.kubectl(
        "patch", "mutatingwebhookconfiguration", "gpu-allocation-webhook", "--type=json", f"--patch={patch}"
    )


@pytest.fixture
def nodes(own_control_plane: Client, webhook: Webhook) -> Iterator[Nodes]:
    """A way to add nodes."""
    made = Nodes(own_control_plane, webhook)
    yield made
    made.clear()


def job(name: str, profile: str) -> Object:
    template: dict[str, Any] = {"spec": pod("", limits(profile))["spec"]}
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "team"}},
        "spec": {"template": template},
    }


def test_what_kueue_charges_is_what_runs(own_control_plane: Client, namespace: str, nodes: Nodes) -> None:
    """A queue for two 1g, three Jobs that ask for 2g: each is charged 1g and runs on 1g; the third waits for its turn."""
    cluster = own_control_plane
    nodes.add("small", {ONE: 28})
    for one in yaml.load_all(QUEUE.encode(), "queue"):
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(one))
    local = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "team"},
        "spec": {"clusterQueue": "slices"},
    }
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(local))

    def decided() -> bool:
        shown = cluster.try_kubectl(
            "create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(job("dry", TWO))
        )  # fmt: skip
        return shown.returncode == 0 and ONE in shown.stdout and '"suspend": true' in shown.stdout

    cluster.wait(decided, what="both webhooks called for Jobs")
    for name in ("a", "b", "c"):
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(job(name, TWO)))

    def charged() -> list[Object] | None:
        workloads = cluster.api.get(f"{kueue.GROUP}/namespaces/{namespace}/workloads")["items"]
        admitted = [one["status"]["admission"] for one in workloads if one.get("status", {}).get("admission")]
        return admitted if (len(workloads), len(admitted)) == (3, 2) else None

    for admission in cluster.wait(charged, what="two Jobs admitted by Kueue"):
        assert [one["resourceUsage"] for one in admission["podSetAssignments"]] == [{ONE: "1"}]
    found = cluster.wait(
        lambda: some if len(some := cluster.api.get(pods_path(namespace))["items"]) == 2 else None,
        what="the pods of two Jobs",
    )
    for one in found:
        assert one["spec"]["containers"][0]["resources"]["limits"] == {ONE: "1"}
        annotations = one["metadata"]["annotations"]
        assert annotations["gpu-webhook.k8s.io/fallback"] == "2g.20gb->1g.10gb"
        assert annotations["gpu-webhook.k8s.io/decided"] == "template"
        assert cluster.wait_for_pod_bound(one["metadata"]["name"], namespace=namespace) == "small"
    usage = cluster.api.get(f"{kueue.GROUP}/clusterqueues/slices")["status"]["flavorsUsage"]
    assert usage[0]["resources"] == [{"name": ONE, "total": "2"}] or usage[0]["resources"][0]["total"] == "2"
