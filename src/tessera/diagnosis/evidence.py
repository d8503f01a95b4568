"""What was seen of a cluster and of the pods that are asked about, and what could not be seen."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from tessera.core.admission.policy import FallbackPolicy, Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import ViewedPod
from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.mig.layout import NodeLayout
from tessera.core.resources import is_any_gpu
from tessera.diagnosis.devices import SeenDevices
from tessera.diagnosis.nodes import (
    ABSENT,
    ORDER,
    Lack,
    NodeGroup,
    ObservedNode,
    PodRequest,
    Shortage,
    gpus_of,
    groups_of,
)
from tessera.diagnosis.patience.history import History
from tessera.diagnosis.patience.pending_pods import Job
from tessera.inventory.inventory import Inventory, InventoryNode
from tessera.inventory.known import desired_layout
from tessera.inventory.presence import Presences
from tessera.protocol.admission.created import as_created
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, Workload
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.mig.miglayout import MigLayout, find_keepers
from tessera.protocol.mig.nodes import GpuNode, state_since
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.protocol.mig.rollouts import SeenRollout, read_rollout


@dataclass(slots=True)
class DiagnosisInventory(Inventory):
    """Everything that pods wait for, who holds GPUs and since when, and devices that are there and not healthy."""

    capacity_of: dict[str, Amounts] = field(default_factory=dict)  # node → GPUs, healthy or not
    started: dict[str, str] = field(default_factory=dict)  # namespace/name of who holds GPUs → since when
    changing_since: dict[str, float] = field(default_factory=dict)  # node that mig-manager cuts → Unix time
    rollouts: dict[str, SeenRollout] = field(default_factory=dict)  # by node: its layout is being changed
    mig_layouts: tuple[
        MigLayout, ...
    ] = ()  # as far as they may be read: nobody else may change their nodes' layouts
    viewed: dict[str, ViewedPod] | None = (
        None  # what counts of each pod for what is free; None: that is not asked
    )

    def decode_node(self, raw: bytes) -> InventoryNode:
        one = Inventory.decode_node(self, raw)
        if one.gpus.by_mig_manager and one.gpus.is_changing and (since := state_since(raw)) is not None:
            self.changing_since[one.node.name] = since
        return one

    def node_of(self, node: NodeIn) -> InventoryNode:
        """A node; what it has of GPUs whether they are healthy or not is kept."""
        one = Inventory.node_of(self, node)
        capacity = node.status.capacity or {}
        given = {resource: text for resource, text in capacity.items() if is_any_gpu(resource)}
        self.capacity_of[one.node.name] = objects.amounts_of(given, f"node {one.node.name}, status.capacity")
        if (rollout := read_rollout(node.metadata.annotations)) is not None:
            self.rollouts[one.node.name] = rollout
        return one

    def keeper(self, name: str) -> str:
        """The MigLayout that keeps a node's layout: the oldest that selects it. Empty: none."""
        keepers = find_keepers(self.mig_layouts, self.capacity[name].labels)
        return keepers[0].name if keepers else ""

    def use_of(self, pod: PodIn) -> PodUse:
        """What a pod uses; since when, if it holds GPUs."""
        use = Inventory.use_of(self, pod)
        if use.node and self.holds(use):
            self.started[f"{use.namespace}/{use.name}"] = pod.status.start_time or use.created
        return use


def diagnosis_inventory(policy: FallbackPolicy = FallbackPolicy()) -> DiagnosisInventory:  # noqa: B008 # frozen
    """What to read of a cluster; `policy` says whether it matters what is free."""
    return DiagnosisInventory(
        lambda _: True,
        holds=lambda use: any(map(is_any_gpu, use.amounts)),
        places=True,
        viewed={} if policy.full_enabled or policy.patience else None,
    )


