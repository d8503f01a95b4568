"""`tessera device-plugin` with a real kubelet and containerd."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import BUSYBOX, ClusterWithNode, pods_path, schedulable
from tessera.protocol.mig_mapping import decode_mapping

EXAMPLES = Path(__file__).parent.parent / "examples"
GPU = "device.example.com/gpu"
ONE, TWO, THREE = (f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb", "3g.30gb"))
STATE = "nvidia.com/mig.config.state"


@contextlib.contextmanager
def device_plugin(cluster: ClusterWithNode, config: Path, *arguments: str) -> Iterator[Path]:
    """The plugin as a process beside the kubelet; gives its log, and is ended in good order."""
    folder = cluster.folder.path
    log = cluster.folder.logs / "tessera-device-plugin.log"
    command = [
        sys.executable, "-m", "tessera", "device-plugin", "--config", str(config), "--log-level", "debug",
        "--kubelet-dir", str(cluster.kubelet_dir), "--cdi-dir", str(cluster.cdi_dir),
        "--state-dir", str(folder / "tessera"), "--node-name", cluster.node_name,
        "--kubeconfig", str(cluster.folder.kubeconfig), *arguments,
    ]  # fmt: skip
    with log.open("ab") as output:
        process = subprocess.Popen(command, stderr=output)
    try:
        yield log
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()


def pod(name: str, resources: Mapping[str, int], command: str = "exec sleep 1000") -> str:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "resources": {"limits": dict(resources)},
    }
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def wait_for_allocatable(cluster: ClusterWithNode, expected: Mapping[str, int]) -> None:
    def matches(node: dict[str, Any]) -> bool:
        allocatable = node["status"]["allocatable"]
        return all(allocatable.get(name, "0") == str(count) for name, count in expected.items())

    cluster.wait_for_node(cluster.node_name, matches)


def annotate(cluster: ClusterWithNode, layout: str) -> None:
    cluster.kubectl("annotate", "--overwrite", "node", cluster.node_name, f"run.ai/mig.config={layout}")


def layout(*devices: str) -> str:
    entry = {"devices": [0, 1, 2, 3], "mig-enabled": True, "mig-devices": list(devices)}
    return json.dumps({"version": "v1", "mig-configs": {"selected": [entry]}})


@pytest.fixture
def mock_config(cluster_with_node: ClusterWithNode, tmp_path: Path) -> Path:
    """The example, with the host's files in a folder of our own."""
    host = cluster_with_node.folder.path / "mock"
    (host / "dev").mkdir(parents=True, exist_ok=True)
    (host / "lib").mkdir(exist_ok=True)
    for number in range(8):
        node = host / "dev" / f"device_{number}"
        if not node.exists():
            os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (host / "lib" / f"device_{number}.so").write_text(f"library {number}\n")
    text = (EXAMPLES / "mock-devices.yaml").read_text()
    text = text.replace("hostPath: /dev/mock/", f"hostPath: {host}/dev/")
    text = text.replace("hostPath: /mock/lib/", f"hostPath: {host}/lib/")
    config = tmp_path / "mock-devices.yaml"
    config.write_text(text)
    return config


def test_mock_devices(cluster_with_node: ClusterWithNode, node_namespace: str, mock_config: Path) -> None:
    """Eight devices; pods with 4 and 3 run and see exactly theirs; a third asking for 2 waits; health is followed."""
    cluster = cluster_with_node
    with device_plugin(cluster, mock_config):
        wait_for_allocatable(cluster, {GPU: 8})
        for name, count in (("four", 4), ("three", 3)):
            cluster.apply(pod(name, {GPU: count}), namespace=node_namespace)
        seen: list[str] = []
        for name, count in (("four", 4), ("three", 3)):
            cluster.wait_for_pod_phase(name, "Running", namespace=node_namespace)
            inside = ("exec", name, "-n", node_namespace, "--", "sh", "-c")
            devices = cluster.kubectl(*inside, "ls /dev/mock").split()
            assert len(devices) == count
            libraries = cluster.kubectl(*inside, "cat /mock/lib/*.so").splitlines()
            assert libraries == [f"library {device.removeprefix('device_')}" for device in devices]
            assert cluster.kubectl(*inside, f"test -c /dev/mock/{devices[0]} && echo device") == "device\n"
            seen += devices
        assert len(set(seen)) == 7
        cluster.apply(pod("two", {GPU: 2}), namespace=node_namespace)
        reason = cluster.wait_for_pod_unschedulable("two", namespace=node_namespace)
        assert f"Insufficient {GPU}" in reason
        spare = (
            cluster.folder.path
            / "mock"
            / "lib"
            / f"{({f'device_{n}' for n in range(8)} - set(seen)).pop()}.so"
        )
        spare.unlink()
        wait_for_allocatable(cluster, {GPU: 7})
        spare.write_text("back\n")
        wait_for_allocatable(cluster, {GPU: 8})
        for name in ("four", "three", "two"):
            cluster.kubectl("delete", "pod", name, "-n", node_namespace)
            cluster.wait_gone(pods_path(node_namespace), name)
    wait_for_allocatable(cluster, {GPU: 0})


