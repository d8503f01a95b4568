"""What a Node object says about its GPUs: labels of GPU feature discovery, and the layout in its annotation."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_MEMORY_LABEL, GPU_PRODUCT_LABEL
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy, named_cards, resolve
from tessera.core.mig.placement import Wish
from tessera.core.mig.product import find_product
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig import documents
from tessera.protocol.mig.documents import CONFIG_REASON, CONFIG_STATE, RUNAI_CONFIG
from tessera.protocol.mig.mapping import MAPPING, decode_mapping

PRODUCT: Final = GPU_PRODUCT_LABEL
MEMORY: Final = GPU_MEMORY_LABEL
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
    mapping: str | None = None  # what became of it
    state: str = ""
    reason: str = ""  # why the state is not success


def gpu_node(node: NodeIn) -> GpuNode:
    """The GPU side of a node."""
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    label = labels.get(PRODUCT, "")
    # under the single strategy the product says `-MIG-`, and the count is of MIG devices
    cards = None if "-MIG-" in label else _number(labels.get(COUNT), _MOST_CARDS)
    return GpuNode(
        name=node.metadata.name,
        label=label,
        product=_product(label, _number(labels.get(MEMORY), _MOST_MIB)) if label else None,
        cards=cards,
        layout=annotations.get(RUNAI_CONFIG),
        strategy=_STRATEGIES.get(labels.get(STRATEGY, ""), Strategy.MIXED),
        mapping=annotations.get(MAPPING),
        state=labels.get(CONFIG_STATE, ""),
        reason=annotations.get(CONFIG_REASON, ""),
    )


_product: Final = lru_cache(maxsize=1024)(find_product)  # thousands of nodes say the same few labels


def present_layout(node: GpuNode) -> NodeLayout | None:
    """How a node's cards are cut: as it says they are, else as its annotation wishes; None when nothing tells.

    While a layout is pending, devices that stay for their pods are part of it, and what waits for them is not.

    `InvalidInput` when what it says cannot be.
    """
    if node.product is None or (node.mapping is None and node.layout is None):
        return None
    if node.mapping is None:
        entries = documents.read(node.layout or "", RUNAI_CONFIG).select()
        named = [number for entry in entries for number in entry.cards or ()]
        return resolve(entries, [node.product] * (node.cards or max(named, default=0) + 1))
    mapping = decode_mapping(node.mapping)
    number = node.cards or max(mapping, default=-1) + 1
    if any(card >= number for card in mapping):
        raise InvalidInput(f"{MAPPING}: {named_cards(mapping)}, but the node has {number}")
    return NodeLayout(
        tuple(
            _mapped_card(node.product, tuple((d.position, d.gpu_instance_id) for d in mapping[card]))
            if card in mapping
            else CardLayout(node.product)
            for card in range(number)
        ),
        changing=node.state == "pending" or any(one.leaving for some in mapping.values() for one in some),
    )


@lru_cache(maxsize=1024)
def _mapped_card(product: Product, devices: tuple[tuple[int, int], ...]) -> CardLayout:
    # of two names with one id (7g.79gb and 7g.80gb of an A100) the larger one is the usual: pods ask for that
    profiles = {shape.profile_id: shape.profile for shape in product.shapes}
    unknown = sorted({number for _, number in devices if number not in profiles})
    if unknown:
        raise InvalidInput(f"{MAPPING}: no profile of {product.name} has the id {unknown[0]}")
    return CardLayout.cut(product, [Wish(profiles[number], position) for position, number in devices])


def _number(text: str | None, most: int) -> int | None:
    """A label's number; None for what can be none."""
    number = int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number if 0 < number <= most else None
