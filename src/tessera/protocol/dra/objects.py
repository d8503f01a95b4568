"""ResourceSlices, DeviceClasses and ResourceClaims, read into core values; and ResourceClaimTemplates, written.

Of a device only what some class's expressions look at is kept, so that devices which differ in a UUID alone are of one
kind; nodes with the same devices share what is kept of them.

Kinds of devices, each kept once, and not too many of them.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from tessera.core.dra.slices import (
    Attribute,
    Contents,
    Counters,
    DeviceClass,
    DeviceGroup,
    Kind,
    NodeRule,
    PoolId,
    Slice,
    Where,
    together,
)
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.requests.alternatives import Alternative, Alternatives, request_name
from tessera.protocol.dra.names import Names
from tessera.protocol.kubernetes.dra import (
    EXACT_COUNT,
    ClaimIn,
    CounterIn,
    DeviceClassIn,
    DeviceIn,
    SliceIn,
    SliceSpec,
    decode_claim,
    decode_class,
    decode_slice,
)

# Kinds of devices that are distinguished. A cluster has dozens; thousands come from a class that looks at what each device
# has for itself, such as its UUID, and each costs an evaluation of every class (some 50 µs). Beyond it what varies most is
# no longer kept: classes that look at that count such devices as selected, all others select as before.
MOST_KINDS: Final = 4096


class KindCache:
    def __init__(self) -> None:
        self._kinds: WeakValueDictionary[object, Kind] = WeakValueDictionary()
        self._varied: frozenset[str] = frozenset()  # names of what is not kept, since it makes too many kinds

    @property
    def is_crowded(self) -> bool:
        return bool(self._varied)

    def keep_all(self) -> None:
        self._varied = frozenset()

    def kept(self, kind: Kind) -> Kind:
        """The one object for all that are like it."""
        if self._varied and kind.known:
            kind = _without(kind, self._varied)
        known = self._kinds.get(_key(kind))
        if known is not None:
            return known
        if kind.known and len(self._kinds) >= MOST_KINDS:
            if not self._varied:
                self._varied = _most_varied(list(self._kinds.values()))
                return self.kept(kind)
            if len(self._kinds) >= 2 * MOST_KINDS:
                return self.kept(Kind(kind.driver, multiple=kind.multiple, known=False))
        self._kinds[_key(kind)] = kind
        return kind


def _key(kind: Kind) -> object:
    return kind.driver, kind.attributes, kind.capacity, kind.multiple, kind.lacks, kind.known


def _without(kind: Kind, names: frozenset[str]) -> Kind:
    """A kind of which some attributes and capacities are not kept."""
    lacks = names.intersection(one.name for one in (*kind.attributes, *kind.capacity))
    if not lacks:
        return kind
    attributes, capacity = (
        tuple(one for one in given if one.name not in lacks) for given in (kind.attributes, kind.capacity)
    )
    return Kind(kind.driver, attributes, capacity, kind.multiple, lacks)


def _most_varied(kinds: list[Kind]) -> frozenset[str]:
    """What makes kinds many: without it, at most half as many kinds are left."""
    values: dict[str, set[Attribute]] = {}
    for kind in kinds:
        for one in (*kind.attributes, *kind.capacity):
            values.setdefault(one.name, set()).add(one)
    found: frozenset[str] = frozenset()
    for name in sorted(values, key=lambda name: -len(values[name])):
        found |= {name}
        if 2 * len({_key(_without(kind, found)) for kind in kinds}) <= MOST_KINDS:
            break
    return found


# Effects of a taint that exclude claims without tolerations, and those that extended resources become have none
_EXCLUDING: Final = ("NoSchedule", "NoExecute")
_NO_NAMES: Final = Names()


def class_of(one: DeviceClassIn) -> DeviceClass:
    """A DeviceClass. A selector of a kind that is newer than this release is an empty expression, which no one can read."""
    return DeviceClass(
        name=one.metadata.name,
        selectors=tuple(each.cel.expression for each in one.spec.selectors or ()),
        resource=sys.intern(one.spec.extended_resource_name),
        created=one.metadata.creation_timestamp or "",
    )


def read_class(raw: bytes) -> DeviceClass:
    return class_of(decode_class(raw))


_Alike = tuple[Kind, tuple[tuple[str, Counters], ...], Where]  # all that distinguishes devices of a slice


class SliceReader:
    """Reads ResourceSlices; what many of them have alike is one object."""

    def __init__(self, *, with_devices: bool = False) -> None:
        """Read slices; `with_devices`, keep what each device is by its name."""
        self._with_devices = with_devices
        self._names: Names | None = None
        self.edition = 0  # counts the changes of the names
        self._kinds: Final = KindCache()
        self._contents: WeakValueDictionary[object, Contents] = WeakValueDictionary()

    @property
    def names(self) -> Names | None:
        """The attributes and capacities that matter, None before any class was there; what was read before knows no others."""
        return self._names

    @names.setter
    def names(self, names: Names) -> None:
        self._names = names
        self.edition += 1
        self._kinds.keep_all()

    @property
    def is_crowded(self) -> bool:
        return self._kinds.is_crowded

    def read(self, raw: bytes) -> Slice:
        return self.slice_of(decode_slice(raw))

    def slice_of(self, one: SliceIn) -> Slice:
        """A ResourceSlice, with what the classes look at."""
        spec = one.spec
        per_device = bool(spec.per_device_node_selection)
        contents = self._contents_of(spec)
        return Slice(
            name=one.metadata.name,
            pool=PoolId(sys.intern(spec.driver), sys.intern(spec.pool.name)),
            generation=spec.pool.generation,
            total=spec.pool.resource_slice_count,
            where=together(one.where for one in contents.groups) if per_device else _where(spec),
            contents=contents,
            per_device=per_device,
            edition=self.edition,
        )

    def _contents_of(self, spec: SliceSpec) -> Contents:
        numbers: Counter[_Alike] = Counter()
        for alike, is_free in self._devices(spec):
            numbers[alike] += is_free
        groups = tuple(
            DeviceGroup(kind, number, consumes, where) for (kind, consumes, where), number in numbers.items()
        )
        sets = tuple((sys.intern(one.name), _counters(one.counters)) for one in spec.shared_counters or ())
        devices = (
            tuple((sys.intern(one.name), self._kind(spec.driver, one)) for one in spec.devices or ())
            if self._with_devices
            else ()
        )
        names = tuple(sys.intern(one.name) for one in spec.devices or ())
        if spec.pool.resource_slice_count <= 1 and len(set(names)) == len(names):
            names = ()  # in no other slice is there one of the same name: that keeps nodes alike, and memory small
        key = groups, sets, devices, names
        known = self._contents.get(key)
        if known is None:
            known = self._contents[key] = Contents(*key)
        return known

    def _devices(self, spec: SliceSpec) -> Iterator[tuple[_Alike, bool]]:
        """The devices, and whether a claim can have them; others matter to what a pool is, where they say a place or counters."""
        for one in spec.devices or ():
            is_free = not any(taint.effect in _EXCLUDING for taint in one.taints or ())
            if not (is_free or spec.per_device_node_selection or one.consumes_counters):
                continue
            consumes = tuple(
                (sys.intern(each.counter_set), _counters(each.counters))
                for each in one.consumes_counters or ()
            )
            where = _where(one) if spec.per_device_node_selection else None
            yield (self._kind(spec.driver, one), consumes, where), is_free

    def _kind(self, driver: str, one: DeviceIn) -> Kind:
        include = (self.names or _NO_NAMES).include
        multiple = bool(one.allow_multiple_allocations)
        attributes = [
            Attribute(*_qualified(name, driver), *given.value())
            for name, given in (one.attributes or {}).items()
            if include(name)
        ]
        capacity = [
            Attribute(*_qualified(name, driver), "quantity", _number(given.value))
            for name, given in (one.capacity or {}).items()
            if include(name)
        ]
        return self._kinds.kept(
            Kind(sys.intern(driver), _in_order(attributes), _in_order(capacity), multiple)
        )


def _in_order(attributes: list[Attribute]) -> tuple[Attribute, ...]:
    return tuple(sorted(attributes, key=lambda one: one[:3]))


def _where(given: SliceSpec | DeviceIn) -> Where:
    if given.node_name:
        return sys.intern(given.node_name)
    if given.all_nodes:
        return NodeRule(everywhere=True)
    if given.node_selector is not None:
        return NodeRule(terms=given.node_selector.terms())
    return None


def _qualified(name: str, driver: str) -> tuple[str, str]:
    """An attribute's domain and name; without a domain the driver's own is meant."""
    domain, slash, identifier = name.partition("/")
    return (sys.intern(domain), sys.intern(identifier)) if slash else (sys.intern(driver), sys.intern(name))


def _counters(given: dict[str, CounterIn] | None) -> Counters:
    return tuple(sorted((sys.intern(name), _number(one.value)) for name, one in (given or {}).items()))


def _number(text: str | float) -> Number:
    return Quantity.parse(text).number


class Claim(NamedTuple):
    """A claim, and the devices that it keeps others from: by pool and name."""

    namespace: str
    name: str
    holds: tuple[tuple[PoolId, str], ...] = ()
    pods: tuple[str, ...] = ()  # by name, of its namespace: those that it is reserved for

    @property
    def holder(self) -> str:
        """The holder of its devices, as the dashboard names it: the pod, the first of several, or the claim alone."""
        return f"{self.namespace}/{self.pods[0]}" if self.pods else f"claim {self.namespace}/{self.name}"


def read_claim(raw: bytes) -> Claim:
    return claim_of(decode_claim(raw))


def claim_of(one: ClaimIn) -> Claim:
    return Claim(
        one.metadata.namespace,
        one.metadata.name,
        tuple(
            (PoolId(sys.intern(each.driver), sys.intern(each.pool)), sys.intern(each.device))
            for each in one.status.results
            if not each.admin_access
        ),
        tuple(each.name for each in one.status.reserved_for or () if each.resource == "pods"),
    )


def template_spec(alternatives: Alternatives) -> dict[str, Any]:
    """The `spec` of the template that stands for these alternatives."""
    requests = [
        {
            "name": request_name(number),
            "firstAvailable": [_alternative(one, request.count) for one in request.alternatives],
        }
        for number, request in enumerate(alternatives.requests)
    ]
    return {"spec": {"devices": {"requests": requests}}}


def _alternative(one: Alternative, count: int) -> dict[str, Any]:
    # all that the API server would fill in is written out: what is read again can be compared
    document: dict[str, Any] = {
        "name": one.name,
        "deviceClassName": one.device_class,
        "allocationMode": EXACT_COUNT,
        "count": count,
    }
    if one.expression:
        document["selectors"] = [{"cel": {"expression": one.expression}}]
    return document
