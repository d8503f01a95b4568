"""How much of what pods ask for is looked at: whoever may create pods can ask for anything, in as many ways as there are pods."""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Final

from tessera.core.admission.limits import weight
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.waiting import DemandGroup
from tessera.protocol.mig.nodes import GpuNode

# Groups of pods that ask for the same and may go to the same nodes. At 4,000 nodes that all differ, 500 groups take about 3 s; the controller's Lease
# must be renewed within 10 s.
MOST_GROUPS: Final = 500
MOST_OF_A_NAMESPACE: Final = 50
# What it takes to compare a group with one node, in steps of a microsecond or less: a pod has room for a hundred thousand values of node affinity. A group
# that people make takes some five.
_STEPS_OF_A_GROUP: Final = 10
_MOST_CARDS: Final = 16  # of a node that does not say how many it has; NVIDIA's largest has 16


def fair(groups: Sequence[DemandGroup]) -> list[DemandGroup]:
    """The oldest groups of each namespace, in turns, as many as are looked at; in their order."""
    steps = [_steps(one) for one in groups]
    if len(_first(range(len(groups)), steps, MOST_OF_A_NAMESPACE)) == len(groups):
        return list(groups)
    of: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for namespace in {name.partition("/")[0] for name in group.names}:
            of.setdefault(namespace, []).append(number)
    turns = zip_longest(*(_first(some, steps, MOST_OF_A_NAMESPACE) for some in of.values()))
    chosen = dict.fromkeys(one for turn in turns for one in turn if one is not None)
    return [groups[number] for number in sorted(_first(chosen, steps, MOST_GROUPS))]


def _first(numbers: Iterable[int], steps: Sequence[int], most: int) -> list[int]:
    """The first so many groups, without those for which there are not enough steps left."""
    found, left = list[int](), most * _STEPS_OF_A_GROUP
    for number in numbers:
        if len(found) < most and steps[number] <= left:
            found.append(number)
            left -= steps[number]
    return found


def _steps(group: DemandGroup) -> int:
    where = group.where
    terms = sum(weight(one) for one in where.required_terms or ())
    return len(where.node_selector) + len(where.tolerations) + terms


def most_on_a_node(nodes: Iterable[GpuNode]) -> Callable[[MigProfile], int]:
    """How many devices of a profile a node can have at most, however its cards are cut; 0: no card knows it."""
    kinds = {(one.product, one.cards or _MOST_CARDS) for one in nodes if one.product is not None}
    known: dict[MigProfile, int] = {}

    def most(profile: MigProfile) -> int:
        if profile not in known:
            shapes = ((product.shape(profile), cards) for product, cards in kinds)
            known[profile] = max((shape.most * cards for shape, cards in shapes if shape), default=0)
        return known[profile]

    return most
