"""How the cards of a simulated cluster are cut, and the nodes that they are in."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import sqrt
from typing import Final

from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.geometry import product_named
from tessera.core.mig.placement import Pattern, maximal_patterns
from tessera.core.mig.profile import MigProfile

PRODUCT: Final = product_named("H100-80GB")
PROFILES: Final = {  # size → the profile that tasks of this size ask for
    size: MigProfile.parse(name)
    for size, name in {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb"}.items()
}
RESOURCES: Final = {size: profile.resource for size, profile in PROFILES.items()}
SIZES: Final = {resource: size for size, resource in RESOURCES.items()}
# NVIDIA's own configuration all-balanced for cards of 80 GB: two 1g, a 2g and a 3g. Nothing is a 4g there.
BALANCED: Final[Pattern] = (2, 1, 1, 0)
CARDS_OF_A_NODE: Final = 8


def fitted(erlangs: Mapping[int, float], cards: int) -> list[Pattern]:
    """Cards cut for a demand: every size has the same headroom, in standard deviations of what is in use at a time.

    Card by card, the cut that helps the sizes most that have the least.
    """
    patterns = maximal_patterns(PRODUCT, (), tuple(PROFILES.values()), (7, 3, 2, 1))
    wanted = [erlangs.get(size, 0.0) for size in PROFILES]
    have, chosen = [0] * len(wanted), list[Pattern]()

    def headroom(pattern: Pattern) -> list[float]:
        both = zip(have, pattern, wanted, strict=True)
        return sorted((has + more - want) / sqrt(want) for has, more, want in both if want)

    for _ in range(cards):
        best = max(patterns, key=headroom)
        chosen.append(best)
        have = [has + more for has, more in zip(have, best, strict=True)]
    return chosen


def nodes_of(cards: Sequence[Pattern]) -> Iterator[tuple[str, dict[str, int]]]:
    """Names of nodes, and what each offers."""
    for first in range(0, len(cards), CARDS_OF_A_NODE):
        counts = [sum(column) for column in zip(*cards[first : first + CARDS_OF_A_NODE], strict=True)]
        offered = {RESOURCES[size]: count for size, count in zip(PROFILES, counts, strict=True) if count}
        yield f"node-{first // CARDS_OF_A_NODE:02}", offered


def node_of(name: str, offered: Mapping[str, int], *, dra: bool = False) -> Node:
    """A node as decisions see it; `dra`: the DRA driver serves its devices."""
    if dra:
        return Node(name, dra=dict(offered))
    return Node(name, allocatable={one: Quantity(Fraction(count)) for one, count in offered.items()})
