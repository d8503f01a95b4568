"""A node in a few hundred bytes: what the overview, the filters and the search need of it.

Every browser gets the summaries of all nodes, and the mosaics of those that it looks at. `revision` changes with the
mosaic, so that the browser knows when to ask for it again.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from tessera.core.devices.capacity import Usages
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.mig.profile import MigProfile
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.dashboard.totals import short_name

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


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node in the overview."""

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
    one: DashboardNode, usages: Usages, pods: Iterable[DashboardPod], unreadable: str, revision: int
) -> Summary:
    """A node in the overview; `unreadable`: why its layout cannot be read."""
    gpus = one.gpus
    missing = [
        f"{count} {short_name(resource)} unhealthy or leaving" for resource, count in one.unhealthy.items()
    ]
    bad = (
        not one.node.ready and "not ready",
        gpus.state == "failed" and "layout failed",
        unreadable and "layout unreadable",
        *(missing if gpus.state != "pending" else ()),
    )
    good = (
        one.cordoned and "cordoned",
        any(map(one.node.is_served, one.node.dra)) and "devices by DRA",
        gpus.state not in ("", "failed") and f"layout {gpus.state}",
        *(missing if gpus.state == "pending" else ()),
    )
    return Summary(
        one.node.name,
        revision,
        gpus.product.short_name if gpus.product else gpus.label,
        next((value for label in _POOLS if (value := one.node.labels.get(label))), ""),
        gpus.cards or 0,
        _used(usages),
        {
            short_name(resource): (int(usage.allocatable.value), int(usage.allocated.value))
            for resource, usage in usages.items()
            if usage
        },
        tuple(sorted(f"{pod.use.namespace}/{pod.use.name}" for pod in pods)),
        tuple(word for word in bad if word),
        tuple(word for word in good if word),
        gpus.reason or unreadable,
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
