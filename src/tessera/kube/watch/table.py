"""A table: how a consumer takes the objects of each kind.

The consumer writes its table once. Three feeders fill it: `list_once` lists each collection once, `Follower` follows them, and
`take_files` takes objects that were read from files.

What is followed, and what a watch says of it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from sys import intern
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from tessera.core.devices.followed import LARGE, NamespaceBytes
from tessera.core.dra.slices import API_VERSION
from tessera.kube.errors import NOT_JSON, BadResponse, error_of
from tessera.kube.rest.client import path_of
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


T = TypeVar("T")
K = TypeVar("K")


def do_nothing(*_: object) -> None:
    """Take something and ignore it."""


@dataclass(frozen=True, slots=True, eq=False)
class TableEntry(Generic[T]):
    """How a consumer takes the objects of one kind.

    A whole list is taken in one of two ways. Without `replace` the consumer forgets what it knows, and takes the objects as they
    come. With `replace` it takes the complete list at once.
    """

    # Reads one object. None: the consumer keeps nothing of this object. Of one that cannot be read it raises InvalidInput.
    decode: Callable[[bytes], T | None]
    put: Callable[[T], object]  # this object is new or changed
    remove: Callable[[Key], object] = do_nothing  # this object is gone
    begin: Callable[[], object] = do_nothing  # a whole list comes, object by object: forget what is known
    replace: Callable[[list[T]], object] | None = None  # these are all objects
    key: Callable[[T], object] | None = None  # says which objects are the same; without it all are different
    # a list of this version comes next: nothing that is known up to it counts, even where the list has an older version of
    # it (etcd was restored, and its revision raised). Without a version nothing that is known counts: the server's history
    # has changed
    forget: Callable[[str], object] = do_nothing

    def start(self) -> tuple[Callable[[T], object], Callable[[], object]]:
        """Start a whole list: what takes its objects one after the other, and what finishes it."""
        if self.replace is None:
            self.begin()
            return self.put, do_nothing
        objects: list[T] = []
        return objects.append, partial(self.replace, objects)

    def take_all(self, objects: list[T]) -> None:
        """Take a complete list."""
        if self.replace is not None:
            self.replace(objects)
            return
        self.begin()
        for item in objects:
            self.put(item)

    def through(self, wrap: Callable[[Callable[..., object]], Callable[..., object]]) -> "TableEntry[T]":
        """The same entry, each of whose calls into the consumer goes through a wrapper."""
        calls = {name: getattr(self, name) for name in ("put", "remove", "begin", "replace", "forget")}
        wrapped: dict[str, Any] = {name: wrap(call) for name, call in calls.items() if call is not None}
        return replace(self, **wrapped)

    def bounded(
        self, key: Callable[[T], Key], size: Callable[[T], int], shrink: Callable[[T], T]
    ) -> "TableEntry[T]":
        """The same entry, which shrinks further large objects of a namespace that has many of them.

        Each object is shrunk as it is read, so that a list is never held whole. An object counts until it is gone, or
        until the next list comes without it.
        """
        kept = NamespaceBytes()

        def count(item: T) -> bool:
            """Count an object; False: it does not fit."""
            item_size = size(item)
            return (item_size < LARGE and not kept) or kept.take(*key(item), item_size)

        def decode(raw: bytes) -> T | None:
            item = self.decode(raw)
            return item if item is None or count(item) else shrink(item)

        def put(item: T) -> object:
            count(item)
            return self.put(item)

        def remove(gone: Key) -> object:
            kept.remove(*gone)
            return self.remove(gone)

        def begin() -> object:
            kept.clear()
            return self.begin()

        def replace_all_objects(items: list[T]) -> None:
            kept.clear()
            for item in items:
                count(item)
            if self.replace is not None:
                self.replace(items)

        replacing = None if self.replace is None else replace_all_objects
        return replace(self, decode=decode, put=put, remove=remove, begin=begin, replace=replacing)

    def reporting(self, changed: Callable[[], object]) -> "TableEntry[T]":
        """The same entry, which reports each change. A call into the consumer that returns False changes nothing."""

        def wrap(call: Callable[..., object]) -> Callable[..., object]:
            def call_and_report(*given: Any) -> None:
                if call(*given) is not False:
                    changed()

            return call_and_report

        return self.through(wrap)


Table = Mapping[Resource, TableEntry[Any]]


def entry_by_key(
    decode: Callable[[bytes], T | None],
    put: Callable[[T], object],
    remove: Callable[[Key], object],
    *,
    key: Callable[[T], Key],
    known: Callable[[], Iterable[Key]],
) -> TableEntry[T]:
    """An entry for objects that the consumer knows by namespace and name; `known` says which it has."""

    def replace_known(objects: list[T]) -> None:
        replace_all(known(), {key(item): item for item in objects}, put, remove)

    return TableEntry(decode, put, remove, replace=replace_known, key=key)


def entry_by_name(
    decode: Callable[[bytes], T | None],
    put: Callable[[T], object],
    remove: Callable[[str], object],
    *,
    key: Callable[[T], str],
    known: Callable[[], Iterable[str]],
) -> TableEntry[T]:
    """The same for objects without a namespace, which the consumer knows by name."""
    return entry_by_key(
        decode,
        put,
        lambda gone: remove(gone.name),
        key=lambda item: Key("", key(item)),
        known=lambda: [Key("", name) for name in known()],
    )


def single_entry(decode: Callable[[bytes], T], put: Callable[[T | None], object]) -> TableEntry[T]:
    """An entry for one object; None: it does not exist."""

    def remove(_: Key) -> None:
        put(None)

    def replace_single(objects: list[T]) -> None:
        put(objects[0] if objects else None)

    return TableEntry(decode, put, remove, replace=replace_single)


def replace_all(
    known: Iterable[K], fresh: Mapping[K, T], put: Callable[[T], object], remove: Callable[[K], object]
) -> None:
    """Replace what is known by what is fresh, where that goes only one by one."""
    for key in [key for key in known if key not in fresh]:
        remove(key)
    for item in fresh.values():
        put(item)
