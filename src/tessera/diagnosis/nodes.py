"""What each node lacks for a pod that waits, in one word and one sentence; nodes that say the same are one group."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tessera.core.devices.capacity import NodeUse
from tessera.core.dra.slices import IMPLICIT_PREFIX
from tessera.core.kubernetes.node import STATED_BY_EVERY_NODE, Node, why_not_selected
from tessera.core.kubernetes.pod import Amounts, Pod
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.requests.asking import alternatives_of, asked
from tessera.core.resources import PODS, is_any_gpu, short
from tessera.core.text import counts_in_words
from tessera.inventory.report import amount
from tessera.protocol.mig.nodes import GpuNode


class Lack(StrEnum):
    """Why a node does not run a pod now; the first is the one to report where nodes differ."""

    NOTHING = "room"  # it has all that the pod asks for
    PLUGIN_UNAVAILABLE = "plugin-away"  # its devices are there, and no device plugin offers them
    UNHEALTHY = "ill-devices"
    LAYOUT_PENDING = "layout-pending"  # the layout that it is to take has what is asked for
    OTHER = "other-resource"  # the GPUs are free, and cpu, memory or something else is not
    TAKEN = "taken"
    LAYOUT_FAILED = "layout-failed"
    CLOSED = "closed"  # it has what is asked for, and does not take the pod
    UNKNOWN = "unknown"  # who holds its devices could not be read
    TOO_FEW = "too-few"
    MISSING = "missing"


_ONE = Quantity.parse("1")
ORDER = {lack: number for number, lack in enumerate(Lack)}
ABSENT = frozenset({Lack.LAYOUT_FAILED, Lack.TOO_FEW, Lack.MISSING})  # the node has not enough such devices


@dataclass(frozen=True, slots=True)
class Shortage:
    """One thing that a pod does not get on a node."""

    lack: Lack
    reason: str
    resource: str = ""  # what there is too little of; empty: the node does not take the pod
    free: Quantity = ZERO  # of that resource
    total: Quantity = ZERO


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that lack the same."""

    lack: Lack
    reason: str
    nodes: tuple[str, ...]


def groups_of(lacks: Iterable[tuple[str, Shortage]]) -> tuple[NodeGroup, ...]:
    """Nodes that say the same together; those that matter most first."""
    found: dict[tuple[Lack, str], list[str]] = {}
    for name, one in lacks:
        found.setdefault((one.lack, one.reason), []).append(name)
    groups = (NodeGroup(lack, reason, tuple(sorted(names))) for (lack, reason), names in found.items())
    return tuple(sorted(groups, key=lambda one: (ORDER[one.lack], -len(one.nodes), one.reason)))


