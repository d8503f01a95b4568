"""A small cluster as documents: nodes that are cut, one with whole GPUs, one without any, and pods in all states."""

from typing import Any

from tests.build import GPU, MIG, pod_document

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
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {f"nvidia.com/{key}": value for key, value in labels.items()},
    }
    if product:
        metadata["labels"]["nvidia.com/gpu.product"] = product
    if layout:
        metadata["labels"] |= {"nvidia.com/gpu.memory": "71680", "nvidia.com/gpu.count": "2"}
        metadata["labels"]["nvidia.com/mig.config.state"] = "success"
        metadata["annotations"] = {"run.ai/mig.config": layout}
    spec = {"taints": [{"key": f"node.kubernetes.io/{taint}", "effect": "NoSchedule"}]} if taint else {}
    status = {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", **allocatable}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def pod(
    name: str, where: str, resource: str, amount: int = 1, phase: str = "Running", **metadata: Any
) -> dict[str, Any]:
    requests = {resource: str(amount), "cpu": "500m"}
    one = pod_document({"requests": requests, "limits": {resource: str(amount)}}, **metadata)
    one["metadata"] |= {"name": name, "namespace": metadata.get("namespace", "default")}
    one["status"] = {"phase": phase}
    if where:
        one["spec"]["nodeName"] = where
    return one


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
