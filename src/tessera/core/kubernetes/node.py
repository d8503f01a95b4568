"""The little of nodes and namespaces that decisions need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tessera.core.kubernetes.pod import NOTHING, Amounts, Pod
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.kubernetes.scheduling import Taint, untolerated

# labels that GPU feature discovery sets
GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
GPU_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"  # MiB of one card
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Offer:
    """The GPU resources of a node: whole cards and MIG devices, in whole numbers, never zero."""

    counts: tuple[tuple[str, int], ...]
    card_memory_gb: int | None = None  # of a whole card, when a label tells

    def count(self, resource: str) -> int:
        """How many of a resource the node has."""
        for name, count in self.counts:
            if name == resource:
                return count
        return 0


@dataclass(frozen=True, slots=True)
class Node:
    """A node: what it has, and what decides whether a pod may go there."""

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts = field(default_factory=lambda: NOTHING)

    @property
    def offer(self) -> Offer:
        """What the node offers to pods that ask for GPUs."""
        counts = sorted(
            (resource, int(amount.value))
            for resource, amount in self.allocatable.items()
            if amount.value >= 1 and is_whole_or_mig(resource)
        )
        memory = self.labels.get(GPU_MEMORY_LABEL, "")
        # usable memory is a little less than the name on the box (40536 MiB on a 40 GB card): round up
        return Offer(
            tuple(counts), -(-int(memory) // 1024) if memory.isascii() and memory.isdigit() else None
        )


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace: its switches are labels and annotations."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def why_excluded(pod: Pod, node: Node) -> str | None:
    """Why a pod could never be placed on a node, in words; None when it could."""
    if pod.node_name and pod.node_name != node.name:
        return f"spec.nodeName is {pod.node_name}"
    for key, value in pod.node_selector.items():
        if node.labels.get(key) != value:
            return f"nodeSelector wants {key}={value}, the node has {_label(node, key)}"
    if pod.required_terms is not None and not any(
        t.matches(node.name, node.labels) for t in pod.required_terms
    ):
        return f"node affinity wants {' or '.join(map(str, pod.required_terms)) or 'nothing'}"
    taint = untolerated(node.taints, pod.tolerations, placed=bool(pod.node_name))
    return f"taint {taint} is not tolerated" if taint else None


def _label(node: Node, key: str) -> str:
    return f"{key}={node.labels[key]}" if key in node.labels else "no such label"
