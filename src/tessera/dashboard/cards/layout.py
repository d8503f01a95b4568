"""How a node's cards are cut, as far as the page knows it."""

from collections.abc import Mapping

from tessera.core.dra.naming import cut_now
from tessera.core.errors import InvalidInput
from tessera.core.mig.known import KnownLayout, LayoutSource, UnknownLayout
from tessera.core.mig.profile import MigProfile
from tessera.dashboard.observed import DashboardNode
from tessera.inventory.dra import ClaimedDevice

Claimed = Mapping[str, ClaimedDevice]  # the devices of a node that claims hold, by name


def layout_of(
    node: DashboardNode, known: KnownLayout | UnknownLayout, claimed: Claimed, *, on_demand: bool
) -> KnownLayout | UnknownLayout:
    """How a node's cards are cut, by what is known of it. `on_demand`: as claims ask for it.

    The reason is empty where there is nothing to know.
    """
    gpus = node.gpus
    if on_demand and gpus.product is not None and gpus.cards is not None:
        return KnownLayout(LayoutSource.CLAIMS, cut_now(gpus.product, gpus.cards, claimed))
    if isinstance(known, UnknownLayout):
        matters = gpus.product is not None or any(map(MigProfile.of_resource, node.node.allocatable))
        return known if matters else UnknownLayout("")
    try:
        known.layout.slots(gpus.strategy)  # which does not allow every layout
    except InvalidInput as error:
        return UnknownLayout(str(error))
    return known
