"""Kueue counts a Job by its template, and a pod of no workload by itself: what it counts is what runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import kueue
from e2e.bridge import (
    DRA,
    NAMESPACE,
    classes,
    dra_node,
    held,
    is_bridged,
    limits_of,
    on_node,
    rights,
    start_controller,
    telling,
)
from e2e.cluster import ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.test_device_plugin import EXAMPLES, MIG, annotate, plugin, pod, runai, wait_allocatable
from e2e.webhook import CONFIGURATION, Webhook, configuration, registered

ONE, TWO = MIG + "1g.10gb", MIG + "2g.20gb"
SMALL = runai("[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]")
LARGE = runai("[2g.20gb, 2g.20gb, 2g.20gb]")
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"


def queue_for_one(name: str) -> list[Object]:
    """A queue for one 1g, in which a namespace's workloads stand under the name `team`."""
    version = "kueue.x-k8s.io/v1beta2"
    flavor = {"name": name, "resources": [{"name": ONE, "nominalQuota": 1}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [ONE], "flavors": [flavor]}]}
    return [
        {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": name}},
        {"apiVersion": version, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": version, "kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": name}},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(
    cluster_with_node: ClusterWithNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterWithNode]:
    """A node of 1g slices, Kueue, and the webhook registered for pods and for Jobs."""
    annotate(cluster_with_node, SMALL)
    try:
        with (
            plugin(cluster_with_node, tmp_path_factory.mktemp("plugin"), EXAMPLES / "simulated-h200.yaml"),
            kueue.kueue(cluster_with_node, tmp_path_factory.mktemp("kueue")),
            Webhook(
                cluster_with_node,
                tmp_path_factory.mktemp("webhook"),
                f"--tessera-namespace={NAMESPACE}",
                config="fallback: {grace: 0s}",
            ) as webhook,
            registered(cluster_with_node, webhook, failurePolicy="Fail"),
        ):
            _register_jobs(cluster_with_node, webhook)
            wait_allocatable(cluster_with_node, {ONE: "28", TWO: "0"})
            yield cluster_with_node
    finally:
        annotate(cluster_with_node, None)
    wait_allocatable(cluster_with_node, {ONE: "0"})


def _register_jobs(cluster: ClusterWithNode, webhook: Webhook) -> None:
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
    cluster.kubectl("patch", "mutatingwebhookconfiguration", CONFIGURATION, "--type=json", f"--patch={patch}")


class Team:
    """Jobs in a queue."""

    def __init__(self, cluster: ClusterWithNode, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._cluster.kubectl(*arguments, "-n", self._namespace, stdin=stdin)

    def job(self, name: str) -> str:
        """A Job that asks for 2g."""
        return json.dumps(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "labels": {QUEUE_NAME: "team"}},
                "spec": {"template": {"spec": json.loads(pod("", TWO, 1))["spec"]}},
            }
        )

    def decided(self) -> bool:
        """Whether both webhooks are called for Jobs, in the right order."""
        shown = self._cluster.try_kubectl(
            "create", "-n", self._namespace, "--dry-run=server", "-o", "json", "-f", "-", stdin=self.job("dry")
        )  # fmt: skip
        return shown.returncode == 0 and ONE in shown.stdout and '"suspend": true' in shown.stdout

    def gets_more(self) -> bool:
        """Whether a pod of no workload that asks for 1g is given 2g by now."""
        shown = self._cluster.try_kubectl(
            "create", "-n", self._namespace, "--dry-run=server", "-o", "json", "-f", "-", stdin=pod("dry", ONE, 1)
        )  # fmt: skip
        return shown.returncode == 0 and TWO in shown.stdout

    def charged(self, name: str) -> list[Object] | None:
        """What Kueue counts for an admitted Job or pod; None while it waits."""
        for one in self._cluster.api.get(f"{kueue.GROUP}/namespaces/{self._namespace}/workloads")["items"]:
            admission = one.get("status", {}).get("admission")
            if admission and one["metadata"]["ownerReferences"][0]["name"] == name:
                return [each["resourceUsage"] for each in admission["podSetAssignments"]]
        return None

    def pod_of(self, name: str) -> Object | None:
        """The only pod of a Job."""
        found = self._cluster.api.get(pods_path(self._namespace), labelSelector=f"job-name={name}")["items"]
        return found[0] if found else None

    def runs(self, name: str) -> Object | None:
        """The pod of a Job, once it runs."""
        found = self.pod_of(name)
        return found if found is not None and found["status"]["phase"] == "Running" else None


def test_what_kueue_charges_is_what_runs(cluster: ClusterWithNode, node_namespace: str) -> None:
    """A queue for one 1g, Jobs that ask for 2g: charged 1g, running on 1g; also after the nodes have been re-cut."""
    team = Team(cluster, node_namespace)
    for one in queue_for_one("slices"):
        team.kubectl("create", "-f", "-", stdin=json.dumps(one))
    cluster.wait(team.decided, what="both webhooks called for Jobs")
    for name in ("first", "second"):
        team.kubectl("create", "-f", "-", stdin=team.job(name))
    found = cluster.wait(lambda: team.runs("first"), what="the first Job's pod running")
    assert found["spec"]["containers"][0]["resources"]["limits"] == {ONE: "1"}
    annotations = found["metadata"]["annotations"]
    assert annotations["gpu-webhook.k8s.io/fallback"] == "2g.20gb->1g.10gb"
    assert annotations["gpu-webhook.k8s.io/decided"] == "template"
    assert team.charged("first") == [{ONE: "1"}]
    queue = cluster.wait(
        lambda: (
            one if (one := cluster.api.get(f"{kueue.GROUP}/clusterqueues/slices"))["status"]["pendingWorkloads"] else None
        ),
        what="the second Job waiting in the queue",
    )  # fmt: skip
    assert [(one["name"], one["total"]) for one in queue["status"]["flavorsUsage"][0]["resources"]] == [
        (ONE, "1")
    ]
    assert team.pod_of("second") is None

    team.kubectl("patch", "clusterqueue", "slices", "--type=merge", '--patch={"spec":{"stopPolicy":"Hold"}}')
    team.kubectl("delete", "job", "first")
    cluster.wait(lambda: team.pod_of("first") is None, what="the first Job's pod gone")
    annotate(cluster, LARGE)
    wait_allocatable(cluster, {ONE: "0", TWO: "12"})
    cluster.wait(team.gets_more, what="the webhook knowing that there is only 2g")
    team.kubectl("patch", "clusterqueue", "slices", "--type=merge", '--patch={"spec":{"stopPolicy":"None"}}')
    cluster.wait(lambda: team.pod_of("second"), what="the second Job's pod")
    assert team.charged("second") == [{ONE: "1"}]
    annotate(cluster, SMALL)
    found = cluster.wait(lambda: team.runs("second"), what="the second Job's pod running", timeout=120)
    assert found["spec"]["containers"][0]["resources"]["limits"] == {ONE: "1"}
    team.kubectl("delete", "job", "second")


def gates_of(one: Object) -> list[str]:
    """What keeps the scheduler from a pod."""
    return [gate["name"] for gate in one["spec"].get("schedulingGates", [])]


def test_a_pod_in_a_queue_is_not_bridged(
    cluster: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """Where requests become claims, those of pods in a queue stay: charged as what they ask for, bound when admitted."""
    team = Team(cluster, node_namespace)
    path = pods_path(node_namespace)

    def asks(name: str, labels: Object) -> Object:
        made: Object = on_node(json.loads(pod(name, ONE, 1)), "claimed")
        made["metadata"]["labels"] = labels
        return made

    with (
        dra_node(cluster, "claimed", **{"1g.10gb": 2, "2g.20gb": 1}),
        classes(cluster),
        rights(cluster, tmp_path),
        start_controller(cluster, tmp_path) as controller,
        telling(cluster, node_namespace),
    ):
        controller.wait_for_log("leading as")
        cluster.api.patch(
            f"/api/v1/namespaces/{node_namespace}", {"metadata": {"annotations": {DRA: "first-available"}}}
        )
        cluster.wait(
            lambda: is_bridged(cluster.api.create(path, asks("dry", {}), dryRun="All")) or None,
            what="requests of pods in no queue become claims",
        )
        for one in queue_for_one("pods"):
            team.kubectl("create", "-f", "-", stdin=json.dumps(one))

        def gated(name: str) -> list[str]:
            found: Object = cluster.api.get(f"{path}/{name}")
            assert not is_bridged(found)
            assert limits_of(found) == {ONE: "1"}
            return gates_of(found)

        for name in ("first", "second"):
            stored = cluster.api.create(path, asks(name, {QUEUE_NAME: "team"}))
            assert GATE in gates_of(stored), "before its admission"
            assert not is_bridged(stored)
            if name == "first":
                assert cluster.wait_for_pod_bound(name, namespace=node_namespace) == "claimed"
        assert team.charged("first") == [{ONE: "1"}]
        assert len(held(cluster, node_namespace)) == 1
        cluster.wait(
            lambda: (
                cluster.api.get(f"{kueue.GROUP}/clusterqueues/pods")["status"]["pendingWorkloads"] or None
            ),
            what="the second pod waiting in the queue",
        )
        assert GATE in gated("second")
        assert gated("first") == []

        cluster.api.delete(f"{path}/first", gracePeriodSeconds="0")
        assert cluster.wait_for_pod_bound("second", namespace=node_namespace) == "claimed"
        assert gated("second") == []
        assert team.charged("second") == [{ONE: "1"}]
        cluster.api.delete(f"{path}/second", gracePeriodSeconds="0")
        cluster.wait_gone(path, "second")