def test_fault_23_the_real_kubelet_restarts(
    cluster_with_node: ClusterWithNode, node_namespace: str, mock_config: Path
) -> None:
    """After a restart of the kubelet the devices are back, and a running pod keeps its own."""
    cluster = cluster_with_node
    with device_plugin(cluster, mock_config):
        wait_for_allocatable(cluster, {GPU: 8})
        cluster.apply(pod("keeper", {GPU: 6}), namespace=node_namespace)
        before = cluster.wait_for_pod_phase("keeper", "Running", namespace=node_namespace)
        cluster.restart_kubelet()
        cluster.wait_for_node(cluster.node_name, schedulable)
        wait_for_allocatable(cluster, {GPU: 8})
        cluster.apply(pod("newcomer", {GPU: 2}), namespace=node_namespace)
        cluster.wait_for_pod_phase("newcomer", "Running", namespace=node_namespace)
        after = cluster.wait_for_pod_phase("keeper", "Running", namespace=node_namespace)
        started = [seen["status"]["containerStatuses"][0]["containerID"] for seen in (before, after)]
        assert started[0] == started[1]
        listed = [
            cluster.kubectl("exec", name, "-n", node_namespace, "--", "ls", "/dev/mock").split()
            for name in ("keeper", "newcomer")
        ]
        assert not set(listed[0]) & set(listed[1])
        for name in ("keeper", "newcomer"):
            cluster.kubectl("delete", "pod", name, "-n", node_namespace)
            cluster.wait_gone(pods_path(node_namespace), name)


def test_simulated_layouts(cluster_with_node: ClusterWithNode, node_namespace: str) -> None:
    """The node's annotation becomes resources; a container sees its slices; a change waits for the pod in its way."""
    cluster = cluster_with_node
    with device_plugin(cluster, EXAMPLES / "simulated-h200.yaml"):
        annotate(cluster, layout("2g.20gb", "2g.20gb", "3g.30gb"))
        wait_for_allocatable(cluster, {TWO: 8, THREE: 4})
        node = cluster.wait_for_node(
            cluster.node_name, lambda node: node["metadata"]["labels"].get(STATE) == "success"
        )
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200-70GB"
        uuids = {
            device.device_uuid
            for devices in decode_mapping(node["metadata"]["annotations"]["run.ai/mig-mapping"]).values()
            for device in devices
        }
        assert len(uuids) == 12

        mortal = "trap 'exit 3' TERM; while :; do sleep 0.2; done"
        cluster.apply(pod("train", {TWO: 2, THREE: 1}, mortal), namespace=node_namespace)
        cluster.wait_for_pod_phase("train", "Running", namespace=node_namespace)
        in_pod = ("exec", "train", "-n", node_namespace, "--")
        listed = cluster.kubectl(*in_pod, "nvidia-smi", "-L")
        mine = {word.rstrip(")") for word in listed.split() if word.startswith("MIG-")}
        assert len(mine) == 3
        assert mine <= uuids
        assert listed.count("GPU ") == 1, f"one card has room for all of it:\n{listed}"
        assert "simulated by Tessera" in cluster.kubectl(*in_pod, "nvidia-smi")

        # no pod loses a device: what is in use stays, the rest changes at once
        annotate(cluster, layout(*["1g.10gb"] * 7))
        wait_for_allocatable(cluster, {TWO: 0, THREE: 0, ONE: 21})
        node = cluster.wait_for_node(
            cluster.node_name, lambda node: node["metadata"]["labels"][STATE] == "pending"
        )
        assert (
            f"stays for {node_namespace}/train"
            in node["metadata"]["annotations"]["nvidia.com/mig.config.reason"]
        )
        cluster.kubectl(*in_pod, "kill", "1")  # a container that restarts gets the same devices
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
        cluster.wait_gone(pods_path(node_namespace), "train")
        wait_for_allocatable(cluster, {ONE: 28})
        cluster.wait_for_node(cluster.node_name, lambda node: node["metadata"]["labels"][STATE] == "success")

        annotate(cluster, "not a layout")
        node = cluster.wait_for_node(
            cluster.node_name, lambda node: node["metadata"]["labels"][STATE] == "failed"
        )
        assert node["metadata"]["annotations"]["nvidia.com/mig.config.reason"]
        wait_for_allocatable(cluster, {ONE: 28})
        cluster.kubectl("annotate", "node", cluster.node_name, "run.ai/mig.config-")
        wait_for_allocatable(cluster, {TWO: 8, THREE: 4, ONE: 0})
