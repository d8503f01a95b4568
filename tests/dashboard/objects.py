"""Nodes and pods as an API server would send them, for what the page makes of them."""

import json
from typing import Any

from tessera.core.mig.geometry import SIMULATED_H200_70GB
from tessera.core.mig.layout import NodeLayout
from tessera.dashboard.observed import DashboardNode, DashboardPod, read_node, read_pod
from tessera.protocol.mig.documents import read_layout
from tessera.protocol.mig.nodes import MAPPING, encode_mapping, mapping_of
from tests.build import MIG, asking_pod, bridged, named_amounts, node_document


def layout(text: str, cards: int = 1) -> NodeLayout:
    return read_layout(text, [SIMULATED_H200_70GB] * cards)


def node(
    name: str = "n",
    cut: str | None = None,
    cards: int = 1,
    allocatable: dict[str, Any] | None = None,
    **more: Any,
) -> DashboardNode:
    """A node of 70 GB cards, cut as told, which offers what that makes unless told otherwise."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200-70GB", "nvidia.com/gpu.memory": "71680"}
    labels |= {"nvidia.com/gpu.count": str(cards)} | more.get("labels", {})
    annotations = more.get("annotations", {})
    has = {}
    if cut is not None:
        one = layout(cut, cards)
        has = one.resources()
        annotations = {MAPPING: encode_mapping(mapping_of(one, name)), **annotations}
    has = has if allocatable is None else allocatable
    document = node_document(
        name,
        has,
        capacity=more.get("capacity", has),
        labels=labels,
        annotations=annotations,
        spec=more.get("spec"),
        conditions=more.get("conditions", []),
    )
    return read_node(json.dumps(document).encode())


def by_operator(config: str, counts: dict[str, int], *, cards: int = 8, **labels: str) -> DashboardNode:
    """A node as NVIDIA's operator leaves it: no annotation, its devices in its capacity."""
    given = {"gpu.product": "NVIDIA-A100-SXM4-80GB", "gpu.memory": "81920", "mig.strategy": "mixed", "mig.config": config, "mig.config.state": "success", **labels}  # fmt: skip
    return node(
        cards=cards,
        allocatable={MIG + name: number for name, number in counts.items()},
        labels={f"nvidia.com/{key}": value for key, value in given.items()},
    )


def pod(
    name: str,
    on: str = "",
    held: dict[str, list[str]] | None = None,
    record: str = "",
    claim: str = "",
    **asks: Any,
) -> DashboardPod:
    """A pod that asks, and maybe holds devices by their ids; `asks` by short names, dots as underscores.

    `held` as a kubelet writes it: by resource, or by `claim:name/request`. `claim`: the alternatives of a bridged one.
    """
    resources = {key: len(ids) for key, ids in (held or {}).items() if ":" not in key} | named_amounts(asks)
    allocated = [
        {"name": k, "resources": [{"resourceID": i} for i in ids]} for k, ids in (held or {}).items()
    ]
    waits = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available."}
    document = asking_pod(
        name,
        resources,
        node=on,
        namespace="ml",
        metadata={
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"gpu-webhook.k8s.io/fallback": record} if record else {},
        },
        status={
            "conditions": [] if on else [waits],
            "containerStatuses": [{"name": "main", "allocatedResourcesStatus": allocated}],
        },
    )
    return read_pod(json.dumps(bridged(document, claim) if claim else document).encode())


def ids(cut: str, profile: str, cards: int = 1, name: str = "n") -> list[str]:
    """The devices of a profile in a layout, in order."""
    return [slot.uuid(name) for slot in layout(cut, cards).slots()[f"{MIG}{profile}"]]


__all__ = ["MIG", "ids", "layout", "node", "pod"]
