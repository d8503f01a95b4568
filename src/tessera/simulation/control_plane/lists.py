"""Lists and watches: the two ways of reading many objects, and the label and field selectors in their queries."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.simulation.control_plane.kinds import ResourceType
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
