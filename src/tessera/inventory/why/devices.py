"""Devices by DRA: the claims of a pod that waits, their classes, and whether any ResourceSlice has such devices.

A class's expression is only tried where it is made of plain comparisons, as those of Tessera's chart are. Whether a device is free is
the scheduler's to know: its words are told.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tessera.core.text import first_of
from tessera.inventory.why.wire import In, Meta
from tessera.protocol.kubernetes.objects import decoder

_MOST_NAMED: Final = 3
_SAYS_RESOURCE: Final = (
    "gpu.tessera.dev/resource"  # what a device plugin would call it: our driver's attribute
)
_NOT_PLAIN: Final = re.compile(r"[|?()]")  # more than comparisons joined by &&
_DRIVER: Final = re.compile(r"""device\.driver\s*==\s*(['"])(?P<value>[^'"]*)\1""")
_ATTRIBUTE: Final = re.compile(
    r"""device\.attributes\[(['"])(?P<domain>[^'"]*)\1\]\.(?P<name>\w+)\s*==\s*(['"])(?P<value>[^'"]*)\4"""
)


# On the wire


class _Cel(In):
    expression: str = ""


class _Selector(In):
    cel: _Cel = msgspec.field(default_factory=_Cel)


class _Exactly(In):
    device_class_name: str = ""
    selectors: list[_Selector] | None = None


class _Request(In):
    name: str = ""
    exactly: _Exactly | None = None
    first_available: list[_Exactly] | None = None


class _Requests(In):
    requests: list[_Request] | None = None


class _ClaimSpec(In):
    devices: _Requests = msgspec.field(default_factory=_Requests)


class _ClaimStatus(In):
    allocation: msgspec.Raw | None = None


class _Claim(In):
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)


class _ClassSpec(In):
    selectors: list[_Selector] | None = None
    extended_resource_name: str = ""


class _Class(In):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)


class _Attribute(In):
    string: str | None = None


class _Device(In):
    name: str = ""
    attributes: dict[str, _Attribute] | None = None


class _SliceSpec(In):
    driver: str = ""
    devices: list[_Device] | None = None


class _Slice(In):
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


_decode_claim: Final = decoder(_Claim)
_decode_class: Final = decoder(_Class)
_decode_slice: Final = decoder(_Slice)


# As the diagnosis sees it


@dataclass(frozen=True, slots=True)
class Wanted:
    """A class of which a device would do, and the expressions that must hold besides."""

    device_class: str
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """A claim of the pod: what it asks for, request by request, each with what would do."""

    name: str
    there: bool = True
    allocated: bool = False
    requests: Mapping[str, tuple[Wanted, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A class: the expressions that all hold for its devices, and the extended resource that it stands for."""

    name: str
    expressions: tuple[str, ...] = ()
    stands_for: str = ""


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device of a slice; its attributes by their full names, texts alone."""

    driver: str
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SeenDevices:
    """What DRA has for a pod; what could not be read is None."""

    claims: tuple[SeenClaim, ...] = ()
    classes: Mapping[str, DeviceClass] | None = None
    offered: tuple[OfferedDevice, ...] | None = None


def claim_of(name: str, raw: bytes) -> SeenClaim:
    """A claim as the API server has it."""
    found = _decode_claim(raw)
    requests = {}
    for one in found.spec.devices.requests or ():
        wanted = [one.exactly] if one.exactly else one.first_available or []
        requests[one.name] = tuple(
            Wanted(each.device_class_name, _expressions(each.selectors)) for each in wanted
        )
    return SeenClaim(name, allocated=found.status.allocation is not None, requests=requests)


def class_of(raw: bytes) -> DeviceClass:
    """A class as the API server has it."""
    found = _decode_class(raw)
    return DeviceClass(
        found.metadata.name, _expressions(found.spec.selectors), found.spec.extended_resource_name
    )


def _expressions(selectors: Sequence[_Selector] | None) -> tuple[str, ...]:
    return tuple(one.cel.expression for one in selectors or ())


def offered_of(raw: bytes) -> list[OfferedDevice]:
    """The devices of a slice."""
    spec = _decode_slice(raw).spec
    return [
        OfferedDevice(
            spec.driver,
            {
                name if "/" in name else f"{spec.driver}/{name}": value.string
                for name, value in (one.attributes or {}).items()
                if value.string is not None
            },
        )
        for one in spec.devices or ()
    ]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no scheduler can find devices for a pod, and what would help."""

    cause: str
    answer: str
    mended: str
    command: str


def obstacle(seen: SeenDevices) -> Obstacle | None:
    """The first claim that nothing can be allocated for, whatever is free."""
    for claim in seen.claims:
        if not claim.there:
            answer = f"its resource claim {claim.name} is not there"
            look = "kubectl get resourceclaims,resourceclaimtemplates"
            return Obstacle("claim-missing", answer, f"the claim {claim.name} is made", look)
        for request, wanted in claim.requests.items() if not claim.allocated else ():
            where = f"claim {claim.name}, request {request}"
            for one in wanted:
                if seen.classes is not None and one.device_class not in seen.classes:
                    there = first_of(sorted(seen.classes), _MOST_NAMED) or "there is none"
                    answer = f"device class {one.device_class} is not there ({where})"
                    mended = f"the class is made, or the claim names another one ({there})"
                    return Obstacle("class-missing", answer, mended, "kubectl get deviceclasses")
            if wanted and all(_has_none(seen, one) for one in wanted):
                names = first_of([one.device_class for one in wanted], _MOST_NAMED)
                answer = f"no ResourceSlice has a device that would do, of class {names} ({where})"
                mended = "the DRA driver of a node offers such a device"
                return Obstacle("no-devices", answer, mended, "kubectl get resourceslices")
    return None


def standing_for(seen: SeenDevices, resource: str) -> str:
    """What DRA has to do with an extended resource that no device plugin offers; empty where nothing."""
    name = next((one.name for one in (seen.classes or {}).values() if one.stands_for == resource), "")
    if name and _has_none(seen, Wanted(name)):
        return f"no ResourceSlice has a device of class {name}, which stands for it"
    if name:
        return f"device class {name} stands for it, of whose devices the scheduler found none for this pod"
    offered = seen.classes is not None and any(
        one.attributes.get(_SAYS_RESOURCE) == resource for one in seen.offered or ()
    )
    if offered:
        return f"ResourceSlices have such devices, but no device class has extendedResourceName: {resource}"
    return ""


def _has_none(seen: SeenDevices, wanted: Wanted) -> bool:
    """Whether surely no slice has such a device."""
    if seen.classes is None or seen.offered is None or wanted.device_class not in seen.classes:
        return False
    expressions = (*seen.classes[wanted.device_class].expressions, *wanted.expressions)
    conditions = [
        part.strip() for one in expressions if not _NOT_PLAIN.search(one) for part in one.split("&&")
    ]
    return not any(all(_may_hold(one, device) for one in conditions) for device in seen.offered)


def _may_hold(condition: str, device: OfferedDevice) -> bool:
    if found := _DRIVER.fullmatch(condition):
        return device.driver == found["value"]
    if found := _ATTRIBUTE.fullmatch(condition):
        return device.attributes.get(f"{found['domain']}/{found['name']}") == found["value"]
    return True
