"""What was seen of one pod or workload and of the cluster around it, and what could not be seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.core.admission.decision import Policy
from tessera.core.admission.offers import Offers
from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.diagnosis.devices import SeenDevices
from tessera.inventory.inventory import Inventory, InventoryNode
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, Workload
from tessera.protocol.kubernetes.pod import PodIn


@dataclass(slots=True)
class WhyInventory(Inventory):
    """Everything that pods wait for, who holds GPUs and since when, and devices that are there and not healthy."""

    capacity_of: dict[str, Amounts] = field(default_factory=dict)  # node → GPUs, healthy or not
    started: dict[str, str] = field(default_factory=dict)  # namespace/name of who holds GPUs → since when

    def node_of(self, given: objects.NodeIn) -> InventoryNode:
        """A node; what it has of GPUs whether they are healthy or not is kept."""
        one, status = Inventory.node_of(self, given), given.status
        gpus = {r: amount for r, amount in ((status and status.capacity) or {}).items() if is_any_gpu(r)}
        self.capacity_of[one.node.name] = objects.amounts_of(gpus, f"node {one.node.name}, status.capacity")
        return one

    def use_of(self, given: PodIn) -> PodUse:
        """What a pod uses; since when, if it holds GPUs."""
        use = Inventory.use_of(self, given)
        if use.node and self.holds(use):
            self.started[f"{use.namespace}/{use.name}"] = given.status.start_time or use.created
        return use


def why_inventory() -> WhyInventory:
    """What to read of a cluster."""
    return WhyInventory(lambda _: True, holds=lambda use: any(map(is_any_gpu, use.amounts)), places=True)


@dataclass(frozen=True, slots=True)
class SeenPod:
    """The pod that is asked about, or the one of a workload that waits."""

    pod: Pod
    state: PodIn
    use: PodUse
    events: tuple[EventIn, ...] = ()

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"pod {self.pod.namespace}/{self.pod.name}"


@dataclass(frozen=True, slots=True)
class SeenWorkload:
    """A workload, what its pods are made from, and what its controllers told."""

    title: str  # deployment team/web
    state: Workload
    template: Pod
    pods: int  # that there are
    running: int
    events: tuple[EventIn, ...] = ()  # of it, and of what it made its pods by


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything there is to judge."""

    now: float
    pod: SeenPod | None = None
    workload: SeenWorkload | None = None
    inventory: WhyInventory = field(default_factory=why_inventory)
    offers: Offers = field(default_factory=Offers)
    policy: Policy = field(default_factory=Policy)
    devices: SeenDevices = field(default_factory=SeenDevices)
    plugins: Mapping[str, bool] | None = None  # node → its device plugin is ready; None: not known
    unseen: Mapping[str, str] = field(default_factory=dict)  # what could not be read → why

    @property
    def title(self) -> str:
        """What was asked about."""
        if self.workload is not None:
            return self.workload.title
        return self.pod.name if self.pod else ""
