"""Nodes, pods and events as the page sees them, decoded from what the API server sends."""

from dataclasses import dataclass, field
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import ZERO
from tessera.core.kubernetes.resources import is_extended, is_whole_or_mig
from tessera.inventory.devices import Held, held_by
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import decode_event
from tessera.protocol.kubernetes.pod import decode_pod
from tessera.protocol.kubernetes.pod_use import pod_use_of
from tessera.protocol.mig.nodes import GpuNode, gpu_node

_DENIED: Final = 'admission webhook "gpu-allocation.k8s.io" denied the request: '


def matters(resource: str) -> bool:
    """Whether the page shows a resource: GPUs, and what else device plugins bring."""
    return is_extended(resource)


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node."""

    node: Node
    gpus: GpuNode
    ready: bool
    cordoned: bool
    unhealthy: dict[str, int] = field(
        default_factory=dict
    )  # resource → devices that are there and not usable


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that holds devices, or asks for some."""

    claim: PodUse
    phase: str
    why: str = ""  # it has no node yet, in the scheduler's words
    held: Held = ()  # empty where the kubelet does not say which devices it gave


@dataclass(frozen=True, slots=True)
class Denial:
    """A pod that some controller could not create, because the webhook refused it."""

    name: str  # of the event
    namespace: str
    owner: str
    reason: str
    when: str


def see_node(raw: bytes) -> SeenNode:
    """Read a node."""
    decoded = objects.decode_node(raw)
    node, status = objects.node_of(decoded, matters), decoded.status
    capacity = objects.amounts_of(status.capacity if status else None, f"node {node.name}, status.capacity")
    missing = {
        resource: int((amount - node.allocatable.get(resource, ZERO)).value)
        for resource, amount in capacity.items()
        if matters(resource)
    }
    return SeenNode(
        node,
        gpu_node(decoded),
        ready=node.ready,
        cordoned=bool(decoded.spec and decoded.spec.unschedulable),
        unhealthy={resource: count for resource, count in missing.items() if count > 0},
    )


def see_pod(raw: bytes) -> SeenPod:
    """Read a pod."""
    pod = decode_pod(raw)
    status, scheduled = pod.status, pod.status.condition("PodScheduled")
    why = (scheduled.message or scheduled.reason) if scheduled.status == "False" else ""
    return SeenPod(pod_use_of(pod, matters), status.phase, why or status.message, held_by(pod, matters))


def see_event(raw: bytes) -> Denial | None:
    """Read an event; None when it tells of no denial by the webhook."""
    event = decode_event(raw)
    _, denied, reason = event.message.partition(_DENIED)
    if not denied:
        return None
    owner = f"{event.involved_object.kind} {event.involved_object.name}"
    when = event.last_timestamp or event.event_time or ""
    return Denial(event.metadata.name, event.metadata.namespace, owner, reason, when)


def asks_for_gpus(claim: PodUse) -> bool:
    """Whether a pod is one that admission looks at."""
    return any(map(is_whole_or_mig, claim.amounts))
