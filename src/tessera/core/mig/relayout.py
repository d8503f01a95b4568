"""What a node loses when its cards are cut anew."""

from collections.abc import Iterable, Mapping

from tessera.core.devices.capacity import PodUse
from tessera.core.mig.layout import DoesNotFit, NodeLayout, Strategy


def going(
    before: NodeLayout | None, after: NodeLayout, offered: Mapping[str, int], strategy: Strategy
) -> dict[str, int]:
    """How many devices of each resource would go.

    A device stays where the new layout has the same one in the same place. Where nobody knows how the cards are cut
    now, only the numbers that the node offers can be compared.
    """
    wanted = after.slots(strategy)
    try:
        present = before.slots(strategy) if before is not None else None
    except DoesNotFit:  # a layout that this strategy does not have
        present = None
    if present is None:
        lost = {resource: number - len(wanted.get(resource, ())) for resource, number in offered.items()}
    else:
        lost = {resource: len({*slots} - {*wanted.get(resource, ())}) for resource, slots in present.items()}
    return {resource: number for resource, number in lost.items() if number > 0}


def in_danger(uses: Iterable[PodUse], lost: Mapping[str, int]) -> list[tuple[PodUse, str]]:
    """The pods that hold a resource of which devices would go, each with that resource."""
    return [(use, resource) for use in uses for resource in use.amounts if resource in lost]
