"""A stand-in for the Kubernetes API server: real HTTP, objects in memory.

It keeps the promises that clients build on: versions that grow, conflicts, lists in pages, watches with history,
bookmarks and 410, the streamed initial list, patches, status subresources, dry runs. It checks no schema and no
permission. `kubectl` can talk to it.

Lists and watches: the two ways of reading many objects, and the label and field selectors in their queries.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.kube.errors import NOT_JSON
from tessera.protocol import yaml
from tessera.serving.address import Address
from tessera.serving.http_messages import Limits, Request, Response, Stream
from tessera.serving.http_server import Server
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.kinds import ResourceType
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import Document, StatusError, Store, Stored, StoredChange, expired

_OPEN_LISTS: Final = 16  # lists that are being read page by page
_LONGEST_WATCH: Final = 1800.0  # seconds, for clients that do not say
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"

Query = Mapping[str, str]
Selector = Callable[[Document], bool]


def selector_of(query: Mapping[str, str]) -> Selector | None:
    """The selector in a query; None when it asks for everything."""
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    if not labels and not fields:
        return None
    tests = [label_selector(labels), field_selector(fields)]
    return lambda document: all(test(document) for test in tests)


def label_selector(text: str) -> Selector:
    """`app=x,tier!=y,env in (a,b),gpu,!old`."""
    try:
        selector = LabelSelector.parse(text)
    except InvalidInput as error:
        raise StatusError(400, "BadRequest", f"unable to parse the label selector: {error}") from error
    return lambda document: selector.matches(document["metadata"].get("labels") or {})


def field_selector(text: str) -> Selector:
    """`metadata.name=x,spec.nodeName!=`, joined by commas."""
    tests = [_field_test(part.strip()) for part in text.split(",") if part.strip()]
    return lambda document: all(test(document) for test in tests)


def _field_test(part: str) -> Selector:
    path, operator, wanted = re.match(r"([\w.]*)\s*(==|=|!=)?\s*(.*)", part).groups()  # type: ignore[union-attr] # matches anything
    if not path or operator is None:
        raise StatusError(400, "BadRequest", f'unable to parse the field selector "{part}"')

    def test(document: Document) -> bool:
        value: Any = document
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        found = "" if value is None else str(value)
        return (found == wanted) is (operator != "!=")

    return test


class Lists:
    """Lists, whole or in pages; the pages of one list show one moment."""

    def __init__(self) -> None:
        self._rest: dict[str, tuple[int, list[Stored]]] = {}

    def read(self, store: Store, kind: ResourceType, namespace: str, query: Query) -> bytes:
        """A List, or a page of one. As with a real server, a list at version 0 comes in one page."""
        wanted, limit = query.get("resourceVersion", ""), int(query.get("limit") or 0)
        if token := query.get("continue", ""):
            if token not in self._rest:
                raise expired("The provided continue parameter is too old.")
            version, items = self._rest.pop(token)
        else:
            if wanted.isdigit() and int(wanted) > store.version:
                message = f"Timeout: Too large resource version: {wanted}, current: {store.version}"
                raise StatusError(504, "Timeout", message, cause="ResourceVersionTooLarge")
            version, items = store.version, store.list(kind, namespace)
            if (selector := selector_of(query)) is not None:
                items = [stored for stored in items if selector(stored.document)]
        metadata: Document = {"resourceVersion": str(version)}
        if limit and wanted != "0" and len(items) > limit:
            items, rest = items[:limit], items[limit:]
            token = f"{version}-{len(rest)}-{id(rest):x}"
            self._rest[token] = (version, rest)
            while len(self._rest) > _OPEN_LISTS:
                del self._rest[next(iter(self._rest))]
            metadata |= {"continue": token, "remainingItemCount": len(rest)}
        return _list_of(kind, metadata, items)

    def forget(self) -> None:
        """Answer 410 to every client that comes for the next page."""
        self._rest.clear()


def _list_of(kind: ResourceType, metadata: Document, items: list[Stored]) -> bytes:
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": []}
    # items of a list do not repeat their kind; objects are kept with it in front
    prefix = len(msgspec.json.encode({"kind": kind.kind, "apiVersion": kind.api_version}))
    body = b",".join(b"{" + stored.encoded[prefix:] for stored in items)
    return msgspec.json.encode(head).removesuffix(b"]}") + body + b"]}\n"


async def watch(
    store: Store, kind: ResourceType, namespace: str, query: Query, bookmark_seconds: float
) -> AsyncGenerator[bytes, None]:
    """The events of a watch, each a line, until the time that the client set is over."""
    selector, wanted = selector_of(query), query.get("resourceVersion", "")
    since = int(wanted) if wanted.isdigit() else 0
    initial = query.get("sendInitialEvents") == "true"
    if initial or since == 0:
        since = store.version
        for stored in store.list(kind, namespace):
            if selector is None or selector(stored.document):
                yield event("ADDED", stored.encoded)
        if initial:
            yield bookmark(kind, since, end_of_initial=True)
    changes: asyncio.Queue[StoredChange] = asyncio.Queue()
    try:
        stop = store.follow(kind, since, changes.put_nowait)
    except StatusError as error:
        yield event("ERROR", msgspec.json.encode(error.document))
        return
    try:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + float(query.get("timeoutSeconds") or _LONGEST_WATCH)
        bookmarks = query.get("allowWatchBookmarks") == "true"
        while (left := deadline - loop.time()) > 0:
            pause = min(left, bookmark_seconds) if bookmarks else left
            try:
                async with asyncio.timeout(pause):
                    batch = [await changes.get()]
            except TimeoutError:
                if pause < left:
                    yield bookmark(kind, store.version)
                continue
            while not changes.empty():
                batch.append(changes.get_nowait())
            here = (change for change in batch if namespace in {"", change.after.key[0]})
            if lines := b"".join(_selected(change, selector) for change in here):
                yield lines
    finally:
        stop()


def _selected(change: StoredChange, selector: Selector | None) -> bytes:
    """What a watch sees. With a selector, an object that begins to match is ADDED, and one that no longer matches is DELETED."""
    if selector is None:
        return event(change.type, change.after.encoded)
    now = change.type != "DELETED" and selector(change.after.document)
    before = change.before is not None and selector(change.before.document)
    if not now and not before:
        return b""
    type_ = "ADDED" if not before else "MODIFIED" if now else "DELETED"
    return event(type_, change.after.encoded)


def event(type_: str, encoded: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (type_.encode("ascii"), encoded)


def bookmark(kind: ResourceType, version: int, *, end_of_initial: bool = False) -> bytes:
    """A line that only shows how far the watch has come."""
    metadata: Document = {"resourceVersion": str(version), "creationTimestamp": None}
    if end_of_initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    document = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    return event("BOOKMARK", msgspec.json.encode(document))


# bodies: the API server takes 3 MiB, and reviews for webhooks are larger; programs on this machine may take their time
_LIMITS: Final = Limits(
    connections=4096,
    streams=4096,
    head=64 * 1024,
    body=8 * 1024 * 1024,
    request_seconds=60.0,
    idle_seconds=600.0,
)
# an update elsewhere leaves their status alone
_HAS_STATUS: Final = frozenset(
    {kinds.NODES, kinds.NAMESPACES, kinds.PODS, kinds.RESOURCE_CLAIMS, kinds.MIG_LAYOUTS}
)

_SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a path points at."""

    kind: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """An object as admission left it, and the warnings for the client."""

    document: Document
    warnings: tuple[str, ...] = ()


