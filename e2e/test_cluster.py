"""The cluster itself: what every other test takes for granted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.cluster import (
    BUSYBOX,
    ApiError,
    Client,
    Cluster,
    ClusterError,
    ClusterWithNode,
    Folder,
    KubectlError,
    pods_path,
    schedulable,
)
from e2e.cluster.images import tar, write_image
from e2e.cluster.network import Network
from e2e.cluster.versions import KUBERNETES
from e2e.one_device_plugin import OneDevicePlugin
from e2e.refusing_webhook import RefusingWebhook

_BUSYBOX_POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: busybox}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: {BUSYBOX}
      imagePullPolicy: Never
      command: [sh, -c, "echo hello from $HOSTNAME; exec sleep 1000"]
"""


def _pod(name: str, resources: Mapping[str, int]) -> str:
    container = {"name": "main", "image": BUSYBOX, "resources": {"limits": dict(resources)}}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    )


def test_api_server_answers_in_its_version(own_control_plane: Cluster) -> None:
    """The API server is ready, and is the release that the table names."""
    assert own_control_plane.api.text("/readyz") == "ok"
    version = json.loads(own_control_plane.kubectl("version", "--output=json"))
    assert version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"] == KUBERNETES


def test_images_are_loaded_into_a_running_cluster(cluster_with_node: ClusterWithNode, tmp_path: Path) -> None:
    """`load` makes an archive's image known to the node, and `env` brings the ctr that shows it."""
    archive = tmp_path / "image.tar"
    write_image(archive, "localhost/loaded:1", tar({"bin/x": b""}), command=["x"])
    tool = [sys.executable, "-m", "e2e.cluster"]
    name = f"--name={cluster_with_node.folder.name}"
    loaded = subprocess.run([*tool, "load", name, archive], capture_output=True, text=True, check=True)
    assert "localhost/loaded:1" in loaded.stdout
    variables = subprocess.run([*tool, "env", name], capture_output=True, text=True, check=True).stdout
    listed = subprocess.run(
        ["sh", "-c", f"{variables}\nctr images ls -q; kubectl get nodes -o name"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "localhost/loaded:1" in listed.stdout.splitlines()
    assert f"node/{cluster_with_node.node_name}" in listed.stdout.splitlines()


def test_scheduler_binds_to_nodes_that_are_objects(control_plane: Client, namespace: str) -> None:
    """Two extra nodes of two GPUs: two pods of two are bound, the third waits with the scheduler's reason."""
    for node in ("gpu-a", "gpu-b"):
        labels = {"pool": namespace}
        seen = control_plane.add_node(node, allocatable={"nvidia.com/gpu": 2}, labels=labels)
        assert seen["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    try:
        for name in ("one", "two"):
            control_plane.apply(_pod(name, {"nvidia.com/gpu": 2}), namespace=namespace)
        bound = {control_plane.wait_for_pod_bound(name, namespace=namespace) for name in ("one", "two")}
        assert bound == {"gpu-a", "gpu-b"}
        control_plane.apply(_pod("three", {"nvidia.com/gpu": 2}), namespace=namespace)
        reason = control_plane.wait_for_pod_unschedulable("three", namespace=namespace)
        assert "2 Insufficient nvidia.com/gpu" in reason
        control_plane.set_allocatable("gpu-a", {"nvidia.com/gpu": 4})
        assert control_plane.wait_for_pod_bound("three", namespace=namespace) == "gpu-a"
    finally:
        control_plane.remove_node("gpu-a")
        control_plane.remove_node("gpu-b")


def test_taint_keeps_pods_away(control_plane: Client, namespace: str) -> None:
    """An extra node's taints and labels are its own."""
    taint = {"key": "example.com/keep-out", "value": "yes", "effect": "NoSchedule"}
    node = control_plane.add_node("tainted", labels={"zone": "a"}, taints=[taint])
    try:
        assert node["spec"]["taints"] == [taint]
        assert node["metadata"]["labels"]["zone"] == "a"
        control_plane.apply(_pod("pod", {}), namespace=namespace)
        assert "untolerated taint" in control_plane.wait_for_pod_unschedulable("pod", namespace=namespace)
    finally:
        control_plane.remove_node("tainted")


def test_controllers_make_pods(control_plane: Client, namespace: str) -> None:
    """A Deployment's pods are made, in the name of a service account."""
    control_plane.kubectl(
        "create", "deployment", "web", f"--image={BUSYBOX}", "--replicas=3", "-n", namespace
    )
    made = control_plane.wait_for(
        f"/apis/apps/v1/namespaces/{namespace}/deployments",
        "web",
        lambda item: item["status"].get("replicas") == 3,
    )
    assert made["spec"]["replicas"] == 3
    pods = control_plane.wait(
        lambda: len(items := control_plane.api.get(pods_path(namespace))["items"]) == 3 and items,
        what="three pods",
    )
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"default"}


def test_kubectl_failure_is_told(control_plane: Client, namespace: str) -> None:
    """What kubectl or the API server refuses is an error that says what they said."""
    with pytest.raises(KubectlError, match="NotFound"):
        control_plane.kubectl("get", "pod", "nobody", "-n", namespace)
    with pytest.raises(ApiError, match="404 NotFound"):
        control_plane.api.get(f"{pods_path(namespace)}/nobody")


def test_api_server_restart_loses_nothing(own_control_plane: Cluster, namespace: str) -> None:
    """What was stored before the API server's restart is there after it, with the same client."""
    own_control_plane.apply(_pod("kept", {}), namespace=namespace)
    own_control_plane.restart_apiserver()
    assert own_control_plane.api.get(f"{pods_path(namespace)}/kept")["metadata"]["name"] == "kept"
    assert own_control_plane.metric("apiserver_request_total", verb="GET", resource="pods") >= 1


def test_node_runs_a_pod(cluster_with_node: ClusterWithNode, node_namespace: str) -> None:
    """A pod runs on the real node; `kubectl logs` and `kubectl exec` reach it; it may talk to the API server."""
    cluster = cluster_with_node
    cluster.apply(_BUSYBOX_POD, namespace=node_namespace)
    pod = cluster.wait_for_pod_phase("busybox", "Running", namespace=node_namespace)
    assert pod["spec"]["nodeName"] == cluster.node_name
    assert cluster.kubectl("logs", "busybox", "-n", node_namespace) == "hello from busybox\n"
    in_pod = ("exec", "busybox", "-n", node_namespace, "--", "sh", "-c")
    # busybox's wget cannot speak the API server's TLS: that it is reached and knows the token is seen from outside.
    assert (
        cluster.kubectl(*in_pod, "nc -w 5 $KUBERNETES_SERVICE_HOST 443 </dev/null && echo reached")
        == "reached\n"
    )
    token = cluster.kubectl(*in_pod, "cat /var/run/secrets/kubernetes.io/serviceaccount/token")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = cluster.api.create("/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert answer["status"]["user"]["username"] == f"system:serviceaccount:{node_namespace}:default"
    cluster.kubectl("delete", "pod", "busybox", "-n", node_namespace)
    cluster.wait_gone(pods_path(node_namespace), "busybox")


def test_bridge_keeps_its_address(cluster_with_node: ClusterWithNode, node_namespace: str) -> None:
    """Pods come and go without the others losing their way out: the bridge does not take a pod's address for its own."""
    network = Network.of(cluster_with_node.folder.path)
    assert network is not None
    address = Path("/sys/class/net", network.bridge, "address")
    before = address.read_text()
    cluster_with_node.apply(_BUSYBOX_POD, namespace=node_namespace)
    cluster_with_node.wait_for_pod_phase("busybox", "Running", namespace=node_namespace)
    assert address.read_text() == before == f"{network.hardware_address}\n"


def test_node_hands_out_cdi_devices(cluster_with_node: ClusterWithNode, node_namespace: str) -> None:
    """A device plugin on this machine registers with the kubelet; its device reaches a container through CDI."""
    cluster = cluster_with_node
    device = {"name": "a", "containerEdits": {"env": ["THING=a"]}}
    spec = {"cdiVersion": "0.5.0", "kind": "example.com/thing", "devices": [device]}
    (cluster.cdi_dir / "thing.json").write_text(json.dumps(spec))
    with OneDevicePlugin(cluster.kubelet_dir / "device-plugins", "example.com/thing", "example.com/thing=a"):
        cluster.wait_for_node(
            cluster.node_name, lambda node: node["status"]["allocatable"].get("example.com/thing") == "1"
        )
        pod = json.loads(_pod("cdi", {"example.com/thing": 1}))
        pod["spec"]["restartPolicy"] = "Never"
        pod["spec"]["containers"][0] |= {
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", "echo thing $THING"],
        }
        cluster.apply(json.dumps(pod), namespace=node_namespace)
        cluster.wait_for_pod_phase("cdi", "Succeeded", namespace=node_namespace)
        assert cluster.kubectl("logs", "cdi", "-n", node_namespace) == "thing a\n"
    cluster.wait_for_node(
        cluster.node_name, lambda node: node["status"]["allocatable"].get("example.com/thing") == "0"
    )
    (cluster.cdi_dir / "thing.json").unlink()


@pytest.mark.parametrize("way", ["url", "service"])
def test_api_server_reaches_webhooks(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, way: str
) -> None:
    """A webhook is called by its URL, and by its Service: through the endpoints, since there is no kube-proxy."""
    cluster, address = cluster_with_node, cluster_with_node.node_address

    def refusal() -> str | None:  # the API server takes a moment to hear of a new configuration
        done = cluster.try_kubectl(
            "create", "configmap", "x", "--dry-run=server", f"--namespace={node_namespace}"
        )
        return done.stderr if "not today" in done.stderr else None

    with RefusingWebhook(address, f"webhook.{node_namespace}.svc", tmp_path) as webhook:
        client: dict[str, object]
        if way == "url":
            client = {"url": f"https://{address}:{webhook.port}/"}
        else:
            cluster.apply(webhook.service("webhook"), namespace=node_namespace)
            client = {"service": {"name": "webhook", "namespace": node_namespace}}
        cluster.apply(webhook.configuration(node_namespace, client))
        try:
            assert "denied the request: not today" in cluster.wait(refusal, what="the webhook's refusal")
        finally:
            cluster.kubectl("delete", "validatingwebhookconfiguration", node_namespace)


def test_kubelet_restart_leaves_pods_alone(cluster_with_node: ClusterWithNode, node_namespace: str) -> None:
    """A kubelet that restarts finds its containers again; its plugin socket is made anew."""
    cluster = cluster_with_node
    cluster.apply(_BUSYBOX_POD, namespace=node_namespace)
    before = cluster.wait_for_pod_phase("busybox", "Running", namespace=node_namespace)
    cluster.restart_kubelet()
    assert (cluster.kubelet_dir / "device-plugins" / "kubelet.sock").is_socket()
    cluster.wait_for_node(cluster.node_name, schedulable)
    after = cluster.wait_for_pod_phase("busybox", "Running", namespace=node_namespace)
    started = [pod["status"]["containerStatuses"][0]["containerID"] for pod in (before, after)]
    assert started[0] == started[1]
    assert cluster.kubectl("logs", "busybox", "-n", node_namespace) == "hello from busybox\n"


def test_what_ends_is_named_and_starts_again(cluster_with_node: ClusterWithNode) -> None:
    """A kubelet that dies in one test fails that one, and the next test finds it at work."""
    cluster = cluster_with_node
    cluster.signal("kubelet", signal.SIGKILL)
    cluster.wait(lambda: not cluster.runs("kubelet"), what="the kubelet's end")
    with pytest.raises(ClusterError, match=r"^kubelet had ended: started again for the next test$"):
        cluster.settle()
    cluster.settle()
    cluster.wait_for_node(cluster.node_name, schedulable)


def test_nothing_is_left_behind(cluster_with_node: ClusterWithNode) -> None:
    """A cluster with a running pod is stopped: no process, mount, network device, control group or file stays."""
    name = f"gone{os.getpid()}"
    cluster = ClusterWithNode.start(name)  # beside the other
    try:
        cluster.apply(_BUSYBOX_POD)
        cluster.wait_for_pod_phase("busybox", "Running")
        assert Network.of(cluster.folder.path) is not None
        assert len(cluster.folder.processes()) >= 7
    finally:
        cluster.stop()
    assert cluster.folder.processes() == []
    assert not cluster.folder.path.exists()
    assert Network.of(cluster.folder.path) is None
    assert str(cluster.folder.path) not in Path("/proc/self/mounts").read_text()
    assert not list(Path("/sys/fs/cgroup").rglob(f"tessera-{name}"))
    everything = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(cluster.folder.path) not in everything
    assert name not in {folder.name for folder in Folder.all()}
    assert cluster_with_node.api.text("/readyz") == "ok"
