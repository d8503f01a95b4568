"""What was seen of a cluster and of the pods that are asked about, and what could not be seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec

from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.diagnosis.devices import SeenDevices
from tessera.diagnosis.nodes import ObservedNodes
from tessera.inventory.inventory import Inventory, InventoryNode
from tessera.protocol.admission.created import as_created
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, Workload
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.kubernetes.pod import PodIn

# Seconds. A controller tries again after 1000 s at the latest (client-go's DefaultControllerRateLimiter): after this long
# without a new event it has stopped trying, or succeeded.
RECENT: Final = 1800.0


@dataclass(slots=True)
class DiagnosisInventory(Inventory):
    """Everything that pods wait for, who holds GPUs and since when, and devices that are there and not healthy."""

    capacity_of: dict[str, Amounts] = field(default_factory=dict)  # node → GPUs, healthy or not
    started: dict[str, str] = field(default_factory=dict)  # namespace/name of who holds GPUs → since when

    def node_of(self, node: NodeIn) -> InventoryNode:
        """A node; what it has of GPUs whether they are healthy or not is kept."""
        one = Inventory.node_of(self, node)
        capacity = node.status.capacity or {}
        given = {resource: text for resource, text in capacity.items() if is_any_gpu(resource)}
        self.capacity_of[one.node.name] = objects.amounts_of(given, f"node {one.node.name}, status.capacity")
        return one

    def use_of(self, pod: PodIn) -> PodUse:
        """What a pod uses; since when, if it holds GPUs."""
        use = Inventory.use_of(self, pod)
        if use.node and self.holds(use):
            self.started[f"{use.namespace}/{use.name}"] = pod.status.start_time or use.created
        return use


def diagnosis_inventory() -> DiagnosisInventory:
    """What to read of a cluster."""
    return DiagnosisInventory(
        lambda _: True, holds=lambda use: any(map(is_any_gpu, use.amounts)), places=True
    )


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that is asked about."""

    pod: Pod
    state: PodIn
    raw: bytes = b"{}"
    events: tuple[EventIn, ...] = ()

    @property
    def created(self) -> Pod:
        """The pod as its creator sent it, as far as that is known: as `tessera admit` takes it."""
        document = as_created(msgspec.json.decode(self.raw, type=dict[str, Any]))
        return pod_of(decode_lean_pod(msgspec.json.encode(document)), self.pod.namespace)

    @property
    def name(self) -> str:
        return f"pod {self.pod.namespace}/{self.pod.name}"

    @property
    def waits(self) -> bool:
        """Whether it has no node, and is to get one."""
        ended = self.state.status.phase not in ("", "Pending")
        return not (self.pod.node_name or ended or self.state.metadata.deletion_timestamp)

    @property
    def gates(self) -> list[str]:
        """What keeps the scheduler from taking it."""
        return [gate.name for gate in self.state.spec.scheduling_gates or ()]

    @property
    def unscheduled(self) -> str:
        """Why it has no node, in the scheduler's words; empty where it has said nothing."""
        scheduled = self.state.status.condition("PodScheduled")
        return (scheduled.message or "") if scheduled.status == "False" else ""


@dataclass(frozen=True, slots=True)
class SeenWorkload:
    """A workload, what its pods are made from, and what its controllers reported."""

    title: str  # deployment team/web
    state: Workload
    template: Pod
    pods: int  # that there are
    events: tuple[EventIn, ...] = ()  # of it, and of what it made its pods by


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked about: a pod, or a workload with the pod of it that there is most to say about."""

    pod: SeenPod | None = None
    workload: SeenWorkload | None = None

    @property
    def title(self) -> str:
        if self.workload is not None:
            return self.workload.title
        return self.pod.name if self.pod else ""


@dataclass(frozen=True)
class Evidence:
    """Everything about a cluster by which its pods are judged."""

    now: float = 0.0  # Unix time
    inventory: DiagnosisInventory = field(default_factory=diagnosis_inventory)
    offers: Offers = field(default_factory=Offers)
    policy: Policy = field(default_factory=Policy)
    devices: SeenDevices = field(default_factory=SeenDevices)
    plugins: Mapping[str, bool] | None = None  # node → its device plugin is ready; None: not known
    unseen: Mapping[str, str] = field(default_factory=dict)  # what could not be read → why

    @cached_property
    def nodes(self) -> ObservedNodes:
        inventory, known = self.inventory, "pods" not in self.unseen
        return ObservedNodes(inventory, inventory.capacity_of, self.plugins, known=known)