# called before an object is made; refuses by raising StatusError
Admission = Callable[[Target, Document, bool], Awaitable[Admitted]]


class ApiServer:
    """The API server of a small cluster in this process."""

    def __init__(self, store: Store | None = None, admission: Admission | None = None) -> None:
        self.store = store or Store()
        self.admission = admission
        self.tokens: set[str] | None = None  # None: every client may in
        self.bookmark_seconds = 60.0
        self.kinds: dict[tuple[str, str], ResourceType] = {
            (kind.prefix, kind.plural): kind for kind in kinds.KINDS
        }
        self._lists = Lists()
        self._http = Server(self.answer, _LIMITS)

    @property
    def url(self) -> str:
        return self._http.url

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Self:
        """Listen; port 0 picks a free one."""
        await self._http.start(Address(host, port), tls)
        return self

    async def stop(self) -> None:
        """Stop listening and cut every connection; objects stay, and it can start again."""
        await self._http.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def answer(self, request: Request) -> Response | Stream:
        """One request, answered; every refusal is a Status."""
        try:
            self.authenticate(request)
            return await self.route(request)
        except StatusError as error:
            return Response(msgspec.json.encode(error.document), error.code)

    def authenticate(self, request: Request) -> None:
        """Demand one of `tokens`, or a verified client certificate."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens and not request.certificate:
            raise StatusError(401, "Unauthorized", "Unauthorized")

    async def route(self, request: Request) -> Response | Stream:
        """Find what the path points at, and do what the method says."""
        if (document := kinds.discover(request.path, self.kinds.values())) is not None:
            return _json(document)
        target, query = self.target(request.path), request.query
        kind, name, namespace = target.kind, target.name, target.namespace
        # a dry run writes to a copy that is discarded
        store = self.store.snapshot() if _is_dry_run(request) else self.store
        match request.method, bool(name):
            case "GET", True:
                return Response(store.get(kind, name, namespace).encoded)
            case "GET", False if query.get("watch") in {"true", "1"}:
                selector_of(query)  # what it refuses must be refused before the stream begins
                return Stream(self.watch(target, query))
            case "GET", False:
                return Response(self._lists.read(store, kind, namespace, query))
            case "POST", _ if not name or target.subresource == "eviction":
                return await self._create(request, target, store)
            case "PUT", True:
                return _updated(store, target, _document(request))
            case "PATCH", True:
                return _patched(store, target, request)
            case "DELETE", True:
                return Response(store.delete(kind, name, namespace).encoded)
            case "DELETE", False:
                selector = selector_of(query)
                for stored in store.list(kind, namespace):
                    if selector is None or selector(stored.document):
                        store.delete(kind, stored.key[1], stored.key[0])
                return _json(_SUCCESS)
        raise StatusError(405, "MethodNotAllowed", f"{request.method} is not supported here")

    def target(self, path: str) -> Target:
        """Take a path apart; NotFound when it leads nowhere."""
        parts = path.strip("/").split("/")
        depth = 2 if parts[0] == "api" else 3
        prefix, rest = "/" + "/".join(parts[:depth]), parts[depth:]
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces" and (prefix, rest[2]) in self.kinds:
            namespace, rest = rest[1], rest[2:]
        kind = self.kinds.get((prefix, rest[0])) if 1 <= len(rest) <= 3 else None
        if kind is None:
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        return Target(kind, namespace, *rest[1:])

    def watch(self, target: Target, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        return watch(self.store, target.kind, target.namespace, query, self.bookmark_seconds)

    async def _create(self, request: Request, target: Target, store: Store) -> Response:
        document = _document(request)
        if target.name:  # an eviction; there are no budgets here
            store.delete(target.kind, target.name, target.namespace)
            return _json(_SUCCESS)
        if target.namespace:  # a review names it, and so do the objects that come out of one
            document.setdefault("metadata", {}).setdefault("namespace", target.namespace)
        admitted = Admitted(document)
        if self.admission is not None:
            admitted = await self.admission(target, document, _is_dry_run(request))
        stored = store.create(target.kind, admitted.document, target.namespace)
        warnings = tuple(("Warning", f'299 - "{_quoted(text)}"') for text in admitted.warnings)
        return Response(stored.encoded, 201, headers=warnings)


def _patched(store: Store, target: Target, request: Request) -> Response:
    content_type, patch = request.headers.get("content-type", ""), yaml.load(request.body, "patch")
    try:
        current = store.get(target.kind, target.name, target.namespace).document
    except StatusError:
        if "apply-patch" not in content_type or target.subresource:
            raise
        return Response(store.create(target.kind, patch, target.namespace).encoded, 201)
    return _updated(store, target, apply_patch(content_type, current, patch))


def _updated(store: Store, target: Target, document: Document) -> Response:
    if target.subresource not in {"", "status"}:
        raise StatusError(404, "NotFound", "the server could not find the requested resource")
    status = target.subresource == "status" if target.kind in _HAS_STATUS else None
    return Response(store.update(target.kind, target.name, document, target.namespace, status=status).encoded)


def _is_dry_run(request: Request) -> bool:
    return request.query.get("dryRun") == "All"


def _document(request: Request) -> Document:
    if "protobuf" in request.headers.get("content-type", ""):
        raise StatusError(415, "UnsupportedMediaType", "this server speaks JSON only")
    try:
        document = msgspec.json.decode(request.body)
    except NOT_JSON as error:
        raise StatusError(400, "BadRequest", f"the body is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise StatusError(400, "BadRequest", "the body is no object")
    return document


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document))
