"""ResourceSlices and DeviceClasses, as little of them as shows what a node offers.

Thousands of nodes have the same few kinds of devices. So a device is a count of its kind here, and nodes that have the
same share the same `Contents`: kinds and contents are made once by what reads the slices, and compared by identity.

A driver may have a pool for every rack, or one whose devices are each on another node: hundreds of rules times thousands
of nodes, each time that one of them changes. So every place has spots, which are what a node must have to be meant, and
a node looks at its own spots only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.scheduling import NodeSelectorTerm

# Every class has this name for its devices, beside the one that its spec may give it (resource/v1,
# ResourceDeviceClassPrefix).
IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

API_VERSION: Final = "resource.k8s.io/v1"
DRIVER: Final = "gpu.tessera.dev"  # Tessera's own
LEAVING: Final = f"{DRIVER}/leaving"  # taint of a device that is in use and no longer wanted


# A node's name; a label and its value; None: any node may be meant
Spot = str | tuple[str, str] | None
Spots = frozenset[Spot]


@dataclass(frozen=True, slots=True)
class NodeRule:
    """Nodes by rule: all of them, those that a selector's terms match, and some by name."""

    everywhere: bool = False
    terms: tuple[NodeSelectorTerm, ...] = ()
    names: frozenset[str] = frozenset()

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        return self.everywhere or name in self.names or any(term.matches(name, labels) for term in self.terms)


# one node's name; a rule; None: some way that this release does not know, so nowhere
Where = str | NodeRule | None


def is_at(where: Where, name: str, labels: Mapping[str, str]) -> bool:
    if isinstance(where, str):
        return where == name
    return where is not None and where.holds(name, labels)


def together(places: Iterable[Where]) -> NodeRule:
    """All nodes that any of some places means."""
    names, rules = set(), []
    for one in dict.fromkeys(places):
        if isinstance(one, str):
            names.add(one)
        elif one is not None:
            rules.append(one)
    terms = dict.fromkeys(term for one in rules for term in one.terms)
    return NodeRule(any(one.everywhere for one in rules), tuple(terms), frozenset(names))


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
    yield node.name
    yield from node.labels.items()
    yield None


def may_be_meant(node: Node, spots: Spots) -> bool:
    return any(spot in spots for spot in spots_of_node(node))


ANYWHERE: Final[Spots] = frozenset({None})
_NOWHERE: Final[Spots] = frozenset()


class Attribute(NamedTuple):
    """An attribute or a capacity of a device: `("gpu.example.com", "index", "int", 3)`."""

    domain: str
    name: str
    type: str  # int, bool, string, version, quantity, lists as "ints" …; "other" where this release knows no such type
    value: object


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Kind:
    """All that a selector can see of a device, as far as some class looks at it."""

    driver: str
    attributes: tuple[Attribute, ...] = ()
    capacity: tuple[Attribute, ...] = ()
    multiple: bool = False  # allowMultipleAllocations: several claims may hold the device at a time
    lacks: frozenset[str] = frozenset()  # names of what was not kept, since there are too many kinds
    known: bool = True  # False: nothing was kept


Counters = tuple[tuple[str, Number], ...]


class DeviceGroup(NamedTuple):
    """Devices of a slice that are one to every decision."""

    kind: Kind
    number: int  # without those that a taint keeps claims away from; where it is 0, the pool has their counters and places
    consumes: tuple[tuple[str, Counters], ...] = ()  # counter set → what each device takes from it
    where: Where = None  # where the slice leaves that to each device


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Contents:
    """What is in a slice: devices, or counters."""

    groups: tuple[DeviceGroup, ...] = ()
    counter_sets: tuple[tuple[str, Counters], ...] = ()
    # all of them by name, where that is asked for, tainted ones too
    devices: tuple[tuple[str, Kind], ...] = ()
    names: tuple[str, ...] = ()  # of its devices, where one may be there twice in their pool


def twice_in(contents: Iterable[Contents]) -> str:
    """A device or a counter set whose name is there twice in the slices of a pool; empty where all names are unique."""
    devices, sets = set[str](), set[str]()
    for one in contents:
        for known, names in ((devices, one.names), (sets, [name for name, _ in one.counter_sets])):
            for name in names:
                if name in known:
                    return name
                known.add(name)
    return ""


class PoolId(NamedTuple):
    driver: str
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    name: str
    pool: PoolId
    generation: int
    total: int  # slices that the pool has in this generation
    where: Where  # any device of it, if each has its place
    contents: Contents
    per_device: bool = False  # where each device is, its group says
    edition: int = 0  # of the names that it was read for: a later one looks at other attributes

    def is_for(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the scheduler looks at it for a node; at counters it always does."""
        return bool(self.contents.counter_sets) or is_at(self.where, name, labels)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: which devices, and as which extended resource."""

    name: str
    selectors: tuple[str, ...] = ()  # CEL expressions, all of which must hold
    resource: str = ""  # spec.extendedResourceName
    created: str = ""  # RFC 3339 in UTC, as the API server writes it: later ones sort behind

    @property
    def resources(self) -> tuple[str, ...]:
        implicit = IMPLICIT_PREFIX + self.name
        return (self.resource, implicit) if self.resource else (implicit,)


def serving(classes: Mapping[str, DeviceClass]) -> dict[str, DeviceClass]:
    """Which class serves an extended resource.

    Of several with one name the younger does, of equally old ones that whose name sorts first (k8s.io/
    dynamic-resource-allocation, extendedresourcecache).
    """
    found: dict[str, DeviceClass] = {}
    for one in sorted(classes.values(), key=lambda one: one.name, reverse=True):
        for resource in one.resources:
            other = found.get(resource)
            if other is None or one.created >= other.created:
                found[resource] = one
    return found