class ObservedNodes:
    """The nodes of a cluster, each read once; which of them matter for a request is known without a walk over all."""

    def __init__(
        self, inventory: DiagnosisInventory, plugins: Mapping[str, bool] | None, *, known: bool
    ) -> None:
        self.by_name: dict[str, ObservedNode] = {}
        self.resources: set[str] = set()  # of which some node has any
        # resource → nodes that have it, had it or will have it
        self._with: dict[str, list[ObservedNode]] = {}
        self._failed: list[ObservedNode] = []
        self._enough: dict[object, tuple[str, ...]] = {}  # what is asked for → nodes that have it
        # key → value → nodes, of keys that pods select by
        self._labels: dict[str, dict[str, list[ObservedNode]]] = {}
        for use in inventory.capacity.nodes():
            name, layout = use.node.name, _not_taken(inventory.gpus.get(use.node.name))
            capacity = {
                resource: int(has.value)
                for resource, has in inventory.capacity_of.get(name, {}).items()
                if not use.node.is_stale(resource)
            }
            plugin = None if plugins is None else plugins.get(name, False)
            desired = _resources_of(layout, inventory.mig_manager) if layout else {}
            one = ObservedNode(use, _offered(use.node), capacity, layout, desired, plugin, known)
            self.by_name[name] = one
            self.resources.update(use.node.allocatable, one.has)
            for resource in {*one.has, *capacity, *desired}:
                self._with.setdefault(resource, []).append(one)
            if layout and layout.state == "failed":
                self._failed.append(one)

    def __len__(self) -> int:
        return len(self.by_name)

    def lacks(self, request: PodRequest) -> Iterator[tuple[str, Shortage]]:
        return ((name, one.lack(request)) for name, one in self.by_name.items())

    def nearest(self, request: PodRequest) -> tuple[NodeGroup, ...]:
        """The nodes that lack the least, of those that have what is asked for in any state; all others have no such GPU.

        A pod that selects by labels is judged by the nodes with these labels. All other nodes are closed to it.
        """
        found: dict[str, ObservedNode] = {}
        for asks in request.choices:
            gpus = gpus_of(asks)
            if not gpus:
                return _least(self.lacks(request))
            rarest = min((self._with.get(resource, []) for resource in gpus), key=len)
            found |= {one.node.name: one for one in (*rarest, *self._failed)}
        selector = request.pod.node_selector
        if not selector:
            return _least((name, one.lack(request)) for name, one in found.items())
        selected = min((self._labelled(*pair) for pair in selector.items()), key=len)
        least = _least((one.node.name, one.lack(request)) for one in selected if one.node.name in found)
        if least and ORDER[least[0].lack] < ORDER[Lack.CLOSED]:
            return least
        if enough := self._having(request, found):
            first = self.by_name[enough[0]].lack(request)
            return (NodeGroup(Lack.CLOSED, first.reason, enough),)
        return least

    def _having(self, request: PodRequest, found: Mapping[str, ObservedNode]) -> tuple[str, ...]:
        """The nodes that have as many such GPUs, free or not, and whether they take the pod or not."""
        key = request.key[0]
        if key not in self._enough:

            def has(one: ObservedNode, asks: Amounts) -> bool:
                return all(short_of.lack not in ABSENT for short_of in one.shortages(Pod(), asks))

            some = (name for name, one in found.items() if any(has(one, asks) for asks in request.choices))
            self._enough[key] = tuple(sorted(some))
        return self._enough[key]

    def _labelled(self, key: str, value: str) -> list[ObservedNode]:
        if key not in self._labels:
            values = self._labels[key] = {}
            for one in self.by_name.values():
                values.setdefault(one.node.labels.get(key, ""), []).append(one)
        return self._labels[key].get(value, [])


def _least(lacks: Iterable[tuple[str, Shortage]]) -> tuple[NodeGroup, ...]:
    groups = groups_of(lacks)
    return tuple(one for one in groups if one.lack is groups[0].lack)


def _offered(node: Node) -> dict[str, int]:
    """The GPUs that a node offers: what is allocatable, and what DRA serves where nothing of it is."""
    found = gpus_of(node.allocatable)
    found.update({name: count for name, count in node.dra.items() if count and node.is_served(name)})
    return found


def _not_taken(gpus: GpuNode | None) -> GpuNode | None:
    """A node with a layout that it is to take and has not."""
    if gpus is None or not (gpus.is_changing or gpus.state == "failed"):
        return None
    described = gpus.config if gpus.by_mig_manager else gpus.layout is not None or gpus.mapping is not None
    return gpus if described else None


def _resources_of(gpus: GpuNode, mig_manager: MigManagerConfig | None) -> Mapping[str, int]:
    """The GPUs of the layout that a node is to take; none where that cannot be told."""
    desired = desired_layout(gpus, mig_manager)
    try:
        return desired.resources(gpus.strategy) if isinstance(desired, NodeLayout) else {}
    except InvalidInput:
        return {}


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that is asked about."""

    pod: Pod
    state: PodIn
    raw: bytes = b"{}"
    events: tuple[EventIn, ...] = ()
    job: Job | None = None  # whose it is; None: no Job's, or it is gone

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
    decided_with: str = ""  # the policy's origin, in one line
    presences: Presences = field(default_factory=Presences)  # which parts of Tessera are at work
    history: History | None = None  # of evictions by patience; None: it is not known, or does not matter

    @cached_property
    def nodes(self) -> ObservedNodes:
        inventory, known = self.inventory, "pods" not in self.unseen
        return ObservedNodes(inventory, self.plugins, known=known)
