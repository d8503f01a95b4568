"""The node labels that NVIDIA's GPU feature discovery sets, for nodes whose GPUs are simulated.

Selectors and dashboards read them: what the cards are, how many, how much memory, and per MIG profile likewise.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import NodeLayout, Strategy
from tessera.core.mig.profile import MIG_PREFIX, MigProfile

_DOMAIN: Final = "nvidia.com"
_PER_PROFILE: Final = re.compile(rf"{re.escape(MIG_PREFIX)}[a-z0-9.+-]+\.(count|memory|product)", re.ASCII)


def gpu_labels(layout: NodeLayout, strategy: Strategy) -> dict[str, str]:
    """The labels of a node with this layout; only the first card's product is told, as GPU feature discovery does."""
    if not layout.cards:
        return {}
    product = layout.cards[0].product
    labels = {
        f"{_DOMAIN}/gpu.present": "true",
        f"{_DOMAIN}/gpu.product": product.label,
        f"{_DOMAIN}/gpu.count": str(len(layout.cards)),
        f"{_DOMAIN}/gpu.memory": str(product.memory_mib),
        f"{_DOMAIN}/mig.strategy": str(strategy),
        f"{_DOMAIN}/mig.capable": "true" if product.shapes else "false",
    }
    counts = sum((Counter(card.counts) for card in layout.cards), Counter[MigProfile]())
    if strategy is Strategy.SINGLE and counts:  # the slices are what is called a GPU
        ((profile, count),) = counts.items()
        labels |= _described(f"{_DOMAIN}/gpu", product, profile, count)
    if strategy is Strategy.MIXED:
        for profile, count in counts.items():
            labels |= _described(profile.resource, product, profile, count)
    return labels


def stale_labels(present: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Labels of profiles that are no longer there."""
    keep = set(wanted)
    return sorted(name for name in present if name not in keep and _PER_PROFILE.fullmatch(name))


def _described(name: str, product: Product, profile: MigProfile, count: int) -> dict[str, str]:
    shape = product.shape(profile)
    return {
        f"{name}.count": str(count),
        f"{name}.memory": str(shape.memory_mib if shape else 0),
        f"{name}.product": f"{product.label}-MIG-{profile.label}",
    }
