"""What every object has, and the selectors that choose objects by it."""

from datetime import datetime

import msgspec

Texts = dict[str, str] | None


class In(msgspec.Struct, rename="camel"):
    """A part of an object; what is not named is skipped."""


class OwnerReference(In):
    """What an object belongs to."""

    kind: str = ""
    name: str = ""
    controller: bool = False


class Meta(In):
    """Metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Texts = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def created(self) -> float | None:
        """When it was made, as Unix time."""
        return seconds(self.creation_timestamp)

    @property
    def controller(self) -> OwnerReference | None:
        """The controller that made it, if one did."""
        return next((one for one in self.owner_references or () if one.controller), None)


def seconds(text: str | None) -> float | None:
    """A time as the API server writes it, as Unix time; None where it says none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


class NameOnly(In):
    """An object's name."""

    name: str = ""
    namespace: str = ""


class Named(In):
    """Any object, of which nothing else is known."""

    metadata: NameOnly = msgspec.field(default_factory=NameOnly)


class MatchExpression(In):
    """One expression of a label selector."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(In):
    """Which namespaces."""

    match_labels: Texts = None
    match_expressions: list[MatchExpression] | None = None
