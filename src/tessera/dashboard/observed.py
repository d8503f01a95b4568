"""Nodes, pods and events as the page sees them, decoded from what the API server sends."""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.resources import is_extended, is_whole_or_mig
from tessera.inventory.devices import Held, decode_held
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.objects import AmountsIn
from tessera.protocol.kubernetes.pod_use import decode_pod_use
from tessera.protocol.mig.nodes import GpuNode, gpu_node

_DENIED: Final = 'admission webhook "gpu-allocation.k8s.io" denied the request: '


def matters(resource: str) -> bool:
    """Whether the page shows a resource: GPUs, and what else device plugins bring."""
    return is_extended(resource)


class _Condition(msgspec.Struct, gc=False):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class _NodeSpec(msgspec.Struct, gc=False):
    unschedulable: bool | None = None


class _NodeStatus(msgspec.Struct, gc=False):
    capacity: AmountsIn = None
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct, gc=False):
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _PodStatus(msgspec.Struct, gc=False):
    phase: str | None = None
    message: str | None = None
    conditions: list[_Condition] | None = None


class _Pod(msgspec.Struct, gc=False):
    status: _PodStatus | None = None


class _Involved(msgspec.Struct, gc=False):
    kind: str = ""
    name: str = ""


class _Event(msgspec.Struct, gc=False):
    metadata: objects.MetaIn
    involvedObject: _Involved  # noqa: N815
    message: str | None = None
    lastTimestamp: str | None = None  # noqa: N815
    eventTime: str | None = None  # noqa: N815


_node: Final = objects.decoder(_Node)
_pod: Final = objects.decoder(_Pod)
_event: Final = objects.decoder(_Event)


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
    decoded, more = objects.decode_node(raw), _node(raw)
    status = more.status or _NodeStatus()
    node = objects.node_of(decoded, matters)
    capacity = objects.amounts_of(status.capacity, f"node {node.name}, status.capacity")
    missing = {
        resource: int((amount - node.allocatable.get(resource, Quantity.parse(0))).value)
        for resource, amount in capacity.items()
        if matters(resource)
    }
    conditions = {one.type: one.status for one in status.conditions or ()}
    return SeenNode(
        node,
        gpu_node(decoded),
        ready=conditions.get("Ready", "True") == "True",
        cordoned=bool(more.spec and more.spec.unschedulable),
        unhealthy={resource: count for resource, count in missing.items() if count > 0},
    )


def see_pod(raw: bytes) -> SeenPod:
    """Read a pod."""
    status = _pod(raw).status or _PodStatus()
    why = next(
        (
            one.message or one.reason or ""
            for one in status.conditions or ()
            if one.type == "PodScheduled" and one.status == "False"
        ),
        "",
    )
    held = decode_held(raw, matters)
    return SeenPod(decode_pod_use(raw, matters), status.phase or "", why or status.message or "", held)


def see_event(raw: bytes) -> Denial | None:
    """Read an event; None when it tells of no denial by the webhook."""
    event = _event(raw)
    _, denied, reason = (event.message or "").partition(_DENIED)
    if not denied:
        return None
    owner = f"{event.involvedObject.kind} {event.involvedObject.name}"
    when = event.lastTimestamp or event.eventTime or ""
    return Denial(event.metadata.name, event.metadata.namespace, owner, reason, when)


def asks_for_gpus(claim: PodUse) -> bool:
    """Whether a pod is one that admission looks at."""
    return any(map(is_whole_or_mig, claim.amounts))
