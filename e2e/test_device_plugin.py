"""The device plugin on a real kubelet, its devices in real containers."""

import base64
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from e2e.cluster import ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.command import Running, node_options
from e2e.pods import FOREVER, busybox_pod

EXAMPLES = Path(__file__).parents[1] / "examples"
GPU = "device.example.com/gpu"
MIG = "nvidia.com/mig-"


def plugin(cluster: ClusterWithNode, tmp_path: Path, config: Path, *options: str | Path) -> Running:
    """The device plugin of the cluster's node, as a process on this machine.

    An earlier one is forgotten first: its devices are on the node until the kubelet has noticed that it is gone.
    """
    cluster.wait_for_node(cluster.node_name, lambda node: not _devices(node))
    return Running(
        "device-plugin",
        *node_options(cluster, config, tmp_path),
        *options,
        log=tmp_path / "device-plugin.log",
    )


def _devices(node: Object) -> dict[str, str]:
    """The devices that pods could be given now."""
    allocatable: dict[str, str] = node["status"]["allocatable"]
    return {name: count for name, count in allocatable.items() if "/" in name and count != "0"}


def pod(name: str, resource: str, count: int, script: str = FOREVER) -> str:
    """A busybox pod with devices."""
    return busybox_pod(name, {"limits": {resource: count}}, script)


def wait_allocatable(cluster: ClusterWithNode, expected: dict[str, str], timeout: float = 120.0) -> Object:
    """Wait until the node's allocatable shows exactly these (None: not there or "0")."""

    def shows(node: Object) -> bool:
        has: dict[str, Any] = node["status"]["allocatable"]
        return all(has.get(resource, "0") == count for resource, count in expected.items())

    return cluster.wait_for_node(cluster.node_name, shows, timeout=timeout)


def annotate(cluster: ClusterWithNode, layout: str | None) -> None:
    cluster.api.patch(
        f"/api/v1/nodes/{cluster.node_name}", {"metadata": {"annotations": {"run.ai/mig.config": layout}}}
    )


def runai(devices: str, cards: str = "[0, 1, 2, 3]") -> str:
    return f"version: v1\nmig-configs:\n  selected:\n  - devices: {cards}\n    mig-enabled: true\n    mig-devices: {devices}\n"


def test_mock_devices_through_cdi(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, mock_devices: None
) -> None:
    """Eight devices: pods with 4 and 3 see exactly their own, 2 more wait for room, and run once it is there."""
    cluster, listing = cluster_with_node, "ls /dev/mock /mock/lib; exec sleep 1000"
    with plugin(cluster, tmp_path, EXAMPLES / "mock-devices.yaml"):
        wait_allocatable(cluster, {GPU: "8"})
        seen: list[str] = []
        for name, count in (("four", 4), ("three", 3)):
            cluster.apply(pod(name, GPU, count, listing), namespace=node_namespace)
            cluster.wait_for_pod_phase(name, "Running", namespace=node_namespace)
            lines = cluster.wait(
                lambda name=name: (
                    log if len((log := logged(cluster, node_namespace, name)).split()) > 3 else None
                ),  # type: ignore[misc]
                what="the container's listing",
            ).split()
            devices = sorted(
                line for line in lines if line.startswith("device_") and not line.endswith(".so")
            )
            libraries = sorted(line for line in lines if line.endswith(".so"))
            assert len(devices) == count
            assert libraries == [f"{device}.so" for device in devices]
            content = cluster.kubectl(
                "exec", name, "-n", node_namespace, "--", "cat", f"/mock/lib/{libraries[0]}"
            )
            assert content == f"library {devices[0].removeprefix('device_')}\n"
            seen += devices
        assert len(set(seen)) == 7, "no device is given twice"

        cluster.apply(pod("two", GPU, 2), namespace=node_namespace)
        assert f"Insufficient {GPU}" in cluster.wait_for_pod_unschedulable("two", namespace=node_namespace)
        cluster.kubectl("delete", "pod", "three", "-n", node_namespace)
        cluster.wait_for_pod_phase("two", "Running", namespace=node_namespace)
    wait_allocatable(cluster, {GPU: "0"})


