"""What each node has, for the overview, and what all nodes have together, now and while this server watched, in bounded memory.

The browser gets a summary of every node, and the mosaic only of those that a person looks at. The sums are kept by adding and taking
away: a cluster has thousands of nodes, and few change at a time. Of the past a point is kept only where a number changed. When a
resource has too many points, every second one of the older half is left out: the last minutes stay exact, the hours before keep
their outline.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from tessera.core.devices.capacity import Usage, Usages, in_order
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import is_whole_or_mig, short
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.inventory.report import amount

Point = tuple[int, int, int, int]  # seconds since 1970, allocatable, allocated, waiting

SPAN: Final = 6 * 3600  # seconds; what a person asks about who comes to work
MOST_POINTS: Final = 240  # of one resource: two for each pixel of the chart would not be seen
MOST_RESOURCES: Final = 64  # twice what a cluster with five products has
# resources that no node has: pods may ask for any name, thousands of them
MOST_UNKNOWN: Final = 32

# labels that say which pool of machines a node is of, the first that it has; by cloud, then by tool
_POOLS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
    "node.cluster.x-k8s.io/pool",
    "pool",
)
_WHOLE: Final = 7  # compute slices: what a whole GPU counts as beside MIG devices

T = TypeVar("T")


def bounded(found: Mapping[str, T], known: Callable[[str], object]) -> dict[str, T]:
    """The resources that are known, and some of the others."""
    others = islice((resource for resource in found if not known(resource)), MOST_UNKNOWN)
    kept = {*(resource for resource in found if known(resource)), *others}
    return {resource: one for resource, one in found.items() if resource in kept}


class Totals:
    """The sums of what nodes have."""

    def __init__(self) -> None:
        self._nodes: dict[str, Usages] = {}
        self.sums: dict[str, Usage] = {}

    def put(self, node: str, usages: Usages | None) -> None:
        """Take a node's new numbers in place of those before; None: it is gone."""
        for resource, one in self._nodes.pop(node, {}).items():
            before = self.sums[resource]
            rest = Usage(before.allocatable - one.allocatable, before.allocated - one.allocated)
            if rest:
                self.sums[resource] = rest
            else:
                del self.sums[resource]
        if usages is None:
            return
        found = {resource: one for resource, one in usages.items() if one}
        self._nodes[node] = bounded(found, lambda resource: found[resource].allocatable)
        for resource, one in self._nodes[node].items():
            self.sums[resource] = self.sums.get(resource, Usage()) + one

    def of(self, node: str) -> Usages:
        """What one node has, without what it has none of."""
        return self._nodes.get(node, {})

    @property
    def known(self) -> frozenset[str]:
        return frozenset(resource for resource, one in self.sums.items() if one.allocatable)

    def numbers(self, asked: Mapping[str, Quantity]) -> dict[str, tuple[int, int, int]]:
        """Allocatable, allocated and asked for, by resource."""
        every = {**dict.fromkeys(asked, Usage()), **self.sums}
        return {name: (*_whole(one), int(asked.get(name, ZERO).value)) for name, one in every.items()}


def _whole(usage: Usage) -> tuple[int, int]:
    return int(usage.allocatable.value), int(usage.allocated.value)


def resource_rows(usages: Usages, asked: Mapping[str, Quantity]) -> list[dict[str, Any]]:
    """Rows of a table; a resource that no node has and no pod asks for is left out."""
    rows = []
    for resource in in_order({**usages, **asked}):
        usage, waiting = usages.get(resource, Usage()), asked.get(resource, ZERO)
        has, held = usage.allocatable, usage.allocated
        if usage or waiting:
            rows.append(
                {
                    "resource": resource,
                    "name": short_name(resource),
                    "allocatable": amount(has),
                    "allocated": amount(held),
                    "available": amount(usage.available),
                    "asked": amount(waiting),
                    "share": float(held.value / has.value) if has else 0.0,
                    "lacking": waiting > usage.available,
                }
            )
    return rows


def short_name(resource: str) -> str:
    """A resource as people call it."""
    return short(resource) if is_whole_or_mig(resource) else resource


