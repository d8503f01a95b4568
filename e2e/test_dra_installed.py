"""The DRA driver as users install it, and a node that moves from the device plugin to it."""

import base64
import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.image.errors import ImageError
from tools.image.layers import build_archive

from e2e import dra
from e2e.chart import CHART, Helm
from e2e.cluster import ClusterWithNode, Object, Unavailable, pods_path
from e2e.command import tessera

IMAGE = "localhost/tessera:e2e-dra"
NAMESPACE = "tessera-dra"
TWO = "nvidia.com/mig-2g.20gb"
PLUGIN, DRIVER, CONTROLLER = (f"app=tessera-{name}" for name in ("device-plugin", "dra-driver", "controller"))


@pytest.fixture
def installed(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> Iterator[ClusterWithNode]:
    """The chart with both ways to hand out the same simulated cards; the node's label chooses."""
    cluster = cluster_with_node
    try:
        build_archive(tmp_path / "tessera.tar", IMAGE)
    except ImageError as error:
        raise Unavailable(str(error)) from error
    cluster.load_image(tmp_path / "tessera.tar")
    cluster.forget_devices()
    helm = Helm(tmp_path, cluster)
    simulated = {"product": "Simulated H200-70GB", "cards": 1, "layout": "2g.20gb=2,3g.30gb=1"}
    values = {
        "image": {"repository": IMAGE.rpartition(":")[0], "tag": "e2e-dra", "pullPolicy": "Never"},
        "webhook": {"enabled": False},
        "controller": {"enabled": True, "replicaCount": 1},
        "devicePlugin": {"enabled": True, "config": {"simulated": simulated}},
        "draDriver": {
            "enabled": True,
            "classes": {"profiles": ["1g.10gb", "2g.20gb", "3g.30gb"], "extendedResources": True},
        },
    }
    for one in cluster.api.get(dra.CLASSES)["items"]:  # of tests without the chart
        cluster.api.delete(f"{dra.CLASSES}/{one['metadata']['name']}")
    dra.remove_slices(cluster)  # likewise: the driver would take them for its own, and keep them
    try:
        helm("install", "tessera", CHART, f"-n={NAMESPACE}", "--create-namespace", values=values)
        yield cluster
    finally:
        # in this order, also when the test failed: claims end while a driver is there, slices go when none writes them anew
        with contextlib.suppress(Exception):
            dra.remove_pods(cluster, node_namespace)
        with contextlib.suppress(Exception):
            helm("uninstall", "tessera", f"-n={NAMESPACE}", "--ignore-not-found", "--wait")
        cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
        cluster.wait(lambda: not cluster.api.get(pods_path(NAMESPACE))["items"], what="the driver has ended")
        dra.remove_slices(cluster)
        cluster.forget_devices()


def _pods(cluster: ClusterWithNode, label: str) -> list[Object]:
    listed = cluster.api.get(pods_path(NAMESPACE), labelSelector=label)["items"]
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def _ready(cluster: ClusterWithNode, label: str) -> Object | None:
    for pod in _pods(cluster, label):
        statuses = pod["status"].get("containerStatuses") or [{}]
        if statuses[0].get("ready"):
            return pod
    return None


def _label(cluster: ClusterWithNode, mode: str) -> None:
    cluster.api.patch(
        f"/api/v1/nodes/{cluster.node_name}", {"metadata": {"labels": {"tessera.dev/devices": mode}}}
    )


@pytest.mark.timeout(420, func_only=True)  # two DaemonSets come and go, and the kubelet restarts
def test_a_node_moves_from_plugin_to_dra(installed: ClusterWithNode, node_namespace: str) -> None:
    """The label moves a node; nothing is offered twice; unchanged pods run before and after; the token opens its node alone."""
    cluster = installed
    cluster.wait(lambda: _ready(cluster, PLUGIN), what="the device plugin is ready")
    cluster.wait_for_node(cluster.node_name, lambda node: node["status"]["allocatable"].get(TWO) == "2")
    leader = cluster.wait(lambda: _ready(cluster, CONTROLLER), what="the controller is ready")
    lease = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/tessera-controller")
    assert lease["spec"]["holderIdentity"].startswith(leader["metadata"]["name"]), (
        "it leads, with its own rights"
    )
    assert _pods(cluster, DRIVER) == [], "no label: the device plugin's"
    dra.run(cluster, node_namespace, [dra.pod("before", limits={TWO: 1})])

    _label(cluster, "dra")
    cluster.wait(lambda: not _pods(cluster, PLUGIN) or None, what="the device plugin has left")
    # its pod still has a device: the driver is there, and offers nothing
    [pod] = cluster.wait(lambda: _pods(cluster, DRIVER) or None, what="the driver has come")
    name = pod["metadata"]["name"]
    cluster.wait(
        lambda: "from a device plugin" in cluster.try_kubectl("logs", name, "-n", NAMESPACE).stdout or None,
        what="the driver says why it offers nothing",
    )
    assert dra.slices(cluster) == []
    told = {"fieldSelector": "reason=DevicePluginConflict"}
    events = "/api/v1/namespaces/default/events"
    cluster.wait(lambda: cluster.api.get(events, **told)["items"], what="an event of the node says so too")
    cluster.kubectl("delete", "pod", "before", "-n", node_namespace)

    # the kubelet remembers the plugin for five minutes, and starts no container with its resources meanwhile: `why` says so
    expected = {"gpu-0-mig-2g-20gb-0", "gpu-0-mig-2g-20gb-2", "gpu-0-mig-3g-30gb-4"}
    cluster.wait(lambda: set(dra.devices(cluster)) == expected or None, what="the devices are offered")
    assert cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["capacity"][TWO] == "2", (
        "what is left of the plugin"
    )
    cluster.apply(dra.pod("after-0", limits={TWO: 1}), namespace=node_namespace)
    asked = ("why", "after-0", "-n", node_namespace, f"--kubeconfig={cluster.kubeconfig}")
    said = cluster.wait(
        lambda: out if "local cache" in (out := tessera(*asked).stdout) else None, what="it does not start"
    )
    assert f"systemctl restart kubelet   # on node {cluster.node_name}" in said
    cluster.restart_kubelet()
    found = cluster.wait(lambda: _ready(cluster, DRIVER), what="the DRA driver is ready")
    cluster.wait_for_pod_phase("after-0", "Running", namespace=node_namespace)  # it tries again by itself
    dra.run(cluster, node_namespace, [dra.pod("after-1", limits={TWO: 1})])
    assert dra.seen(cluster, node_namespace, "after-0") == ["2g.20gb"]
    cluster.apply(dra.pod("waits", limits={TWO: 1}), namespace=node_namespace)
    cluster.wait_for_pod_unschedulable("waits", namespace=node_namespace)

    own = cluster.node_name
    driver = _token(cluster, "tessera-dra-driver", found)
    assert _refusal(cluster, driver, _slice(own)) == ""
    assert "only the ResourceSlices of its own node" in _refusal(cluster, driver, _slice("another-node"))
    assert "only the ResourceSlices of its own node" in _refusal(
        cluster, _token(cluster, "tessera-dra-driver", None), _slice(own)
    )
    assert "only ResourceSlices of gpu.tessera.dev" in _refusal(
        cluster, driver, _slice(own, driver="gpu.example.com")
    )
    assert "only slices of its own node's pool" in _refusal(
        cluster, driver, _slice(own, pool="another-node/tessera")
    )
    forged = {"apiVersion": "v1", "kind": "Node", "name": "another-node", "uid": "x"}
    assert "owned by its node" in _refusal(cluster, driver, _slice(own, ownerReferences=[forged]))
    assert "no finalizer" in _refusal(cluster, driver, _slice(own, finalizers=["example.com/stay"]))

    leading = _token(cluster, "tessera-controller", leader)
    assert _refusal(cluster, leading, _template(node_namespace)) == ""
    assert "where the webhook sees no pods" in _refusal(cluster, leading, _template("kube-system"))
    assert "only templates that it made" in _refusal(cluster, leading, _template(node_namespace, labels={}))
    assert "only templates that it made" in _refusal(
        cluster, leading, _template(node_namespace, name="somebodys")
    )
    assert "no owner and no finalizer" in _refusal(
        cluster, leading, _template(node_namespace, ownerReferences=[forged])
    )
    foreign = _template(node_namespace, name="somebodys", labels={})
    cluster.apply(json.dumps(foreign), namespace=node_namespace)
    assert "only templates that it made" in _refusal(cluster, leading, foreign, delete=True)

    # an update: the new process is registered before the old one goes
    cluster.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/tessera-dra-driver")
    cluster.kubectl(
        "rollout", "status", "-n", NAMESPACE, "daemonset/tessera-dra-driver", "--timeout=120s", timeout=130
    )
    assert dra.seen(cluster, node_namespace, "after-1") == ["2g.20gb"]
    cluster.kubectl("delete", "pod", "after-0", "-n", node_namespace)
    cluster.wait_for_pod_phase("waits", "Running", namespace=node_namespace)

    # an uninstall now would leave these two in Terminating; once they are gone, nothing holds it up
    code, found = _before_uninstall(cluster)
    held = [one["text"] for one in found["held"]["findings"]]
    named = [f"pod {node_namespace}/{name} holds gpu-0-mig-2g-20gb-" for name in ("after-1", "waits")]
    assert code == 3
    assert [text[: len(begins)] for text, begins in zip(held, named, strict=True)] == named
    chosen, simulated = (one["text"] for one in found["labels"]["findings"])
    assert f"the label tessera.dev/devices stays on 1 node ({own})" in chosen
    assert f"of simulated cards stay on 1 node ({own})" in simulated
    dra.remove_pods(cluster, node_namespace)
    code, found = _before_uninstall(cluster, "--wait", "--timeout=60s")
    assert (code, found["held"]["findings"]) == (0, [])
    _move_with_devices_in_use(cluster, node_namespace)


def _move_with_devices_in_use(cluster: ClusterWithNode, namespace: str) -> None:
    """Whoever moves a node too early, or while the kubelet restarts, has no device in two pods."""

    def allocatable(count: str) -> None:
        cluster.wait_for_node(cluster.node_name, lambda node: node["status"]["allocatable"].get(TWO) == count)

    dra.run(cluster, namespace, [dra.pod("claims", limits={TWO: 1})])
    _label(cluster, "plugin")
    allocatable("1")  # the other is the claim's, and only the driver can end that
    _label(cluster, "dra")
    cluster.wait(lambda: _ready(cluster, DRIVER), what="the driver is back")
    dra.remove_pods(cluster, namespace)
    _label(cluster, "plugin")
    allocatable("2")
    cluster.wait(lambda: dra.slices(cluster) == [] or None, what="the kubelet has removed the slices")
    dra.run(cluster, namespace, [dra.pod("plugged", limits={TWO: 1})])
    _label(cluster, "dra")
    cluster.wait(lambda: not _pods(cluster, PLUGIN) or None, what="the device plugin has left again")
    cluster.restart_kubelet()
    [pod] = cluster.wait(lambda: _pods(cluster, DRIVER) or None, what="the driver has come again")
    logs = ("logs", pod["metadata"]["name"], "-n", NAMESPACE)
    cluster.wait(
        lambda: "(" + namespace + "/plugged)" in cluster.try_kubectl(*logs).stdout or None,
        what="the driver says whose devices it does not offer",
    )
    assert "ResourceSlices written" not in cluster.kubectl(*logs)
    cluster.kubectl("delete", "pod", "plugged", "-n", namespace)
    cluster.wait(lambda: len(dra.devices(cluster)) == 3 or None, what="the devices are offered again")


def _before_uninstall(cluster: ClusterWithNode, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `tessera doctor --before-uninstall`, and its checks by name."""
    done = tessera(
        "doctor", f"--kubeconfig={cluster.kubeconfig}", "--before-uninstall", "--output=json", *options
    )
    assert not done.stderr, done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}


def _token(cluster: ClusterWithNode, account: str, pod: Object | None) -> str:
    """A token of a service account, bound to a pod of it or to none."""
    bound = (
        ("--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}", f"--bound-object-uid={pod['metadata']['uid']}")
        if pod
        else ()
    )  # fmt: skip
    return cluster.kubectl("create", "token", account, f"-n={NAMESPACE}", *bound).strip()


def _slice(node: str, *, driver: str = dra.DRIVER, pool: str = "", **metadata: Any) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "tried", **metadata},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or f"{node}/tessera", "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }


def _template(namespace: str, *, name: str = "tessera-tried", **metadata: Any) -> Object:
    labels = {"app.kubernetes.io/managed-by": "tessera-controller"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, **metadata},
        "spec": {"spec": {"devices": {"requests": []}}},
    }


def _refusal(cluster: ClusterWithNode, token: str, document: Object, *, delete: bool = False) -> str:
    """Create or delete an object with a token, as a dry run; what the API server has against it."""
    metadata = document["metadata"]
    path = dra.SLICES
    if document["kind"] == "ResourceClaimTemplate":
        path = f"/apis/resource.k8s.io/v1/namespaces/{metadata['namespace']}/resourceclaimtemplates"
    entry = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = base64.b64decode(entry["certificate-authority-data"]).decode()
    request = urllib.request.Request(  # noqa: S310 # the API server's address
        f"{entry['server']}{path}{'/' + metadata['name'] if delete else ''}?dryRun=All",
        data=None if delete else json.dumps(document).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="DELETE" if delete else "POST",
    )
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=authority)):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return str(json.load(error)["message"])
