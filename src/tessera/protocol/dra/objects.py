"""ResourceSlices and DeviceClasses as JSON, read into core values.

Of a device only what some class's expressions look at is kept, so that devices which differ in a UUID alone are of one
kind; nodes with the same devices share what is kept of them.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from tessera.core.dra.places import Place, Where, together
from tessera.core.dra.slices import Attribute, Contents, Counters, DeviceClass, Group, Kind, PoolId, Slice
from tessera.core.kubernetes.quantity import InvalidQuantity, Number, Quantity
from tessera.protocol.dra.kinds import Kinds
from tessera.protocol.dra.names import Names
from tessera.protocol.kubernetes.objects import InvalidObject, decoder
from tessera.protocol.kubernetes.pod import NodeSelectorIn, term_of

# Effects of a taint that keep claims without tolerations away, and those that extended resources become have none
_KEEP_AWAY: Final = ("NoSchedule", "NoExecute")


class _AttributeIn(msgspec.Struct, gc=False, rename={"number": "int", "flag": "bool", "text": "string"}):
    number: int | None = None
    flag: bool | None = None
    text: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    def value(self) -> tuple[str, object]:
        """Its type and value; what is newer is of no type that is known here."""
        if self.text is not None:
            return "string", sys.intern(self.text)
        if self.number is not None:
            return "int", self.number
        if self.flag is not None:
            return "bool", self.flag
        if self.version is not None:
            return "version", self.version
        lists = (
            ("ints", self.ints),
            ("bools", self.bools),
            ("strings", self.strings),
            ("versions", self.versions),
        )
        return next((one for one in lists if one[1] is not None), ("other", None))


class _ValueIn(msgspec.Struct, gc=False):
    value: str | int | float = 0


class _ConsumesIn(msgspec.Struct, gc=False):
    counterSet: str = ""  # noqa: N815 # as in the API
    counters: dict[str, _ValueIn] | None = None


class _TaintIn(msgspec.Struct, gc=False):
    effect: str = ""


class _DeviceIn(msgspec.Struct, gc=False):
    name: str = ""
    attributes: dict[str, _AttributeIn] | None = None
    capacity: dict[str, _ValueIn] | None = None
    consumesCounters: list[_ConsumesIn] | None = None  # noqa: N815
    taints: list[_TaintIn] | None = None
    nodeName: str | None = None  # noqa: N815
    nodeSelector: NodeSelectorIn | None = None  # noqa: N815
    allNodes: bool | None = None  # noqa: N815
    allowMultipleAllocations: bool | None = None  # noqa: N815


class _CounterSetIn(msgspec.Struct, gc=False):
    name: str = ""
    counters: dict[str, _ValueIn] | None = None


class _PoolIn(msgspec.Struct, gc=False):
    name: str = ""
    generation: int = 0
    resourceSliceCount: int = 0  # noqa: N815


class _SliceSpecIn(msgspec.Struct, gc=False):
    driver: str
    pool: _PoolIn = msgspec.field(default_factory=_PoolIn)
    nodeName: str | None = None  # noqa: N815
    nodeSelector: NodeSelectorIn | None = None  # noqa: N815
    allNodes: bool | None = None  # noqa: N815
    perDeviceNodeSelection: bool | None = None  # noqa: N815
    devices: list[_DeviceIn] | None = None
    sharedCounters: list[_CounterSetIn] | None = None  # noqa: N815


class _MetaIn(msgspec.Struct, gc=False):
    name: str = ""
    creationTimestamp: str | None = None  # noqa: N815


class _SliceIn(msgspec.Struct, gc=False):
    metadata: _MetaIn
    spec: _SliceSpecIn


class _CelIn(msgspec.Struct, gc=False):
    expression: str = ""


class _SelectorIn(msgspec.Struct, gc=False):
    cel: _CelIn | None = None


class _ClassSpecIn(msgspec.Struct, gc=False):
    selectors: list[_SelectorIn] | None = None
    extendedResourceName: str | None = None  # noqa: N815


class _ClassIn(msgspec.Struct, gc=False):
    metadata: _MetaIn
    spec: _ClassSpecIn | None = None


_NO_NAMES: Final = Names()
_decode_slice: Final = decoder(_SliceIn)
_decode_class: Final = decoder(_ClassIn)


def read_class(raw: bytes) -> DeviceClass:
    """A DeviceClass. A selector of a kind that is newer than this release is an empty expression, which no one can read."""
    one = _decode_class(raw)
    spec = one.spec or _ClassSpecIn()
    return DeviceClass(
        name=one.metadata.name,
        selectors=tuple(each.cel.expression if each.cel else "" for each in spec.selectors or ()),
        resource=sys.intern(spec.extendedResourceName or ""),
        created=one.metadata.creationTimestamp or "",
    )


_Alike = tuple[Kind, tuple[tuple[str, Counters], ...], Where]  # all that tells devices of a slice apart


class SliceReader:
    """Reads ResourceSlices; what many of them have alike is one object."""

    def __init__(self, *, with_devices: bool = False) -> None:
        """Read slices; `with_devices`, keep what each device is by its name."""
        self._with_devices = with_devices
        self._names: Names | None = None
        self.edition = 0  # counts the changes of the names
        self._kinds: Final = Kinds()
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
        """Whether there were more kinds than are told apart."""
        return self._kinds.is_crowded

    def read(self, raw: bytes) -> Slice:
        """A ResourceSlice."""
        one = _decode_slice(raw)
        spec = one.spec
        per_device = bool(spec.perDeviceNodeSelection)
        try:
            contents = self._contents_of(spec)
        except InvalidQuantity as error:
            raise InvalidObject(f"resource slice {one.metadata.name}: {error}") from error
        return Slice(
            name=one.metadata.name,
            pool=PoolId(sys.intern(spec.driver), sys.intern(spec.pool.name)),
            generation=spec.pool.generation,
            total=spec.pool.resourceSliceCount,
            where=together(one.where for one in contents.groups) if per_device else _where(spec),
            contents=contents,
            per_device=per_device,
            edition=self.edition,
        )

    def _contents_of(self, spec: _SliceSpecIn) -> Contents:
        numbers: Counter[_Alike] = Counter()
        for alike, is_free in self._devices(spec):
            numbers[alike] += is_free
        groups = tuple(
            Group(kind, number, consumes, where) for (kind, consumes, where), number in numbers.items()
        )
        sets = tuple((sys.intern(one.name), _counters(one.counters)) for one in spec.sharedCounters or ())
        devices = (
            tuple((sys.intern(one.name), self._kind(spec.driver, one)) for one in spec.devices or ())
            if self._with_devices
            else ()
        )
        names = tuple(sys.intern(one.name) for one in spec.devices or ())
        if spec.pool.resourceSliceCount <= 1 and len(set(names)) == len(names):
            names = ()  # in no other slice is there one of the same name: that keeps nodes alike, and memory small
        key = groups, sets, devices, names
        known = self._contents.get(key)
        if known is None:
            known = self._contents[key] = Contents(*key)
        return known

    def _devices(self, spec: _SliceSpecIn) -> Iterator[tuple[_Alike, bool]]:
        """The devices, and whether a claim can have them; others matter to what a pool is, where they say a place or counters."""
        for one in spec.devices or ():
            is_free = not any(taint.effect in _KEEP_AWAY for taint in one.taints or ())
            if not (is_free or spec.perDeviceNodeSelection or one.consumesCounters):
                continue
            consumes = tuple(
                (sys.intern(each.counterSet), _counters(each.counters)) for each in one.consumesCounters or ()
            )
            where = _where(one) if spec.perDeviceNodeSelection else None
            yield (self._kind(spec.driver, one), consumes, where), is_free

    def _kind(self, driver: str, one: _DeviceIn) -> Kind:
        include = (self.names or _NO_NAMES).include
        multiple = bool(one.allowMultipleAllocations)
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


def _where(given: _SliceSpecIn | _DeviceIn) -> Where:
    if given.nodeName:
        return sys.intern(given.nodeName)
    if given.allNodes:
        return Place(everywhere=True)
    if given.nodeSelector is not None:
        return Place(terms=tuple(map(term_of, given.nodeSelector.nodeSelectorTerms or ())))
    return None


def _qualified(name: str, driver: str) -> tuple[str, str]:
    """An attribute's domain and name; without a domain the driver's own is meant."""
    domain, slash, identifier = name.partition("/")
    return (sys.intern(domain), sys.intern(identifier)) if slash else (sys.intern(driver), sys.intern(name))


def _counters(given: dict[str, _ValueIn] | None) -> Counters:
    return tuple(sorted((sys.intern(name), _number(one.value)) for name, one in (given or {}).items()))


def _number(text: str | float) -> Number:
    return Quantity.parse(text).number
