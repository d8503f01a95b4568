"""What each node lacks for a pod that waits, in one word and one sentence; nodes that say the same are one group."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tessera.core.devices.capacity import PODS, NodeUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import STATED_BY_EVERY_NODE, Node, why_excluded
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.kubernetes.resources import is_any_gpu, short
from tessera.core.mig.profile import MigProfile
from tessera.diagnosis.evidence import Evidence
from tessera.inventory.layouts import Source, node_layouts
from tessera.inventory.report import amount


class Lack(StrEnum):
    """Why a node does not run a pod now; the first is the one to tell where nodes differ."""

    NOTHING = "room"  # it has all that the pod asks for
    AWAY = "plugin-away"  # its devices are there, and no device plugin vouches for them
    ILL = "ill-devices"
    LAYOUT_PENDING = "layout-pending"  # the layout that it is to take has what is asked for
    OTHER = "other-resource"  # the GPUs are free, and cpu, memory or something else is not
    TAKEN = "taken"
    LAYOUT_FAILED = "layout-failed"
    CLOSED = "closed"  # it has what is asked for, and does not take the pod
    UNKNOWN = "unknown"  # who holds its devices could not be read
    TOO_FEW = "too-few"
    MISSING = "missing"


_ORDER = list(Lack)


@dataclass(frozen=True, slots=True)
class NodeLack:
    """A node, and what it lacks."""

    node: str
    lack: Lack
    reason: str


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that lack the same."""

    lack: Lack
    reason: str
    nodes: tuple[str, ...]


def groups_of(lacks: Sequence[NodeLack]) -> tuple[NodeGroup, ...]:
    """Nodes that say the same together; those that matter most first."""
    found: dict[tuple[Lack, str], list[str]] = {}
    for one in lacks:
        found.setdefault((one.lack, one.reason), []).append(one.node)
    return tuple(
        NodeGroup(lack, reason, tuple(sorted(names)))
        for (lack, reason), names in sorted(
            found.items(), key=lambda item: (_ORDER.index(item[0][0]), -len(item[1]), item[0][1])
        )
    )


