"""The devices that a node should have by its labels and annotations.

A replica that has just started knows no past. While a device plugin or a kubelet restarts, a node's status does not list
devices that are back in a moment; its labels and its layout still do.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tessera.core.cache import cache_short
from tessera.core.errors import InvalidInput
from tessera.core.gpu_names import MIG_PREFIX
from tessera.core.kubernetes.node import GPU_COUNT_LABEL, GPU_PRODUCT_LABEL, Node
from tessera.core.kubernetes.pod import NOTHING, Amounts
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.resources import WHOLE_GPU
from tessera.core.mig.profile import MigProfile
from tessera.protocol.kubernetes.nodes import NodeIn

if TYPE_CHECKING:
    from tessera.protocol.mig.nodes import GpuNode

# as tessera.protocol.mig has them, which is loaded where a node has such an annotation and needs it
_LAYOUTS: Final = ("run.ai/mig.config", "run.ai/mig-mapping")
_LAYOUT_LABEL: Final = "nvidia.com/mig.config"  # which layout mig-manager makes
_NO_LAYOUT: Final = ("", "all-disabled")
_MOST_CHARACTERS: Final = 16 * 1024  # of an annotation: eight cards of seven devices take a quarter of it
_MOST_CARDS: Final = 64  # of a node whose layout is worked out card by card
_COUNT: Final = ".count"


def mentions_gpus(node: NodeIn) -> bool:
    """Whether labels or annotations mention GPUs at all."""
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    return (
        GPU_PRODUCT_LABEL in labels
        or GPU_COUNT_LABEL in labels
        or any(name in annotations for name in _LAYOUTS)
        or any(key.startswith(MIG_PREFIX) for key in labels)
    )


def missing_devices(raw: NodeIn, node: Node) -> Amounts:
    """The devices that a node has by its labels or its layout, and does not offer.

    Its labels count MIG devices; where they do not, and the status names no GPU either, its layout counts, and where it
    has none, the label that counts whole GPUs.
    """
    labels, annotations = raw.metadata.labels or {}, raw.metadata.annotations or {}
    counts: Mapping[str, int] = _counted(labels)
    if not counts and not node.offer.counts:
        if any(name in annotations for name in _LAYOUTS):
            counts = _laid_out(raw)
        elif labels.get(_LAYOUT_LABEL, "") in _NO_LAYOUT and not _is_renamed(WHOLE_GPU, labels):
            counts = {WHOLE_GPU: _number(labels.get(GPU_COUNT_LABEL, ""))}
    lacking = tuple((name, n) for name, n in counts.items() if n and not node.allocatable.get(name))
    return _amounts(lacking) if lacking else NOTHING


def _counted(labels: Mapping[str, str]) -> dict[str, int]:
    """The MIG devices that labels count; none of those that are shared by another name."""
    counts = {}
    for key, value in labels.items():
        if key.startswith(MIG_PREFIX) and key.endswith(_COUNT):
            name = key.removesuffix(_COUNT)
            if MigProfile.of_resource(name) is not None and not _is_renamed(name, labels):
                counts[name] = _number(value)
    return counts


def _is_renamed(name: str, labels: Mapping[str, str]) -> bool:
    """Whether these devices are offered as shares of another name: a product of shares that keep their name says so."""
    shared = _number(labels.get(name + ".replicas", "")) > 1
    return shared and not labels.get(name + ".product", "").endswith("-SHARED")


def _laid_out(raw: NodeIn) -> Mapping[str, int]:
    """What the layout in a node's annotations has; nothing when it cannot be read."""
    from tessera.protocol.mig.nodes import gpu_node

    annotations = raw.metadata.annotations or {}
    if any(len(annotations.get(name, "")) > _MOST_CHARACTERS for name in _LAYOUTS):
        return {}
    return _resources(replace(gpu_node(raw), name="", reason=""))


@cache_short(
    64, 2 * _MOST_CHARACTERS, lambda node: node.length
)  # many nodes are cut alike, and some milliseconds go into each
def _resources(node: "GpuNode") -> Mapping[str, int]:
    from tessera.core.mig.layout import Strategy, count_devices
    from tessera.protocol.mig import documents
    from tessera.protocol.mig.nodes import present_layout

    if node.strategy is not Strategy.MIXED:
        return {}  # no slice is called by its profile there
    try:
        if 0 < (node.cards or 0) <= _MOST_CARDS and (layout := present_layout(node)) is not None:
            return layout.resources(node.strategy)
        entries = documents.read(node.layout or "").select()
    except InvalidInput:
        return {}
    # product or number of cards are not known: what the layout names is counted, on one card where it says "all"
    return count_devices(entries, node.cards or 1)


def _number(text: str) -> int:
    """A label's number; 0 for what can be none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


@cache_short(256, 64, len)  # nodes of one kind have the same
def _amounts(counts: tuple[tuple[str, int], ...]) -> Amounts:
    return {name: Quantity.parse(str(count)) for name, count in counts}
