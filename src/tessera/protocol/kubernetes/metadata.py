"""What every object has: its names, its owners, its times; how other objects refer to it and choose it by its labels."""

from datetime import datetime
from typing import Final

import msgspec

from tessera.protocol.kubernetes.objects import MetaIn, Part, decoder

Texts = dict[str, str] | None


class OwnerReference(Part):
    """What an object belongs to."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectReference(Part):
    """The object that an Event is about."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class Metadata(MetaIn):
    """Metadata of any object, as much as any reader needs."""

    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def created(self) -> float | None:
        """When it was created, as Unix time."""
        return seconds(self.creation_timestamp)

    @property
    def controller(self) -> OwnerReference | None:
        """The controller that made it, if one did."""
        return controller_in(self.owner_references)


class ObjectName(Part):
    """An object's name."""

    name: str = ""
    namespace: str = ""


class Named(Part):
    """Any object, of which only its name matters."""

    metadata: ObjectName = msgspec.field(default_factory=ObjectName)


class AnyObject(Part):
    """Any object, of which only its metadata matters."""

    metadata: Metadata


class ObjectList(Part):
    """A list of objects, each unread."""

    items: list[msgspec.Raw] | None = None


class Condition(Part):
    """A condition in the status of a pod or a workload."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class MatchExpression(Part):
    """One expression of a label selector."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelectorIn(Part):
    """Which objects, by their labels."""

    match_labels: Texts = None
    match_expressions: list[MatchExpression] | None = None


def controller_in(owners: list[OwnerReference] | None) -> OwnerReference | None:
    """The owner that is the object's controller."""
    return next((one for one in owners or () if one.controller), None)


def seconds(text: str | None) -> float | None:
    """A time as the API server writes it, as Unix time; None where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


decode_named: Final = decoder(Named)
decode_any: Final = decoder(AnyObject)