def logged(cluster: ClusterWithNode, namespace: str, name: str) -> str:
    return cluster.try_kubectl("logs", name, "-n", namespace).stdout


def test_mig_layouts_become_resources(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """Annotate the node and its resources follow; a bad layout fails with its reason and changes nothing."""
    cluster = cluster_with_node
    path = f"/api/v1/nodes/{cluster.node_name}"
    annotate(cluster, None)
    try:
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            wait_allocatable(cluster, {MIG + "2g.20gb": "8", MIG + "3g.30gb": "4", MIG + "1g.10gb": "0"})
            node = cluster.wait_for_node(
                cluster.node_name, lambda one: one["metadata"]["labels"].get("nvidia.com/gpu.count") == "4"
            )
            assert node["metadata"]["labels"]["nvidia.com/mig.strategy"] == "mixed"

            annotate(cluster, runai("[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]"))
            wait_allocatable(cluster, {MIG + "1g.10gb": "28", MIG + "2g.20gb": "0", MIG + "3g.30gb": "0"})
            node = cluster.wait_for_node(cluster.node_name, lambda one: mapped(one) == 28)
            assert node["metadata"]["labels"]["nvidia.com/mig.config.state"] == "success"

            # what a person sees inside: exactly the container's own devices
            cluster.apply(pod("smi", MIG + "1g.10gb", 2, "nvidia-smi -L; env"), namespace=node_namespace)
            cluster.wait_for_pod_phase("smi", "Succeeded", namespace=node_namespace)
            log = cluster.kubectl("logs", "smi", "-n", node_namespace)
            assert log.count("MIG 1g.10gb") == 2
            assert "NVIDIA_VISIBLE_DEVICES=" in log

            annotate(cluster, runai("[3g.30gb, 3g.30gb, 3g.30gb]"))
            node = cluster.wait_for_node(
                cluster.node_name,
                lambda one: one["metadata"]["labels"].get("nvidia.com/mig.config.state") == "failed",
            )
            reasons = [value for key, value in node["metadata"]["annotations"].items() if "reason" in key]
            assert any("3g.30gb" in reason for reason in reasons), node["metadata"]["annotations"]
            wait_allocatable(cluster, {MIG + "1g.10gb": "28", MIG + "3g.30gb": "0"})
    finally:
        annotate(cluster, None)
        cluster.api.patch(path, {"metadata": {"labels": {"nvidia.com/mig.config.state": None}}})
    wait_allocatable(cluster, {MIG + "1g.10gb": "0"})


def test_fault_28_layout_changed_under_a_pod(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A pod's devices stay until it ends, its container can restart; the rest of the layout comes at once."""
    cluster = cluster_with_node
    one, two, three = (MIG + profile for profile in ("1g.10gb", "2g.20gb", "3g.30gb"))
    mortal = json.loads(pod("train", two, 2, "trap 'exit 3' TERM; while :; do sleep 0.2; done"))
    mortal["spec"]["restartPolicy"] = "Always"
    mortal["spec"]["containers"][0]["resources"]["limits"][three] = 1
    in_pod = ("exec", "train", "-n", node_namespace, "--")

    def state(node: Object) -> str:
        return str(node["metadata"]["labels"].get("nvidia.com/mig.config.state"))

    try:
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            annotate(cluster, runai("[2g.20gb, 2g.20gb, 3g.30gb]"))
            wait_allocatable(cluster, {two: "8", three: "4"})
            cluster.apply(json.dumps(mortal), namespace=node_namespace)
            cluster.wait_for_pod_phase("train", "Running", namespace=node_namespace)
            listed = cluster.kubectl(*in_pod, "nvidia-smi", "-L")
            assert (listed.count("GPU "), listed.count("MIG ")) == (1, 3), "all of it on one card"

            annotate(cluster, runai("[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]"))
            wait_allocatable(cluster, {two: "0", three: "0", one: "21"})
            node = cluster.wait_for_node(cluster.node_name, lambda node: state(node) == "pending")
            reason = node["metadata"]["annotations"]["nvidia.com/mig.config.reason"]
            assert f"kept for {node_namespace}/train" in reason
            cluster.kubectl(*in_pod, "kill", "1")
            cluster.wait_for(
                pods_path(node_namespace),
                "train",
                lambda item: (
                    item["status"]["containerStatuses"][0]["restartCount"] == 1
                    and bool(item["status"]["containerStatuses"][0]["state"].get("running"))
                ),
            )
            assert cluster.kubectl(*in_pod, "nvidia-smi", "-L") == listed

            cluster.kubectl("delete", "pod", "train", "-n", node_namespace)
            wait_allocatable(cluster, {one: "28"})
            cluster.wait_for_node(cluster.node_name, lambda node: state(node) == "success")
    finally:
        annotate(cluster, None)


def mapped(node: Object) -> int:
    """How many devices the node's mapping names."""
    mapping = node["metadata"]["annotations"].get("run.ai/mig-mapping", "")
    return sum(len(devices) for devices in json.loads(base64.b64decode(mapping)).values()) if mapping else 0


def test_fault_23_kubelet_restarts(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, mock_devices: None
) -> None:
    """A kubelet that restarts gets its devices back within seconds, and the pod that holds some keeps them."""
    cluster = cluster_with_node
    with plugin(cluster, tmp_path, EXAMPLES / "mock-devices.yaml"):
        wait_allocatable(cluster, {GPU: "8"})
        cluster.apply(pod("holder", GPU, 5), namespace=node_namespace)
        cluster.wait_for_pod_phase("holder", "Running", namespace=node_namespace)
        cluster.restart_kubelet()
        wait_allocatable(cluster, {GPU: "8"})
        cluster.apply(pod("more", GPU, 3), namespace=node_namespace)
        cluster.wait_for_pod_phase("more", "Running", namespace=node_namespace)
        assert cluster.api.get(f"{pods_path(node_namespace)}/holder")["status"]["phase"] == "Running"


def test_fault_42_kubelet_restarts_while_a_layout_waits(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """Two pods hold what a new layout needs, the kubelet restarts three times: nothing of it is given out before they end."""
    cluster = cluster_with_node
    one, two, three = (MIG + profile for profile in ("1g.10gb", "2g.20gb", "3g.30gb"))
    seen: set[tuple[str, int]] = set()

    def look() -> tuple[str, int]:
        node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")
        state = str(node["metadata"]["labels"].get("nvidia.com/mig.config.state"))
        found = (state, int(node["status"]["allocatable"].get(one, "0")))
        seen.add(found)
        return found

    def look_until(end: float) -> bool:
        look()
        return time.monotonic() > end

    try:
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            annotate(cluster, runai("[2g.20gb, 2g.20gb, 3g.30gb]"))
            wait_allocatable(cluster, {two: "8", three: "4"})
            for name in ("first", "second"):  # a whole card each
                holder = json.loads(pod(name, two, 2))
                holder["spec"]["containers"][0]["resources"]["limits"][three] = 1
                cluster.apply(json.dumps(holder), namespace=node_namespace)
                cluster.wait_for_pod_phase(name, "Running", namespace=node_namespace)
            annotate(cluster, runai("[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]"))
            wait_allocatable(cluster, {one: "14", two: "0", three: "0"})
            cluster.wait(lambda: look() == ("pending", 14), what="the layout waits for two pods")
            cluster.apply(pod("greedy", one, 15), namespace=node_namespace)
            cluster.wait_for_pod_unschedulable("greedy", namespace=node_namespace)

            seen.clear()
            for _ in range(3):
                cluster.restart_kubelet()
                cluster.wait(lambda: look()[1] > 0, what="devices are back after a restart")
                # the kubelet lists no pods for the first second or so, and the plugin looks once a second
                cluster.wait(partial(look_until, time.monotonic() + 3.0), what="some looks at the node")
            assert {state for state, _ in seen} == {"pending"}
            assert max(count for _, count in seen) == 14
            assert cluster.api.get(f"{pods_path(node_namespace)}/greedy")["status"]["phase"] == "Pending"
            assert "layout success" not in _since_pending((tmp_path / "device-plugin.log").read_text())

            for name in ("first", "second"):
                phase = cluster.api.get(f"{pods_path(node_namespace)}/{name}")["status"]["phase"]
                assert phase == "Running", "the holders ran all the time"
                cluster.kubectl("delete", "pod", name, "-n", node_namespace)
            wait_allocatable(cluster, {one: "28"})
            cluster.wait(lambda: look()[0] == "success", what="the layout is complete")
            cluster.wait_for_pod_phase("greedy", "Running", namespace=node_namespace)
    finally:
        annotate(cluster, None)


def test_fault_42_an_init_container_holds_its_device(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """PodResources never lists a plain init container: a new layout leaves its device alone all the same."""
    cluster = cluster_with_node
    two, seven = MIG + "2g.20gb", MIG + "7g.70gb"
    document = json.loads(pod("init", two, 1, "echo done"))
    document["spec"]["initContainers"] = [
        json.loads(pod("", two, 1))["spec"]["containers"][0] | {"name": "first"}
    ]
    del document["spec"]["containers"][0]["resources"]

    def begun(one: Object) -> bool:
        statuses = one["status"].get("initContainerStatuses") or [{}]
        return bool(statuses[0].get("state", {}).get("running"))

    try:
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            annotate(cluster, runai("[2g.20gb, 2g.20gb, 3g.30gb]"))
            wait_allocatable(cluster, {two: "8"})
            cluster.apply(json.dumps(document), namespace=node_namespace)
            cluster.wait_for(pods_path(node_namespace), "init", begun)
            annotate(cluster, runai("[7g.70gb]"))
            wait_allocatable(cluster, {two: "0", seven: "3"})
            cluster.restart_kubelet()
            wait_allocatable(cluster, {two: "0", seven: "3"})
            state = "nvidia.com/mig.config.state"
            cluster.wait_for_node(
                cluster.node_name, lambda one: one["metadata"]["labels"].get(state) == "pending"
            )
            cluster.kubectl("delete", "pod", "init", "-n", node_namespace)
            wait_allocatable(cluster, {seven: "4"})
            cluster.wait_for_node(
                cluster.node_name, lambda one: one["metadata"]["labels"].get(state) == "success"
            )
    finally:
        annotate(cluster, None)


def _since_pending(log: str) -> str:
    return log.partition("layout pending")[2]


def test_plugin_killed_and_back(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, mock_devices: None
) -> None:
    """A plugin killed without warning leaves its pods running; its successor offers all devices again."""
    cluster = cluster_with_node
    first = plugin(cluster, tmp_path, EXAMPLES / "mock-devices.yaml")
    try:
        wait_allocatable(cluster, {GPU: "8"})
        cluster.apply(pod("holder", GPU, 2), namespace=node_namespace)
        cluster.wait_for_pod_phase("holder", "Running", namespace=node_namespace)
    finally:
        first.kill()
    wait_allocatable(cluster, {GPU: "0"})
    with plugin(cluster, tmp_path, EXAMPLES / "mock-devices.yaml"):
        wait_allocatable(cluster, {GPU: "8"})
        cluster.apply(pod("six", GPU, 6), namespace=node_namespace)
        cluster.wait_for_pod_phase("six", "Running", namespace=node_namespace)
        cluster.apply(pod("one", GPU, 1), namespace=node_namespace)
        assert f"Insufficient {GPU}" in cluster.wait_for_pod_unschedulable("one", namespace=node_namespace)
