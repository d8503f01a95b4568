"""What every object has, and how any object is decoded.

Only the fields that some reader needs are decoded; msgspec skips the rest without building it.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import NOTHING, Amounts
from tessera.core.kubernetes.quantity import InvalidQuantity, Quantity
from tessera.core.kubernetes.scheduling import Requirement

T = TypeVar("T")
Decode = Callable[[bytes | msgspec.Raw], T]
Texts = dict[str, str] | None
ABSENT: Final = msgspec.Raw(b"")  # a raw field that is not there
AmountsIn = dict[str, str | int | float] | None
Keep = Callable[[str], bool]  # whether a resource matters

_UNREADABLE: Final = (RecursionError, msgspec.MsgspecError, UnicodeDecodeError)


class InvalidObject(InvalidInput):
    """An object that is not what Kubernetes would accept."""


class UndecodedObject(InvalidObject):
    """An object whose fields cannot be decoded. The message does not say which object it is."""


class Part(msgspec.Struct, gc=False, rename="camel"):
    """An object, or a part of one; fields that are not named here are skipped."""


class OwnerReference(Part):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class CommonMetadata(Part):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Texts = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def created(self) -> float | None:
        """When it was created, as Unix time."""
        return seconds(self.creation_timestamp)

    @property
    def controller(self) -> OwnerReference | None:
        return next((one for one in self.owner_references or () if one.controller), None)


class Metadata(CommonMetadata):
    annotations: Texts = None
    resource_version: str = ""


class AnyObject(Part):
    """Any object, of which only its metadata matters."""

    metadata: Metadata


class ObjectReference(Part):
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class Named(Part):
    """Any object, of which only its name matters."""

    metadata: ObjectReference = msgspec.field(default_factory=ObjectReference)


class ListMetadata(Part):
    remaining_item_count: int = 0  # beyond this page; 0 as well where the API server does not count them


class ObjectList(Part):
    """A list of objects, each unread."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] | None = None


class NameOnly(Part):
    name: str = ""


class Expression(Part):
    """An expression in CEL."""

    expression: str = ""


class Condition(Part):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None

    @property
    def since(self) -> float | None:
        """Since when it is so, as Unix time."""
        return seconds(self.last_transition_time)

    @property
    def is_refused(self) -> bool:
        """Whether the scheduler has looked at the pod and found no place; the API server itself says of gates that there are some."""
        return (self.type, self.status) == ("PodScheduled", "False") and self.reason != "SchedulingGated"

    @property
    def is_unschedulable(self) -> bool:
        """Whether it is the scheduler's word that no node takes the pod."""
        return (self.type, self.status, self.reason) == ("PodScheduled", "False", "Unschedulable")


class LabelSelectorIn(Part):
    match_labels: Texts = None
    match_expressions: list[Requirement] | None = None


class ResourcesIn(Part):
    requests: AmountsIn = None
    limits: AmountsIn = None


def seconds(text: str | None) -> float | None:
    """A time as the API server writes it, as Unix time; None where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def moment(at: float) -> str:
    """A Unix time as the API server writes it, to the second: `seconds` reads it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def decoder(type_: type[T]) -> Decode[T]:
    """A decoder whose errors are `InvalidObject`s. A field that is null counts as absent, as it does for the API server."""
    decode = msgspec.json.Decoder(type_).decode

    def checked(data: bytes | msgspec.Raw) -> T:
        try:
            return decode(data)
        except _UNREADABLE as error:
            return _decoded_without_nulls(decode, data, error)

    return checked


def decoded_once(decode: Decode[T]) -> Decode[T]:
    """The same, for what several consumers of one event decode in turn: the object that was decoded last is not decoded again.

    They share the object, so none may change it.
    """
    last: tuple[bytes | msgspec.Raw, T] | None = None

    def decode_again(data: bytes | msgspec.Raw) -> T:
        nonlocal last
        if (known := last) is not None and known[0] is data:
            return known[1]
        decoded = decode(data)
        last = data, decoded
        return decoded

    return decode_again


def reader(type_: type[T], default: T) -> Callable[[msgspec.Raw, str], T]:
    """A decoder of a raw field, whose errors begin with its place; the default is for a field that is absent or null."""
    decode = msgspec.json.Decoder(type_).decode

    def read(raw: msgspec.Raw, where: str) -> T:
        if raw is ABSENT:
            return default
        try:
            return decode(raw)
        except _UNREADABLE as error:
            if not present(raw):
                return default
            return _decoded_without_nulls(decode, raw, error, where)

    return read


def _decoded_without_nulls(
    decode: Decode[T], data: bytes | msgspec.Raw, error: Exception, where: str = ""
) -> T:
    """What could not be decoded for its nulls: no API server writes them, people do."""
    if isinstance(error, msgspec.ValidationError) and "got `null`" in str(error):
        try:
            return decode(msgspec.json.encode(_without_nulls(msgspec.json.decode(data))))
        except _UNREADABLE as other:
            error = other
    text = _why_unreadable(error)
    if not where:
        raise UndecodedObject(text) from error
    head, colon, _ = text.partition(":")
    begins_with_path = bool(colon) and " " not in head
    text = where + ("" if text.startswith("[") else "." if begins_with_path else ": ") + text
    raise InvalidObject(text) from error


def _without_nulls(value: object, depth: int = 8) -> object:
    """A document without its fields that are null, as deep as structs read; every object has metadata."""
    if isinstance(value, dict) and depth:
        return {
            key: _without_nulls(one, depth - 1)
            for key, one in value.items()
            if one is not None or key == "metadata"
        }
    if isinstance(value, list) and depth:
        return [_without_nulls(one, depth - 1) for one in value]
    return value


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, msgspec.MsgspecError):
        return error_text(error)
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text (byte {error.start})"
    return "nested too deeply"


def error_text(error: msgspec.MsgspecError) -> str:
    """A decoder's error with the place in front: `spec.nodeName: expected str, got int`."""
    what, _, where = str(error).partition(" - at `")
    place = where.removesuffix("`").removeprefix("$").lstrip(".")
    what = what[:1].lower() + what[1:].replace("`", "")
    return f"{place}: {what}" if place else what


def present(raw: msgspec.Raw) -> bool:
    return raw is not ABSENT and bytes(raw) not in (b"", b"null")


def amounts_of(amounts: AmountsIn, where: str, keep: Keep | None = None) -> Amounts:
    """A map of quantities, each parsed; only those of resources to keep (all by default)."""
    if not amounts:
        return NOTHING
    parsed = {}
    for resource, text in amounts.items():
        try:
            if keep is None or keep(resource):
                parsed[resource] = Quantity.parse(text)
        except InvalidQuantity as error:
            raise InvalidObject(f"{where}[{resource}]: {error}") from error
    return parsed


decode_list: Final = decoder(ObjectList)
decode_named: Final = decoder(Named)
decode_any: Final = decoder(AnyObject)
