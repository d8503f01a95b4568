"""Nodes and pods as the dashboard shows them: with GPUs, and what else device plugins bring."""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.quantity import ZERO
from tessera.core.resources import is_extended
from tessera.inventory.inventory import Held, InventoryNode, held_by
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tessera.protocol.kubernetes.pod import decode_pod, pod_use_of
from tessera.protocol.mig.nodes import gpu_node
from tessera.protocol.mig.rollouts import SeenRollout, read_rollout


@dataclass(frozen=True, slots=True)
class DashboardNode(InventoryNode):
    cordoned: bool
    not_allocatable: Mapping[str, int]  # resource → devices that only its capacity has
    rollout: SeenRollout | None = None  # of its layout, under way

    @property
    def unhealthy(self) -> dict[str, int]:
        """Resource → devices that are there and not usable."""
        return {name: count for name, count in self.not_allocatable.items() if not self.node.is_stale(name)}


@dataclass(frozen=True, slots=True)
class DashboardPod:
    """A pod that holds devices, or asks for some."""

    use: PodUse
    phase: str
    why: str = ""  # it has no node yet, in the scheduler's words
    held: Held = ()  # empty where the kubelet does not say which devices it gave
    owner: str = ""  # `Job night`, or how its name begins; only of one that has no node


def read_node(raw: bytes) -> DashboardNode:
    decoded = decode_node(raw)
    node = node_of(decoded, is_extended)
    capacity = objects.amounts_of(decoded.status.capacity, f"node {node.name}, status.capacity")
    missing = {
        resource: int((amount - node.allocatable.get(resource, ZERO)).value)
        for resource, amount in capacity.items()
        if is_extended(resource)
    }
    return DashboardNode(
        node,
        gpu_node(decoded),
        cordoned=bool(decoded.spec.unschedulable),
        not_allocatable={resource: count for resource, count in missing.items() if count > 0},
        rollout=read_rollout(decoded.metadata.annotations),
    )


def read_pod(raw: bytes) -> DashboardPod:
    pod = decode_pod(raw)
    status, scheduled = pod.status, pod.status.condition("PodScheduled")
    why = (scheduled.message or scheduled.reason) if scheduled.status == "False" else ""
    use = pod_use_of(pod, is_extended)
    owner = "" if use.node else pod.metadata.maker or use.name
    return DashboardPod(use, status.phase, why or status.message, held_by(pod, is_extended), owner)
