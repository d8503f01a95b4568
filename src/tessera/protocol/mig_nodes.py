"""What a Node object says about its GPUs: labels of GPU feature discovery, and the layout in its annotation."""

from dataclasses import dataclass
from typing import Final

from tessera.core.geometry import Product
from tessera.core.layout import Strategy
from tessera.core.products import find_product
from tessera.protocol.mig import RUNAI_CONFIG
from tessera.protocol.objects import NodeIn

PRODUCT: Final = "nvidia.com/gpu.product"
MEMORY: Final = "nvidia.com/gpu.memory"  # MiB
COUNT: Final = "nvidia.com/gpu.count"
STRATEGY: Final = "nvidia.com/mig.strategy"

_MOST_CARDS: Final = 1024  # of one node: labels are written by people too
_MOST_MIB: Final = 1 << 24  # 16 TiB on one card
_STRATEGIES: Final = {strategy.value: strategy for strategy in Strategy}


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node with GPUs, as its labels and annotations tell it."""

    name: str
    label: str  # the product as the node calls it; empty when it does not
    product: Product | None  # None: nothing is known of that one
    cards: int | None  # None: the node does not say
    layout: str | None  # the text of its layout annotation
    strategy: Strategy


def gpu_node(node: NodeIn) -> GpuNode:
    """The GPU side of a node."""
    labels = node.metadata.labels or {}
    label = labels.get(PRODUCT, "")
    # under the single strategy the product says `-MIG-`, and the count is of MIG devices
    cards = None if "-MIG-" in label else _number(labels.get(COUNT), _MOST_CARDS)
    return GpuNode(
        name=node.metadata.name,
        label=label,
        product=find_product(label, _number(labels.get(MEMORY), _MOST_MIB)) if label else None,
        cards=cards,
        layout=(node.metadata.annotations or {}).get(RUNAI_CONFIG),
        strategy=_STRATEGIES.get(labels.get(STRATEGY, ""), Strategy.MIXED),
    )


def _number(text: str | None, most: int) -> int | None:
    """A label's number; None for what can be none."""
    number = int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number if 0 < number <= most else None