def gpus_of(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    """The GPUs among some amounts."""
    return {resource: int(one.value) for resource, one in amounts.items() if is_any_gpu(resource) and one}


def counted(gpus: Mapping[str, int]) -> str:
    """`2 × 1g.10gb`, for people."""
    return ", ".join(f"{number} × {short(resource)}" for resource, number in gpus.items())


def lacks_of(seen: Evidence, pod: Pod, asks: Mapping[str, Quantity]) -> list[NodeLack]:
    """What every node lacks for a pod that asks for so much."""
    layouts = _layouts(seen)
    known = "pods of other namespaces" not in seen.unseen
    return [
        NodeLack(one.node.name, *_lack(seen, pod, asks, one, layouts.get(one.node.name, ({}, "", "")), known))
        for one in seen.inventory.capacity.nodes()
    ]


def least_lacks(choices: Iterable[Sequence[NodeLack]]) -> list[NodeLack]:
    """What every node lacks where any of some choices would do: that of which it lacks the least, of equals the first."""
    return [min(some, key=lambda one: _ORDER.index(one.lack)) for some in zip(*choices, strict=True)]


_Layout = tuple[Mapping[str, int], str, str]  # what the desired layout has, its state, the reason


def _layouts(seen: Evidence) -> dict[str, _Layout]:
    """The layouts that nodes are to take, where they have not."""
    inventory, found = seen.inventory, dict[str, _Layout]()
    states = {name: one for name, one in inventory.gpus.items() if one.state in ("pending", "failed")}
    for source in node_layouts(inventory, only=states) if states else ():
        name = source.where.removeprefix("node ")
        wished: Mapping[str, int] = {}
        if isinstance(source, Source):
            try:
                for entries in source.configs(None).values():
                    wished = source.layout(entries).resources(source.strategy)
            except InvalidInput:
                wished = {}
        found[name] = (wished, states[name].state, states[name].reason)
    return found


def _lack(
    seen: Evidence, pod: Pod, asks: Mapping[str, Quantity], one: NodeUse, layout: _Layout, known: bool
) -> tuple[Lack, str]:
    node, gpus = one.node, gpus_of(asks)
    capacity = {r: int(has.value) for r, has in seen.inventory.capacity_of.get(node.name, {}).items()}
    has = {resource: _whole(node, resource) for resource in gpus}
    there = {resource: max(has[resource], capacity.get(resource, 0)) for resource in gpus}
    closed = why_excluded(pod, node, ()) or _closed_now(pod, node)
    if closed:
        enough = all(there[resource] >= count for resource, count in gpus.items())
        return (Lack.CLOSED, closed) if enough else (Lack.MISSING, f"no {counted(gpus)}, and {closed}")
    for resource, count in gpus.items():
        if has[resource] >= count and not known:
            continue
        in_use = int(one.resources[resource].allocated.value) if resource in one.resources else 0
        if has[resource] - in_use >= count:
            continue
        return _without(seen, node, resource, count, has[resource], in_use, capacity, layout)
    if not known and gpus:
        return Lack.UNKNOWN, f"has {counted(has)}; who holds them could not be read"
    for resource, need in asks.items():
        if resource in gpus or (resource not in one.resources and resource in {*STATED_BY_EVERY_NODE, PODS}):
            continue
        usage = one.resources.get(resource)
        free = usage.available if usage else ZERO
        if free < need:
            total = amount(usage.allocatable) if usage else "0"
            return (
                Lack.OTHER,
                f"{short(resource)}: {amount(free)} of {total} free, the pod needs {amount(need)}",
            )
    return Lack.NOTHING, "has room for it"


def _without(
    seen: Evidence,
    node: Node,
    resource: str,
    count: int,
    has: int,
    in_use: int,
    capacity: Mapping[str, int],
    layout: _Layout,
) -> tuple[Lack, str]:
    """Why a node has too few of one GPU resource free."""
    name, whole = short(resource), capacity.get(resource, 0)
    wished, state, reason = layout
    plugin = None if seen.plugins is None else seen.plugins.get(node.name, False)
    nothing_left = resource in capacity and not any(_whole(node, one) for one in capacity)
    if nothing_left and not plugin and (whole - in_use >= count or not whole):
        missing = "its device plugin is away" if plugin is False else _AWAY
        return Lack.AWAY, f"{name}: 0 of {whole} are offered: {missing}"
    if whole > has and whole - in_use >= count:
        return Lack.ILL, f"{name}: {whole - has} of {whole} are ill, {in_use} in use"
    if state == "pending" and wished.get(resource, 0) >= count:
        return Lack.LAYOUT_PENDING, f"its layout with {name} is pending: {reason or 'it gives no reason'}"
    if has >= count:
        return Lack.TAKEN, f"{name}: {in_use} of {has} in use"
    if state == "failed":
        return Lack.LAYOUT_FAILED, f"no {count} × {name}; its layout failed: {reason or 'it gives no reason'}"
    if has:
        return Lack.TOO_FEW, f"{name}: it has {has}, the pod needs {count} on one node"
    others = gpus_of(node.allocatable)
    return Lack.MISSING, f"no {name}; it has {counted(others)}" if others else "no GPU"


_AWAY = "its device plugin is away, or all its devices are ill"


def _closed_now(pod: Pod, node: Node) -> str | None:
    """A taint that keeps the pod away today, though not for good: cordoned, not ready …"""
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            toleration.tolerates(taint) for toleration in pod.tolerations
        ):
            return f"taint {taint} is not tolerated"
    return None


def _whole(node: Node, resource: str) -> int:
    if node.is_served(resource):
        return node.dra[resource]
    amount_ = node.allocatable.get(resource)
    return int(amount_.value) if amount_ else 0


def profiles_of(gpus: Mapping[str, int]) -> dict[MigProfile, int]:
    """The MIG profiles among GPUs; none where something else is asked for too, which no layout gives."""
    found = {MigProfile.of_resource(resource): number for resource, number in gpus.items()}
    return {} if None in found else {profile: n for profile, n in found.items() if profile is not None}
