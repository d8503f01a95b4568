"""What is followed, and what a watch says of it."""

from dataclasses import dataclass, replace
from sys import intern
from typing import Final, NamedTuple

import msgspec

from tessera.core.dra.slices import API_VERSION
from tessera.kube.errors import NOT_JSON, BadResponse, error_of
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.objects import decode_named, decoded_once

_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class Key(NamedTuple):
    """An object's name; the namespace is empty for what has none."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Resource:
    """A collection of the API server, or the part of it that selectors choose."""

    name: str  # for people, and in metrics
    path: str
    fields: str = ""  # a field selector
    labels: str = ""  # a label selector
    # its API may be switched off (404), or not ours to read (403): then the collection counts as empty
    optional: bool = False
    kind: str = ""  # of its objects, as files name it

    @property
    def query(self) -> dict[str, str]:
        """What selects, as parameters of a list or a watch."""
        selectors = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: text for name, text in selectors.items() if text}

    @property
    def collection(self) -> "Resource":
        """What is listed and watched, whoever asks for it and whether they can be without it."""
        return Resource("", self.path, self.fields, self.labels)

    def named(self, name: str) -> "Resource":
        """The one object of that name."""
        return replace(self, fields=f"metadata.name={name}")


NODES: Final = Resource("nodes", path_of("v1", "nodes"), kind="Node")
NAMESPACES: Final = Resource("namespaces", path_of("v1", "namespaces"), kind="Namespace")
# a webhook without the right to read them goes on without them
RESOURCE_QUOTAS: Final = Resource(
    "resourcequotas", path_of("v1", "resourcequotas"), optional=True, kind="ResourceQuota"
)
# what DRA offers; a cluster may be without it (before 1.34 by default), or we without the right to read it
DEVICE_CLASSES: Final = Resource(
    "deviceclasses", path_of(API_VERSION, "deviceclasses"), optional=True, kind="DeviceClass"
)
RESOURCE_SLICES: Final = Resource(
    "resourceslices", path_of(API_VERSION, "resourceslices"), optional=True, kind="ResourceSlice"
)
RESOURCE_CLAIMS: Final = Resource(
    "resourceclaims", path_of(API_VERSION, "resourceclaims"), optional=True, kind="ResourceClaim"
)
# what has ended holds nothing, as for the scheduler and `kubectl describe node`; clusters keep thousands of such pods
UNFINISHED_PODS: Final = Resource(
    "pods", path_of("v1", "pods"), fields="status.phase!=Succeeded,status.phase!=Failed", kind="Pod"
)
LEASES: Final = Resource("leases", path_of("coordination.k8s.io/v1", "leases"), kind="Lease")
CONFIG_MAPS: Final = Resource("configmaps", path_of("v1", "configmaps"), kind="ConfigMap")
# pods that were never created: the event is all that there is of them
FAILED_CREATES: Final = Resource(
    "events", path_of("v1", "events"), fields="reason=FailedCreate", optional=True, kind="Event"
)


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


class _Read(msgspec.Struct, gc=False):
    type: str
    object: _Object


_line: Final = msgspec.json.Decoder(_Line).decode
_read: Final = msgspec.json.Decoder(_Read).decode


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """ADDED, MODIFIED, DELETED or BOOKMARK, and the object that it speaks of."""

    type: str
    raw: bytes
    metadata: _Metadata

    @property
    def key(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.name)

    @property
    def ends_list(self) -> bool:
        """Whether a streamed list is complete with this one."""
        return (self.metadata.annotations or {}).get(_INITIAL_EVENTS_END) == "true"


def read_event(line: bytes) -> WatchEvent:
    """The event of a line; `ApiError` for one of type ERROR, `BadResponse` for what is no event."""
    try:
        found = _read(line)
        head = b'{"type":"%b","object":' % found.type.encode()  # as API servers write it: one look is enough
        usual = line.startswith(head) and line.endswith(b"}")
        raw = line[len(head) : -1] if usual else bytes(_line(line).object)
        if found.type == "ERROR":
            raise error_of(500, raw)
        return WatchEvent(found.type, raw, found.object.metadata)
    except NOT_JSON as error:
        raise BadResponse(f"a watch line that is not an event: {error}") from error


def _read_key(raw: bytes | msgspec.Raw) -> Key:
    metadata = decode_named(raw).metadata
    return Key(intern(metadata.namespace), metadata.name)


# The key of an object. Consumers of one event share it, and what they keep by it.
read_key: Final = decoded_once(_read_key)


def is_before(version: str, other: str) -> bool:
    """Whether a version is older; versions are numbers on every server there is, but need not be."""
    return version.isdigit() and other.isdigit() and int(version) < int(other)
