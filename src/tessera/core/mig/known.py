"""How a node's cards are cut, as far as it is known, and from where; what counts of devices say about cards.

Counts say how a node's cards are cut where there is exactly one way: 56 × 1g.10gb on eight cards of 80 GB. Where cards differ, counts
do not tell which card is which; most mixtures leave several ways besides. Then nothing is known.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tessera.core.mig.layout import NodeLayout

_MOST_STEPS: Final = (
    20_000  # of the search for a second way: a fraction of a second; beyond that nothing is known
)


class LayoutSource(StrEnum):
    """Where a layout is known from, as people read it."""

    MAPPING = "annotation run.ai/mig-mapping"
    ANNOTATION = "annotation run.ai/mig.config"
    MIG_MANAGER = "label nvidia.com/mig.config with mig-manager's ConfigMap"
    DISCOVERY = "labels of GPU Feature Discovery"
    CAPACITY = "the node's capacity"


@dataclass(frozen=True, slots=True)
class KnownLayout:
    """What each of a node's cards is cut into, for certain."""

    source: LayoutSource
    layout: NodeLayout
    placed: bool = True  # False: where on a card its slices lie is not certain
    note: str = ""  # what another source says that does not agree, in one sentence


@dataclass(frozen=True, slots=True)
class UnknownLayout:
    """Why it is not known how a node's cards are cut: one sentence, without the node's name."""

    reason: str
