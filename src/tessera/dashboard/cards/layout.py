"""How a node's cards are cut, as far as the page knows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.dra.naming import cut_now
from tessera.core.errors import InvalidInput
from tessera.core.mig.known import KnownLayout, LayoutSource, UnknownLayout
from tessera.core.mig.layout import NodeLayout
from tessera.core.mig.profile import MigProfile
from tessera.dashboard.observed import DashboardNode
from tessera.inventory.dra import ClaimedDevice

Claimed = Mapping[str, ClaimedDevice]  # the devices of a node that claims hold, by name


@dataclass(frozen=True, slots=True)
class SeenLayout:
    """How a node's cards are cut, as far as that is known."""

    layout: NodeLayout | None = None
    source: LayoutSource | None = None  # None: claims say it
    placed: bool = True
    note: str = ""  # what another source says that does not agree
    unknown: str = ""  # why it is not known; empty where there is nothing to know

    @property
    def by_ids(self) -> bool:
        """Whether the devices are Tessera's, so that their ids tell where they lie."""
        return self.source in (None, LayoutSource.MAPPING, LayoutSource.ANNOTATION)


_NOTHING: Final = SeenLayout()


def layout_of(
    node: DashboardNode, known: KnownLayout | UnknownLayout, claimed: Claimed, *, on_demand: bool
) -> SeenLayout:
    """How a node's cards are cut, by what is known of it. `on_demand`: as claims ask for it."""
    gpus = node.gpus
    if on_demand and gpus.product is not None and gpus.cards is not None:
        return SeenLayout(cut_now(gpus.product, gpus.cards, claimed))
    if isinstance(known, UnknownLayout):
        matters = gpus.product is not None or any(map(MigProfile.of_resource, node.node.allocatable))
        return SeenLayout(unknown=known.reason) if matters else _NOTHING
    try:
        known.layout.slots(gpus.strategy)  # which does not allow every layout
    except InvalidInput as error:
        return SeenLayout(unknown=str(error))
    return SeenLayout(known.layout, known.source, known.placed, known.note)
