"""Events as `kubectl describe` shows them: on the owners of pods and on nodes."""

import re
from pathlib import Path

from e2e.cluster import Client, ClusterWithNode, pods_path
from e2e.test_device_plugin import EXAMPLES, GPU, MIG, annotate, plugin, pod, runai, wait_allocatable
from e2e.test_why import deployment
from e2e.webhook import Webhook, registered

NODE = "events-a"


def described(cluster: Client, kind: str, name: str, namespace: str | None = None) -> str:
    """The events that `kubectl describe` shows, with single spaces."""
    where = ["-n", namespace] if namespace else []
    text = cluster.kubectl("describe", kind, name, *where).partition("\nEvents:")[2]
    return re.sub(r"[ \t]+", " ", text)


def test_replica_set_is_told(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """Three pods fall back: one event, counted, on their ReplicaSet. A dry run leaves none, and a rejection is a warning."""
    control_plane.add_node(NODE, allocatable={MIG + "1g.10gb": 7})
    try:
        with Webhook(control_plane, tmp_path) as webhook, registered(control_plane, webhook):
            deployment(control_plane, namespace, "2g.20gb", 3)
            control_plane.wait(lambda: webhook.metric('gpu_webhook_events_total{result="written"}') == 3)
            (name,) = control_plane.kubectl("get", "rs", "-n", namespace, "-o", "name").split()
            told = described(control_plane, "rs", name.partition("/")[2], namespace)
            line = next(line for line in told.splitlines() if "GPUFallback" in line)
            assert "Normal GPUFallback" in line
            assert "(x3 over" in line
            assert line.endswith("gpu-webhook a pod gets 1g.10gb in place of 2g.20gb: 2g.20gb is not offered, 1g.10gb is the first that is")  # fmt: skip

            made = control_plane.api.get(pods_path(namespace))["items"][0]
            owned = {
                "metadata": {"name": "dry", "ownerReferences": made["metadata"]["ownerReferences"]},
                "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": {MIG + "2g.20gb": "1"}}}]},
            }  # fmt: skip
            before = webhook.requests()
            control_plane.api.create(pods_path(namespace), owned, dryRun="All")
            control_plane.wait(lambda: webhook.requests() > before, what="the dry run counted")
            assert "(x3 over" in described(control_plane, "rs", name.partition("/")[2], namespace)

            control_plane.kubectl(
                "annotate", "namespace", namespace, "gpu-webhook.k8s.io/fallback-policy=larger"
            )
            control_plane.wait(
                lambda: (
                    control_plane.kubectl("scale", "deploy/web", "-n", namespace, "--replicas=0")
                    and control_plane.kubectl("scale", "deploy/web", "-n", namespace, "--replicas=1")
                    and webhook.metric('gpu_webhook_rejections_total{reason="not_offered"}')
                ),
                what="a rejected pod",
            )
            control_plane.wait(
                lambda: (
                    "Warning GPURejected" in described(control_plane, "rs", name.partition("/")[2], namespace)
                ),
                what="a warning on the ReplicaSet",
            )
    finally:
        control_plane.remove_node(NODE)


def test_node_is_told_of_its_layout(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A layout that cannot be, one that waits for a pod, and that it is in place: on the node."""
    cluster = cluster_with_node

    def told(text: str) -> None:
        cluster.wait(lambda: text in described(cluster, "node", cluster.node_name), what=text)

    annotate(cluster, None)
    try:
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            wait_allocatable(cluster, {MIG + "2g.20gb": "8", MIG + "3g.30gb": "4"})
            annotate(cluster, runai("[9g.90gb]"))
            told("Warning MIGLayoutFailed")
            annotate(cluster, None)
            wait_allocatable(cluster, {MIG + "2g.20gb": "8", MIG + "3g.30gb": "4"})
            cluster.apply(pod("holder", MIG + "3g.30gb", 1), namespace=node_namespace)
            cluster.wait_for_pod_phase("holder", "Running", namespace=node_namespace)
            annotate(cluster, runai("[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]"))
            told("Normal MIGLayoutPending")
            cluster.kubectl("delete", "pod", "holder", "-n", node_namespace)
            told("Normal MIGLayoutApplied")
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {MIG + "1g.10gb": "0"})


def test_node_is_told_of_ill_devices(
    cluster_with_node: ClusterWithNode, tmp_path: Path, mock_devices: None
) -> None:
    """A device whose node goes away is ill, and well when it is back."""
    cluster, device = cluster_with_node, Path("/dev/mock/device_7")
    with plugin(cluster, tmp_path, EXAMPLES / "mock-devices.yaml"):
        wait_allocatable(cluster, {GPU: "8"})
        away = device.rename(device.with_name("away"))
        try:
            wait_allocatable(cluster, {GPU: "7"})
            cluster.wait(
                lambda: (
                    "Warning GPUUnhealthy" in (text := described(cluster, "node", cluster.node_name))
                    and "device_7" in text
                ),
                what="a word about the ill device",
            )
        finally:
            away.rename(device)
        cluster.wait(
            lambda: "Normal GPUHealthy" in described(cluster, "node", cluster.node_name),
            what="a word about the device that is back",
        )
