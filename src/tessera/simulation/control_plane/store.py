"""Objects as an API server keeps them: versions, conflicts, and a history that watches follow.

Objects are in memory. A change is done when the call returns, and followers have heard of it. The store keeps JSON and hands
out fresh documents, so that no reader can change a stored object by accident.
"""

import asyncio
import contextlib
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn

import msgspec

from tessera.core.errors import TesseraError
from tessera.core.kubernetes.pod import ENDED
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, ResourceType

Document = dict[str, Any]
Key = tuple[str, str]  # namespace (empty for what has none), name

_COUNTED: Final = frozenset(
    {MIG_LAYOUTS}
)  # kinds whose generation a controller reads: it grows with the spec
_HISTORY: Final = 10_000  # changes a watch can be behind


class StatusError(TesseraError):
    """A refusal, as a Kubernetes Status."""

    def __init__(self, code: int, reason: str, message: str, cause: str | None = None) -> None:
        self.code, self.reason, self.message, self.cause = code, reason, message, cause
        super().__init__(message)

    @property
    def document(self) -> Document:
        """The Status object."""
        details = {"causes": [{"reason": self.cause}]} if self.cause else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }


def has_ended(pod: Document) -> bool:
    """Whether a pod's containers have ended for good, so that it holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in ENDED


def expired(message: str = "The resourceVersion for the provided watch is too old.") -> StatusError:
    return StatusError(410, "Expired", message)


@dataclass(frozen=True, slots=True)
class Stored:
    """One object at one version."""

    key: Key
    version: int
    encoded: bytes
    made: int  # the version at which it was made: who came first

    @property
    def document(self) -> Document:
        """The object, fresh: the caller may change it."""
        return msgspec.json.decode(self.encoded, type=Document)


@dataclass(frozen=True, slots=True)
class StoredChange:
    """What happened to one object; `before` is None when it was made, `after` is its last state when it went."""

    type: str  # ADDED, MODIFIED, DELETED
    after: Stored
    before: Stored | None


@dataclass(slots=True)
class _Collection:
    objects: dict[Key, Stored] = field(default_factory=dict)
    history: deque[StoredChange] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    forgotten: int = 0  # the newest version that is no longer in the history
    followers: list[Callable[[StoredChange], None]] = field(default_factory=list)


class Store:
    """All objects of a cluster."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.version = 1
        self._now = now
        self._collections: dict[ResourceType, _Collection] = {}

    def _of(self, kind: ResourceType) -> _Collection:
        return self._collections.setdefault(kind, _Collection())

    def now(self) -> str:
        """This moment, as the API writes it."""
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def get(self, kind: ResourceType, name: str, namespace: str = "") -> Stored:
        """One object, or NotFound."""
        stored = self._of(kind).objects.get((namespace if kind.namespaced else "", name))
        if stored is None:
            raise StatusError(404, "NotFound", f'{kind} "{name}" not found')
        return stored

    def list(self, kind: ResourceType, namespace: str = "") -> list[Stored]:
        """All objects of a kind (and namespace), by namespace and name."""
        objects = self._of(kind).objects
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def last_change(self, kind: ResourceType) -> int:
        """The version of what last happened to an object of a kind."""
        collection = self._of(kind)
        return collection.history[-1].after.version if collection.history else collection.forgotten

    def create(self, kind: ResourceType, document: Document, namespace: str = "") -> Stored:
        """Make an object, with all that the server adds to it; AlreadyExists when the name is taken."""
        document, metadata = _opened(document)
        namespace = _namespace_for(kind, metadata, namespace)
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise StatusError(
                    422, "Invalid", f"{kind}: metadata.name: Required value: name or generateName"
                )
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        key = (namespace, str(metadata["name"]))
        if key in self._of(kind).objects:
            raise StatusError(409, "AlreadyExists", f'{kind} "{key[1]}" already exists')
        if metadata.get("resourceVersion"):
            raise StatusError(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = self.now()
        if kind.namespaced:
            metadata["namespace"] = namespace
        if kind in _COUNTED:
            metadata["generation"] = 1
        return self._put(kind, key, document, "ADDED")

    def update(
        self,
        kind: ResourceType,
        name: str,
        document: Document,
        namespace: str = "",
        *,
        status: bool | None = None,
    ) -> Stored:
        """Replace an object; Conflict when the document has an older version.

        `status` True replaces only the status, False everything else (for kinds with a status subresource), None both.
        """
        old = self.get(kind, name, namespace)
        document, metadata = _opened(document)
        if metadata.get("name", name) != name:
            raise StatusError(400, "BadRequest", "the name of the object does not match the name on the URL")
        if metadata.get("resourceVersion") not in (None, "", str(old.version)):
            message = (
                "the object has been modified; please apply your changes to the latest version and try again"
            )
            raise StatusError(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {message}')
        current = old.document
        if status is True:
            document, metadata = _opened({**current, "status": document.get("status", {})})
        elif status is False and "status" in current:
            document["status"] = current["status"]
        for kept in ("name", "uid", "creationTimestamp", "namespace", "resourceVersion"):
            if kept in current["metadata"]:
                metadata[kept] = current["metadata"][kept]
        if kind in _COUNTED:
            changed = document.get("spec") != current.get("spec")
            metadata["generation"] = current["metadata"]["generation"] + changed
        if msgspec.json.encode(_completed(kind, document)) == old.encoded:
            return old  # nothing changed: followers hear of nothing
        return self._put(kind, old.key, document, "MODIFIED")

    def set_status(self, kind: ResourceType, name: str, status: Document, namespace: str = "") -> Stored:
        return self.update(kind, name, {"status": status}, namespace, status=True)

    def delete(self, kind: ResourceType, name: str, namespace: str = "") -> Stored:
        """Remove an object; its last state gets a version of its own, as watches see it."""
        old = self.get(kind, name, namespace)
        return self._put(kind, old.key, old.document, "DELETED")

    def follow(
        self, kind: ResourceType, since: int, follower: Callable[[StoredChange], None]
    ) -> Callable[[], None]:
        """Call `follower` with every change after `since`, past ones first, until the returned function is called.

        Expired when the history no longer reaches that far back.
        """
        collection = self._of(kind)
        if since < collection.forgotten:
            raise expired(f"too old resource version: {since} ({collection.forgotten})")
        for change in list(collection.history):
            if change.after.version > since:
                follower(change)
        collection.followers.append(follower)
        return partial(collection.followers.remove, follower)

    async def call_on_changes(self, kinds: Iterable[ResourceType], call: Callable[[], None]) -> NoReturn:
        """Call `call` now, and again whenever an object of these kinds has changed, until cancelled."""
        changed = asyncio.Event()
        with contextlib.ExitStack() as stops:
            for kind in kinds:
                stops.callback(self.follow(kind, self.version, lambda _: changed.set()))
            while True:
                call()
                await changed.wait()
                changed.clear()

    def forget_history(self) -> None:
        """Compact: a watch from before now gets 410."""
        for collection in self._collections.values():
            collection.history.clear()
            collection.forgotten = self.version

    def snapshot(self) -> "Store":
        """A copy of everything, to restore from."""
        copy = Store(self._now)
        copy.version = self.version
        for kind, collection in self._collections.items():
            copy._collections[kind] = _Collection(dict(collection.objects), forgotten=self.version)
        return copy

    def _put(self, kind: ResourceType, key: Key, document: Document, type_: str) -> Stored:
        self.version += 1
        collection = self._of(kind)
        document["metadata"]["resourceVersion"] = str(self.version)
        before = collection.objects.get(key)
        made = before.made if before else self.version
        stored = Stored(key, self.version, msgspec.json.encode(_completed(kind, document)), made)
        if type_ == "DELETED":
            del collection.objects[key]
        else:
            collection.objects[key] = stored
        if len(collection.history) == _HISTORY:
            collection.forgotten = collection.history[0].after.version
        change = StoredChange(type_, stored, before)
        collection.history.append(change)
        for follower in list(collection.followers):
            follower(change)
        return stored


def _completed(kind: ResourceType, document: Document) -> Document:
    """The object with kind and apiVersion first, as the API server prints it."""
    rest = {name: value for name, value in document.items() if name not in {"kind", "apiVersion"}}
    return {"kind": kind.kind, "apiVersion": kind.api_version, **rest}


def _opened(document: Document) -> tuple[Document, dict[str, Any]]:
    """A copy whose top level and metadata may be changed, and that metadata."""
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise StatusError(400, "BadRequest", "metadata: must be an object")
    metadata = dict(metadata)
    return {**document, "metadata": metadata}, metadata


def _namespace_for(kind: ResourceType, metadata: dict[str, Any], namespace: str) -> str:
    if not kind.namespaced:
        return ""
    named = metadata.get("namespace") or namespace
    if namespace and named != namespace:
        raise StatusError(
            400, "BadRequest", "the namespace of the object does not match the namespace on the request"
        )
    return str(named or "default")