class History:
    """Points by resource, the oldest first."""

    def __init__(self) -> None:
        self._points: dict[str, list[Point]] = {}

    def see(self, now: int, numbers: Mapping[str, tuple[int, int, int]]) -> list[str]:
        """Take what is allocatable, allocated and waited for, by resource; the resources that have a new point."""
        changed = []
        for resource in [*self._points, *(one for one in numbers if one not in self._points)]:
            found = numbers.get(resource, (0, 0, 0))
            points = self._points.get(resource, [])
            if (points and points[-1][1:] == found) or (not points and len(self._points) >= MOST_RESOURCES):
                continue
            self._points[resource] = _bounded([*points, (now, *found)], now)
            changed.append(resource)
        return changed

    def of(self, resource: str) -> list[Point]:
        return self._points.get(resource, [])


def _bounded(points: list[Point], now: int) -> list[Point]:
    """What is still to be shown; the last point before that says how things were when it begins."""
    first = max((at for at, point in enumerate(points) if point[0] <= now - SPAN), default=0)
    kept = points[first:]
    if len(kept) > MOST_POINTS:
        half = len(kept) // 2
        kept = [*kept[:half:2], *kept[half:]]
    return kept


# One node


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    revision: int
    product: str = ""
    pool: str = ""
    cards: int = 0
    used: float | None = None  # of what it offers, by compute slices; None: it offers nothing
    resources: dict[str, tuple[int, int]] = {}  # short name → allocatable, allocated
    pods: tuple[str, ...] = ()  # namespace/name of those that hold devices
    trouble: tuple[str, ...] = ()  # what an operator should look at
    notes: tuple[str, ...] = ()  # what is as it should be, and worth knowing
    reason: str = ""


def summary_of(
    one: DashboardNode,
    usages: Usages,
    pods: Iterable[DashboardPod],
    layout: KnownLayout | UnknownLayout,
    revision: int,
) -> Summary:
    """A node in the overview."""
    gpus = one.gpus
    unknown, note = (layout.reason, "") if isinstance(layout, UnknownLayout) else ("", layout.note)
    described = gpus.mapping is not None or (gpus.layout is not None and not gpus.by_mig_manager)
    missing = [f"{count} {short_name(name)} unhealthy or leaving" for name, count in one.unhealthy.items()]
    bad = (
        not one.node.ready and "not ready",
        gpus.state == "failed" and "layout failed",
        bool(described and unknown) and "layout unreadable",
        bool(note) and "layout differs from its label",
        *(missing if gpus.state != "pending" else ()),
    )
    good = (
        one.cordoned and "cordoned",
        one.rollout is not None and "rollout under way",
        any(map(one.node.is_served, one.node.dra)) and "devices by DRA",
        gpus.state not in ("", "failed") and f"layout {gpus.state}",
        bool(unknown and not described) and "layout not known",
        *(missing if gpus.state == "pending" else ()),
    )
    return Summary(
        one.node.name,
        revision,
        gpus.product.short_name if gpus.product else gpus.label,
        next((value for label in _POOLS if (value := one.node.labels.get(label))), ""),
        gpus.cards or 0,
        _used(usages),
        {short_name(resource): _whole(usage) for resource, usage in usages.items() if usage},
        tuple(sorted(f"{pod.use.namespace}/{pod.use.name}" for pod in pods)),
        tuple(word for word in bad if word),
        tuple(word for word in good if word),
        gpus.reason or unknown or note,
    )


def _used(usages: Usages) -> float | None:
    """The share in use: of GPUs by their compute slices, on a node without GPUs of all devices."""
    gpus = {resource: usage for resource, usage in usages.items() if is_whole_or_mig(resource) and usage}
    allocatable = allocated = 0.0
    for resource, usage in (gpus or usages).items():
        profile = MigProfile.of_resource(resource)
        weight = profile.compute if profile else _WHOLE if resource in gpus else 1
        allocatable += weight * float(usage.allocatable.value)
        allocated += weight * float(usage.allocated.value)
    return min(1.0, allocated / allocatable) if allocatable else (1.0 if allocated else None)
