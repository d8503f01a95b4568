"""One mode per node: whether a device plugin hands out the same devices, and must be gone first.

A claim does not regard the node's allocatable, and a device plugin does not regard claims: with both, a device goes to two
pods. A resource at 0 is no conflict: a plugin that is gone leaves that behind.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.text import first_of
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.node.rpc import CallFailed, call
from tessera.protocol.kubelet import messages
from tessera.protocol.kubelet.podresources_pb2 import ListPodResourcesRequest
from tessera.protocol.kubernetes.nodes import decode_node

_TIMEOUT: Final = 5.0  # seconds for the kubelet's list of pods


@dataclass(frozen=True, slots=True)
class NodeObject:
    """What is read of the node."""

    uid: str
    offered: dict[str, str]  # resources above 0, as the kubelet reports them
    capacity: dict[str, str] = field(
        default_factory=dict
    )  # likewise; more, while it remembers a plugin that is gone

    def remembered(self, devices: Iterable[Device]) -> list[str]:
        """Resources of these devices that the kubelet still counts though no plugin offers them.

        Until it forgets, after 5 minutes, it fails to start containers that ask for them as extended resources, claims or not
        (read in 1.36: devicemanager/manager.go, callPreStartContainerIfNeeded; seen on 1.36.3).
        """
        return sorted({device.resource for device in devices} & self.capacity.keys() - self.offered.keys())


async def read_node(client: Client, name: str) -> NodeObject:
    """The node as it is now."""
    try:
        found = decode_node(await client.get(path_of("v1", "nodes", name=name)))
        status = found.status
        offered, capacity = (
            {resource: str(count) for resource, count in (counts or {}).items() if Quantity.parse(count)}
            for counts in (status.allocatable, status.capacity)
        )
    except InvalidInput as error:
        raise InvalidInput(f"node {name} cannot be read: {error}") from error
    return NodeObject(found.metadata.uid, offered, capacity)


async def conflict(node: NodeObject, kubelet_dir: Path, devices: Iterable[Device]) -> str:
    """Why nothing may be offered: which of these devices a device plugin offers or pods have from one; empty: none."""
    devices = tuple(devices)
    both = sorted({device.resource for device in devices} & node.offered.keys())
    if both:
        shown = first_of([f"{resource}: {node.offered[resource]}" for resource in both], 3)
        return f"a device plugin offers the same devices on this node ({shown}); stop it first"
    socket = kubelet_dir / "pod-resources" / "kubelet.sock"
    if not socket.exists():
        return ""
    try:
        pods = messages.holders(await call(socket, messages.LIST_PODS, ListPodResourcesRequest(), _TIMEOUT))
    except CallFailed:
        return ""  # a kubelet that is starting; it is asked again
    held = sorted({f"{device.id} ({pods[device.key]})" for device in devices if device.key in pods})
    return f"pods still have devices from a device plugin: {first_of(held, 3)}" if held else ""
