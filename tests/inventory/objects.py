"""A small cluster as documents: nodes that are cut, one with whole GPUs, one without any, and pods in all states."""

from typing import Any

from tessera.simulation.control_plane.kinds import ResourceType
from tests.build import GPU, MIG, Document, asking_pod, encode_amounts, node_document

CLUSTER_POLICIES = ResourceType("nvidia.com/v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
LAYOUT = """\
version: v1
mig-configs:
  selected:
  - devices: [0, 1]
    mig-enabled: true
    mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]
"""


def node(
    name: str,
    allocatable: dict[str, str],
    product: str = "",
    taint: str = "",
    layout: str | None = None,
    **labels: str,
) -> Document:
    """A node with GPUs. It is cut by the annotation of its layout, where it has one."""
    labels = {f"nvidia.com/{key}": value for key, value in labels.items()}
    if product:
        labels["nvidia.com/gpu.product"] = product
    if layout:
        labels |= {"nvidia.com/gpu.memory": "71680", "nvidia.com/gpu.count": "2"}
        labels["nvidia.com/mig.config.state"] = "success"
    return node_document(
        name,
        {"cpu": 64, "memory": "256Gi", "pods": 110, **allocatable},
        labels=labels,
        annotations={"run.ai/mig.config": layout} if layout else {},
        spec={"taints": [{"key": f"node.kubernetes.io/{taint}", "effect": "NoSchedule"}]} if taint else {},
    )


def pod(
    name: str, where: str, resource: str, amount: int | str = 1, phase: str = "Running", **metadata: Any
) -> Document:
    """A pod that asks for a resource."""
    asks, given = {resource: amount}, {"namespace": "default", **metadata}
    return asking_pod(
        name, asks, requests={"cpu": "500m"}, node=where, metadata=given, status={"phase": phase}
    )


def operator_node(
    name: str,
    devices: dict[str, int],
    config: str = "",
    product: str = "NVIDIA-A100-SXM4-80GB",
    cards: int | str = 8,
    **labels: Any,
) -> Document:
    """A node as NVIDIA's operator leaves it: labels of GPU Feature Discovery and of mig-manager, and no annotation."""
    more = {"mig.config": config, "mig.config.state": "success"} if config else {}
    more |= {"mig.strategy": "mixed", "gpu.count": str(cards), "gpu.deploy.mig-manager": "true", **labels}
    document = node(name, encode_amounts(devices), product, **more)
    document["status"]["capacity"] = dict(document["status"]["allocatable"])
    return document


MIG_PARTED = """\
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-1g.10gb:
  - device-filter: ["0x233010DE", "0x20B210DE", "0x20B510DE"]
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 7}
  - device-filter: "0x20B010DE"
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 4}
  all-balanced:
  - devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
  media:
  - devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 6, 1g.10gb+me: 1}
  some:
  - devices: [0, 1]
    mig-enabled: true
    mig-devices: {3g.40gb: 2}
  mine:
  - devices: [0]
    mig-enabled: true
    mig-devices: {3g.40gb: 2}
  - devices: [1, 2, 3, 4, 5, 6, 7]
    mig-enabled: false
"""


def policy(config: str = "", namespace: str = "") -> dict[str, Any]:
    """NVIDIA's ClusterPolicy; without arguments as the operator's defaults have it."""
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"migManager": {"enabled": True, **({"config": {"name": config}} if config else {})}},
        "status": {"state": "ready", **({"namespace": namespace} if namespace else {})},
    }


def config_map(
    text: str | None = MIG_PARTED,
    name: str = "default-mig-parted-config",
    namespace: str = "gpu-operator",
    **metadata: Any,
) -> dict[str, Any]:
    """What mig-manager reads."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "data": {} if text is None else {"config.yaml": text},
    }


OBJECTS = [
    node("sim-0", {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2", GPU: "0"}, "NVIDIA-H200", layout=LAYOUT),
    node("sim-1", {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2"}, "NVIDIA-H200", "unschedulable", LAYOUT),
    node("v100", {GPU: "8"}, "Tesla-V100", zone="a"),
    node("plain", {}),
    pod("a", "sim-0", MIG + "2g.20gb", 2),
    pod("b", "sim-0", MIG + "3g.30gb"),
    pod("c", "v100", GPU, 4, namespace="ml"),
    pod("done", "sim-1", MIG + "2g.20gb", 1, "Succeeded"),
    pod("going", "sim-1", MIG + "2g.20gb", 1, deletionTimestamp="2026-11-15T09:00:00Z"),
    pod("waits", "", MIG + "2g.20gb", 3, "Pending"),
    pod("nowhere", "", MIG + "1g.10gb", 1, "Pending", namespace="ml"),
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}},
]
