"""The little of nodes and namespaces that decisions need."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from tessera.core.kubernetes.pod import NOTHING, Amounts, Pod
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.scheduling import Taint, few_of, untolerated
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU, is_any_gpu, is_share

# labels that GPU feature discovery sets
GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
GPU_MEMORY_LABEL: Final = "nvidia.com/gpu.memory"  # MiB of one card
GPU_COUNT_LABEL: Final = "nvidia.com/gpu.count"
_SHARING_LABEL: Final = "nvidia.com/gpu.sharing-strategy"  # none, time-slicing, mps
_REPLICAS_LABEL: Final = "nvidia.com/gpu.replicas"  # how many share one GPU
LAYOUT_STATE_LABEL: Final = "nvidia.com/mig.config.state"
DEVICES_LABEL: Final = "tessera.dev/devices"  # `dra`: the DRA driver serves the node, not the device plugin
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
# Every kubelet states these: a node without them is one that was not measured yet, not one that has none.
STATED_BY_EVERY_NODE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
# The scheduler puts all that DRA serves of one pod into one claim, and a claim holds 32 devices at most
# (resource/v1, AllocationResultsMaxSize).
MOST_OF_A_CLAIM: Final = 32
_NO_DEVICES: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Offer:
    """The GPU resources of a node: whole cards, MIG devices and shares, in whole numbers, never zero."""

    counts: tuple[tuple[str, int], ...]
    card_memory_gb: int | None = None  # of a whole card, when a label has it
    whole: bool = True  # what is called nvidia.com/gpu there is a whole card, not a slice or a share of one
    # of `counts`, those that DRA serves there: a DeviceClass of that extended resource name, and devices in
    # ResourceSlices. All others are allocatable: a device plugin serves them.
    dra: frozenset[str] = frozenset()

    def count(self, resource: str) -> int:
        return next((count for name, count in self.counts if name == resource), 0)


@dataclass(frozen=True, slots=True)
class Node:
    """A node: what it has, and what decides whether a pod may go there."""

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts = field(default_factory=lambda: NOTHING)
    # What is allocatable no more and counts all the same: its devices are unavailable for a moment: their plugin or
    # the kubelet restarts.
    unavailable: Amounts = field(default_factory=lambda: NOTHING)
    # What DRA serves there, by extended resource name: how many devices of ResourceSlices its DeviceClass selects. The
    # scheduler asks DRA only where nothing of the resource is allocatable.
    dra: Mapping[str, int] = field(default_factory=lambda: _NO_DEVICES)
    ready: bool = field(default=True, compare=False)

    @property
    def offer(self) -> Offer:
        counts = {
            resource: int(amount.number)
            for amounts in (self.unavailable, self.allocatable)
            for resource, amount in amounts.items()
            if is_any_gpu(resource) and amount.number >= 1
        }
        dra = _NO_NAMES
        if self.dra:
            served = {name: count for name, count in self.served().items() if is_any_gpu(name)}
            counts.update(served)
            dra = frozenset(served)
        if not counts:
            return NO_OFFER
        memory = self.labels.get(GPU_MEMORY_LABEL, "")
        return Offer(
            tuple(sorted(counts.items())),
            # usable memory is a little less than the name on the box (40536 MiB on a 40 GB card): round up
            -(-int(memory) // 1024) if memory.isascii() and memory.isdigit() and len(memory) < 10 else None,
            _offers_whole_cards(self.labels),
            dra,
        )

    def served(self) -> dict[str, int]:
        """What the scheduler takes from DRA there: nothing of it is allocatable; at most what one claim can hold."""
        return {
            resource: min(count, MOST_OF_A_CLAIM)
            for resource, count in self.dra.items()
            if count > 0 and self.is_served(resource)
        }

    def is_served(self, resource: str) -> bool:
        """Whether the scheduler takes a resource from DRA there, and not from a device plugin."""
        return resource in self.dra and not self.allocatable.get(resource)

    def is_stale(self, resource: str) -> bool:
        """Whether a capacity of this resource says nothing of unhealthy devices: no device plugin offers it there any more.

        The kubelet remembers a plugin that has stopped for five minutes (devicemanager, endpointStopGracePeriod). So it is where
        nothing is allocatable, and DRA serves the node's GPUs, or the node was cut, and its labels count other profiles only.
        """
        if self.allocatable.get(resource):
            return False
        if resource in self.dra:
            return True
        if is_any_gpu(resource) and (
            self.labels.get(DEVICES_LABEL) == "dra" or any(map(is_any_gpu, self.dra))
        ):
            return True
        if not resource.startswith(MIG_PREFIX) or self.labels.get(LAYOUT_STATE_LABEL) != "success":
            return False
        counted = [key for key in self.labels if key.startswith(MIG_PREFIX) and key.endswith(".count")]
        return bool(counted) and f"{resource.removesuffix('.shared')}.count" not in counted

    def amount(self, resource: str) -> Number | None:
        """How much it has of any resource; None where a node that says nothing may have any amount."""
        if self.is_served(resource):
            return min(self.dra[resource], MOST_OF_A_CLAIM)
        quantity = self.allocatable.get(resource) or self.unavailable.get(resource)
        if quantity is None:
            known = resource in self.allocatable or resource not in STATED_BY_EVERY_NODE
            return 0 if known else None
        return quantity.number


NO_OFFER: Final = Offer(())
_NO_NAMES: Final[frozenset[str]] = frozenset()


def _offers_whole_cards(labels: Mapping[str, str]) -> bool:
    product = labels.get(GPU_PRODUCT_LABEL, "")
    if "-MIG-" in product or product.endswith("-SHARED"):
        return False
    replicas = labels.get(_REPLICAS_LABEL, "")
    return labels.get(_SHARING_LABEL, "none") in ("none", "") and (
        replicas in ("", "0", "1") or not replicas.isdigit()
    )


@dataclass(frozen=True, slots=True)
class Namespace:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def why_excluded(pod: Pod, node: Node, transient: tuple[str, ...] = ()) -> str | None:
    """Why a pod could never be placed on a node; None when it could.

    `transient` are taints that exclude no pod, beside those of Kubernetes itself.
    """
    if (reason := why_not_selected(pod, node)) is not None:
        return reason
    taint = untolerated(node.taints, pod.tolerations, placed=bool(pod.node_name), transient=transient)
    return f"taint {taint} is not tolerated" if taint else None


def why_not_selected(pod: Pod, node: Node) -> str | None:
    """Why a pod's own selectors keep it from a node; None when they do not."""
    if pod.node_name and pod.node_name != node.name:
        return f"spec.nodeName is {pod.node_name}"
    for key, value in pod.node_selector.items():
        if node.labels.get(key) != value:
            has = f"{key}={node.labels[key]}" if key in node.labels else "no such label"
            return f"nodeSelector wants {key}={value}, the node has {has}"
    if pod.required_terms is not None and not any(
        t.matches(node.name, node.labels) for t in pod.required_terms
    ):
        return f"node affinity wants {few_of(pod.required_terms, ' or ')}"
    return None


def why_too_small(needs: Mapping[str, Number], node: Node) -> str | None:
    """Why a node could not hold a pod even if it were empty; None when it could."""
    for resource, need in needs.items():
        has = node.amount(resource)
        if has is not None and has < need:
            return f"has {_written(has)} {resource}, the pod needs {_written(need)}"
    return None


def is_other(resource: str) -> bool:
    """Whether it is a resource that fallback does not look at: what a node needs room for besides.

    A misspelt profile is warned of, and nothing else is done about it.
    """
    return resource != WHOLE_GPU and (not resource.startswith(MIG_PREFIX) or is_share(resource))


def others(node: Node) -> Iterator[tuple[str, Number]]:
    """What a node has of resources that fallback does not look at."""
    for resource, quantity in (*node.allocatable.items(), *node.unavailable.items()):
        if is_other(resource):
            yield resource, quantity.number
    if node.dra:
        yield from ((resource, count) for resource, count in node.served().items() if is_other(resource))


def _written(amount: Number) -> str:
    if isinstance(amount, Fraction):
        return f"{float(amount):g}"
    return f"{amount / 2**30:.4g}Gi" if amount >= 2**30 else str(amount)
