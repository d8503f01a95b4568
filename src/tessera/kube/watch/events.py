"""The lines of a watch, read: each is an event, and an event of type ERROR is an error."""

from typing import Final

import msgspec

from tessera.kube.errors import NOT_JSON, BadResponse, error_of
from tessera.kube.watch.resource import Key

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class _Metadata(msgspec.Struct, frozen=True, gc=False, rename={"version": "resourceVersion"}):
    name: str = ""
    namespace: str = ""
    version: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata = _Metadata()


class _Line(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_line: Final = msgspec.json.Decoder(_Line).decode
_object: Final = msgspec.json.Decoder(_Object).decode


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """ADDED, MODIFIED, DELETED or BOOKMARK, and the object that it speaks of."""

    type: str
    raw: bytes
    metadata: _Metadata

    @property
    def key(self) -> Key:
        """The object's name."""
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def ends_list(self) -> bool:
        """Whether a streamed list is complete with this one."""
        return (self.metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"


def read_event(line: bytes) -> WatchEvent:
    """The event of a line; `ApiError` for one of type ERROR, `BadResponse` for what is no event."""
    try:
        found = _line(line)
        raw = bytes(found.object)
        if found.type == "ERROR":
            raise error_of(500, raw)
        return WatchEvent(found.type, raw, _object(raw).metadata)
    except NOT_JSON as error:
        raise BadResponse(f"a watch line that is not an event: {error}") from error


def is_before(version: str, other: str) -> bool:
    """Whether a version is older; versions are numbers on every server there is, but need not be."""
    return version.isdigit() and other.isdigit() and int(version) < int(other)
