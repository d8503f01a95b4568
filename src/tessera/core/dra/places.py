"""Where slices and devices are, and how a node is found to be meant without asking every pool.

A driver may have a pool for every rack, or one whose devices are each on another node: hundreds of rules times thousands
of nodes, each time that one of them changes. So every place has spots, which are what a node must have to be meant, and
a node looks at its own spots only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.scheduling import NodeSelectorTerm

# A node's name; a label and its value; None: any node may be meant
Spot = str | tuple[str, str] | None
Spots = frozenset[Spot]


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes by rule: all of them, those that a selector's terms match, and some by name."""

    everywhere: bool = False
    terms: tuple[NodeSelectorTerm, ...] = ()
    names: frozenset[str] = frozenset()

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        return self.everywhere or name in self.names or any(term.matches(name, labels) for term in self.terms)


# one node's name; a rule; None: some way that this release does not know, so nowhere
Where = str | Place | None


def is_at(where: Where, name: str, labels: Mapping[str, str]) -> bool:
    if isinstance(where, str):
        return where == name
    return where is not None and where.holds(name, labels)


def together(places: Iterable[Where]) -> Place:
    """All nodes that any of some places means."""
    names, rules = set(), []
    for one in dict.fromkeys(places):
        if isinstance(one, str):
            names.add(one)
        elif one is not None:
            rules.append(one)
    terms = dict.fromkeys(term for one in rules for term in one.terms)
    return Place(any(one.everywhere for one in rules), tuple(terms), frozenset(names))


def spots_of(where: Where) -> Spots:
    """What a node must have one of to be meant."""
    if where is None:
        return _NOWHERE
    if isinstance(where, str):
        return frozenset({where})
    if where.everywhere:
        return ANYWHERE
    return where.names.union(*map(_spots_of_term, where.terms))


def _spots_of_term(term: NodeSelectorTerm) -> Spots:
    """All requirements of a term hold together: one that lists values is enough to look by."""
    for one in term.fields:
        if one.operator == "In":
            return frozenset(one.values)
    for one in term.expressions:
        if one.operator == "In":
            return frozenset((one.key, value) for value in one.values)
    return ANYWHERE if term.fields or term.expressions else _NOWHERE


def spots_of_node(node: Node) -> Iterator[Spot]:
    """What a node has."""
    yield node.name
    yield from node.labels.items()
    yield None


def may_be_meant(node: Node, spots: Spots) -> bool:
    return any(spot in spots for spot in spots_of_node(node))


ANYWHERE: Final[Spots] = frozenset({None})
_NOWHERE: Final[Spots] = frozenset()