def gpus_of(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    """The GPUs among some amounts."""
    return {resource: int(one.value) for resource, one in amounts.items() if is_any_gpu(resource) and one}


def counted(gpus: Mapping[str, int]) -> str:
    """`2 × 1g.10gb`, for people."""
    return counts_in_words((short(resource), number) for resource, number in gpus.items())


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod needs of a node: where it may go, and any of some amounts, the best first."""

    pod: Pod  # where it may go; nothing else of it is read
    choices: tuple[Amounts, ...]

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(name for one in self.choices for name in gpus_of(one))

    @property
    def key(self) -> tuple[object, ...]:
        """Requests with the same key lack the same everywhere."""
        pod = self.pod
        choices = tuple(tuple((name, one.value) for name, one in some.items()) for some in self.choices)
        selector = tuple(sorted(pod.node_selector.items()))
        return (choices, pod.node_name, selector, pod.required_terms, pod.tolerations)


def request_of(pod: Pod) -> PodRequest:
    """What a pod needs of a node: by a claim of the bridge, any of its alternatives."""
    first: Amounts = {**asked(pod), PODS: _ONE}
    claim = alternatives_of(pod)
    if claim is None:
        return PodRequest(pod, (first,))
    others = {resource: amount for resource, amount in first.items() if resource not in claim.devices()}
    choices = (
        {**others, **{resource: _ONE.with_value(number) for resource, number in choice.items()}}
        for choice in claim.choices()
    )
    return PodRequest(pod, tuple(choices))


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node with what pods hold there, and what is known of its devices besides."""

    use: NodeUse
    has: Mapping[str, int]  # GPUs that it offers, by a device plugin or by DRA
    capacity: Mapping[str, int]  # GPUs, healthy or not
    layout: GpuNode | None  # with a layout that it has not taken, pending or failed
    desired: Mapping[str, int]  # GPUs of that layout
    plugin: bool | None  # whether its device plugin is ready; None: not known
    known: bool  # who holds its devices

    @property
    def node(self) -> Node:
        return self.use.node

    def in_use(self, resource: str) -> int:
        usage = self.use.resources.get(resource)
        return int(usage.allocated.value) if usage else 0

    def free(self, resource: str) -> int:
        return self.has.get(resource, 0) - self.in_use(resource)

    # What a pod does not get here

    def shortages(self, pod: Pod, asks: Amounts) -> Iterator[Shortage]:
        """Everything that keeps a pod with such a request from running here; nothing where it has room."""
        if closed := why_closed(pod, self.node):
            yield Shortage(Lack.CLOSED, closed)
        gpus = gpus_of(asks)
        for resource, count in gpus.items():
            has, free = self.has.get(resource, 0), self.free(resource)
            if (free if self.known else has) < count:
                lack, reason = self._without(resource, count)
                yield Shortage(lack, reason, resource, _ONE.with_value(free), _ONE.with_value(has))
        if not self.known and gpus:
            yield Shortage(Lack.UNKNOWN, f"has {self._words()}; who holds them could not be read")
        for resource, need in asks.items():
            usage = self.use.resources.get(resource)
            if resource in gpus or (usage is None and resource in {*STATED_BY_EVERY_NODE, PODS}):
                continue
            free_now, total = (usage.available, usage.allocatable) if usage else (ZERO, ZERO)
            if free_now < need:
                has_free = f"{amount(free_now)} of {amount(total)} free"
                reason = f"{short(resource)}: {has_free}, the pod needs {amount(need)}"
                yield Shortage(Lack.OTHER, reason, resource, free_now, total)

    def lack(self, request: PodRequest) -> Shortage:
        """What it lacks for the choice of which it lacks the least; of equals the first."""
        some = (self._lack(request.pod, asks) for asks in request.choices)
        return min(some, key=lambda one: ORDER[one.lack])

    def _lack(self, pod: Pod, asks: Amounts) -> Shortage:
        """What it lacks: of several GPU resources the one that is the furthest from there."""
        found = list(self.shortages(pod, asks))
        if not found:
            return Shortage(Lack.NOTHING, "has room for it")
        gpus = [one for one in found if one.resource and one.lack is not Lack.OTHER]
        worst = max(gpus, key=lambda one: ORDER[one.lack], default=found[0])
        if found[0].lack is not Lack.CLOSED:
            return worst
        if worst.lack in ABSENT:
            return Shortage(Lack.MISSING, f"no {counted(gpus_of(asks))}, and {found[0].reason}")
        return Shortage(Lack.CLOSED, "; ".join(one.reason for one in found))

    def _without(self, resource: str, count: int) -> tuple[Lack, str]:
        """Why the node has too few of one GPU resource free."""
        name, has, in_use = short(resource), self.has.get(resource, 0), self.in_use(resource)
        whole = self.capacity.get(resource, 0)
        layout = self.layout
        comes = self.desired.get(resource, 0) - in_use >= count
        if layout and layout.by_mig_manager and layout.is_changing and comes:
            # meanwhile its device plugin is away, and nothing is allocatable
            return (
                Lack.LAYOUT_PENDING,
                f"mig-manager makes {layout.config} with {name} (state {layout.state})",
            )
        nothing_left = resource in self.capacity and not any(self.has.get(one) for one in self.capacity)
        if nothing_left and not self.plugin and (whole - in_use >= count or not whole):
            or_else = "" if self.plugin is False else ", or all its devices are unhealthy"
            missing = f"its device plugin is unavailable{or_else}"
            return Lack.PLUGIN_UNAVAILABLE, f"{name}: 0 of {whole} are offered: {missing}"
        if whole > has and whole - in_use >= count:
            return Lack.UNHEALTHY, f"{name}: {whole - has} of {whole} are unhealthy, {in_use} in use"
        if layout and layout.is_changing and comes:
            reason = layout.reason or "it gives no reason"
            return Lack.LAYOUT_PENDING, f"its layout with {name} is {layout.state}: {reason}"
        if has >= count:
            return Lack.TAKEN, f"{name}: {in_use} of {has} in use"
        if layout and layout.state == "failed":
            by = (
                f"mig-manager could not make {layout.config}"
                if layout.by_mig_manager
                else "it gives no reason"
            )
            return Lack.LAYOUT_FAILED, f"no {count} × {name}; its layout failed: {layout.reason or by}"
        if has:
            return Lack.TOO_FEW, f"{name}: it has {has}, the pod needs {count} on one node"
        others = self._words()
        return Lack.MISSING, f"no {name}; it has {others}" if others else "no GPU"

    def _words(self) -> str:
        """What it has, in words. A device goes by the name of its DeviceClass too: that is left out where others are known."""
        some = {resource: number for resource, number in self.has.items() if number}
        named = {one: number for one, number in some.items() if not one.startswith(IMPLICIT_PREFIX)}
        return counted(named or some)


def why_closed(pod: Pod, node: Node) -> str:
    """Why a node does not take a pod today, for good or not: selectors, affinity, taints, a cordon. Empty: it does."""
    own = why_not_selected(pod, node)
    taints = (
        f"taint {taint} is not tolerated"
        for taint in node.taints
        if taint.effect in ("NoSchedule", "NoExecute")
        and not any(toleration.tolerates(taint) for toleration in pod.tolerations)
    )
    return "; ".join([own, *taints] if own else taints)
