"""Events as `kubectl describe` shows them: on the owners of pods and on nodes."""

import re
from pathlib import Path

from e2e import bridge
from e2e.cluster import Client, ClusterWithNode, Object, pods_path
from e2e.test_device_plugin import EXAMPLES, GPU, MIG, annotate, plugin, pod, runai, wait_allocatable
from e2e.test_why import deployment
from e2e.webhook import Webhook, registered

NODE = "events-a"


def described(cluster: Client, kind: str, name: str, namespace: str | None = None) -> str:
    """The events that `kubectl describe` shows, with single spaces."""
    where = ["-n", namespace] if namespace else []
    text = cluster.kubectl("describe", kind, name, *where).partition("\nEvents:")[2]
    return re.sub(r"[ \t]+", " ", text)


def test_fallbacks_and_rejections_are_reported(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """The controller reports a fallback on each pod; the ReplicaSet's own controller a rejection. The webhook, which anyone may call, writes nothing."""
    control_plane.add_node(NODE, allocatable={MIG + "1g.10gb": 7})

    def written_by(component: str) -> list[Object]:
        events: list[Object] = control_plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        return [one for one in events if one["source"].get("component") == component]

    try:
        with (
            Webhook(control_plane, tmp_path / "webhook") as webhook,
            registered(control_plane, webhook),
            bridge.rights(control_plane, tmp_path),
            bridge.start_controller(control_plane, tmp_path) as controller,
        ):
            controller.wait_for_log("leading as")
            deployment(control_plane, namespace, "2g.20gb", 3)
            told = control_plane.wait(
                lambda: found if len(found := written_by("tessera-controller")) == 3 else None,
                what="an event on each pod",
            )
            pods = {pod["metadata"]["name"] for pod in control_plane.api.get(pods_path(namespace))["items"]}
            assert {event["involvedObject"]["name"] for event in told} == pods
            assert {(event["reason"], event["message"]) for event in told} == {
                ("GPUFallback", "the webhook gave it 1g.10gb in place of 2g.20gb")
            }

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
            (name,) = control_plane.kubectl("get", "rs", "-n", namespace, "-o", "name").split()
            control_plane.wait(
                lambda: (
                    "Warning FailedCreate"
                    in (text := described(control_plane, "rs", name.partition("/")[2], namespace))
                    and "2g.20gb" in text
                ),
                what="a warning on the ReplicaSet, with the webhook's message",
            )
            assert written_by("gpu-webhook") == []
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
    """A device whose node vanishes is unhealthy, and healthy when it is back."""
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
