"""How a node's cards are cut, from every source there is: the one place that says so.

What a node reports (`run.ai/mig-mapping`) goes before what its annotation wishes; then comes what is observed.
"""

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_PRODUCT_LABEL
from tessera.core.mig.known import KnownLayout, LayoutSource, UnknownLayout
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.protocol.mig.nodes import GpuNode, present_layout
from tessera.protocol.mig.operator import MigManagerConfig


def known_layout(gpus: GpuNode, mig_manager: MigManagerConfig | None = None) -> KnownLayout | UnknownLayout:
    """How a node's cards are cut, or why that is not known."""
    try:
        layout = present_layout(gpus)
    except InvalidInput as error:
        return UnknownLayout(str(error))
    if layout is not None:
        source = LayoutSource.ANNOTATION if gpus.mapping is None else LayoutSource.MAPPING
        return KnownLayout(source, layout)
    if gpus.product is None:
        return UnknownLayout(
            f'unknown product "{gpus.label}"' if gpus.label else f"no label {GPU_PRODUCT_LABEL}"
        )
    if gpus.cards is None:
        return UnknownLayout(f'no number of cards for "{gpus.label}"')
    return KnownLayout(LayoutSource.CAPACITY, NodeLayout((CardLayout(gpus.product),) * gpus.cards))
