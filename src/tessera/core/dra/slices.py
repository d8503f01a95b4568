"""ResourceSlices and DeviceClasses, as little of them as tells what a node offers.

Thousands of nodes have the same few kinds of devices. So a device is a count of its kind here, and nodes that have the
same share the same `Contents`: kinds and contents are made once by what reads the slices, and compared by identity.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tessera.core.dra.places import Where, is_at
from tessera.core.kubernetes.quantity import Number

# Every class has this name for its devices, beside the one that its spec may give it (resource/v1,
# ResourceDeviceClassPrefix).
IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

API_VERSION: Final = "resource.k8s.io/v1"
DRIVER: Final = "gpu.tessera.dev"  # Tessera's own
LEAVING: Final = f"{DRIVER}/leaving"  # taint of a device that is in use and no longer wanted


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


class Group(NamedTuple):
    """Devices of a slice that are one to every decision."""

    kind: Kind
    number: int  # without those that a taint keeps claims away from; where it is 0, the pool has their counters and places
    consumes: tuple[tuple[str, Counters], ...] = ()  # counter set → what each device takes from it
    where: Where = None  # where the slice leaves that to each device


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Contents:
    """What is in a slice: devices, or counters."""

    groups: tuple[Group, ...] = ()
    counter_sets: tuple[tuple[str, Counters], ...] = ()
    devices: tuple[
        tuple[str, Kind], ...
    ] = ()  # all of them by name, where that is asked for, tainted ones too
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
    """What is consistent together."""

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
        """The extended resources that it may serve."""
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
