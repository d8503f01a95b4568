"""Lists and watches: the two ways of reading many objects."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import msgspec

from tessera.simulation.control_plane.kinds import ResourceType
from tessera.simulation.control_plane.selectors import Selector, selector_of
from tessera.simulation.control_plane.store import Document, StatusError, Store, Stored, StoredChange, expired

_OPEN_LISTS: Final = 16  # lists that are being read page by page
_LONGEST_WATCH: Final = 1800.0  # seconds, for clients that do not say
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"

Query = Mapping[str, str]


class Lists:
    """Lists, whole or in pages; the pages of one list show one moment."""

    def __init__(self) -> None:
        self._rest: dict[str, tuple[int, list[Stored]]] = {}

    def read(self, store: Store, kind: ResourceType, namespace: str, query: Query) -> bytes:
        """A List, or a page of one. As on a real server, version 0 is answered from memory, all at once."""
        wanted, limit = query.get("resourceVersion", ""), int(query.get("limit") or 0)
        if token := query.get("continue", ""):
            if token not in self._rest:
                raise expired("The provided continue parameter is too old.")
            version, items = self._rest.pop(token)
        else:
            if wanted.isdigit() and int(wanted) > store.version:
                raise too_large_version(int(wanted), store.version)
            version, items = store.version, store.list(kind, namespace)
            if (selector := selector_of(query)) is not None:
                items = [stored for stored in items if selector(stored.document)]
        metadata: Document = {"resourceVersion": str(version)}
        if limit and wanted != "0" and len(items) > limit:
            items, rest = items[:limit], items[limit:]
            token = f"{version}-{len(rest)}-{id(rest):x}"
            self._rest[token] = (version, rest)
            while len(self._rest) > _OPEN_LISTS:
                self.forget(next(iter(self._rest)))
            metadata |= {"continue": token, "remainingItemCount": len(rest)}
        return _list_of(kind, metadata, items)

    def forget(self, token: str | None = None) -> None:
        """Answer 410 to the client that comes for the next page."""
        if token is None:
            self._rest.clear()
        else:
            del self._rest[token]


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
    wanted = query.get("resourceVersion", "")
    since = int(wanted) if wanted.isdigit() else 0
    initial = query.get("sendInitialEvents") == "true"
    if initial or since == 0:
        since = store.version
        selector = selector_of(query)
        for stored in store.list(kind, namespace):
            if selector is None or selector(stored.document):
                yield event("ADDED", stored.encoded)
        if initial:
            yield bookmark(kind, since, end_of_initial=True)
    waiting = _Waiting(namespace, since, query)
    try:
        stop = store.follow(kind, since, waiting.add)
    except StatusError as error:
        yield event("ERROR", msgspec.json.encode(error.document))
        return
    try:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + float(query.get("timeoutSeconds") or _LONGEST_WATCH)
        bookmarks = query.get("allowWatchBookmarks") == "true"
        while (left := deadline - loop.time()) > 0:
            pause = min(left, bookmark_seconds) if bookmarks else left
            lines = await waiting.lines(pause)
            if lines:
                yield lines
            elif pause < left:
                yield bookmark(kind, store.version)
    finally:
        stop()


class _Waiting:
    """Lines on their way to one watch."""

    def __init__(self, namespace: str, since: int, query: Query) -> None:
        self._namespace, self._since = namespace, since
        self._selector = selector_of(query)
        self._lines: deque[bytes] = deque()
        self._awake = asyncio.Event()

    def add(self, change: StoredChange) -> None:
        """Take a change, if this watch is to see it."""
        if change.version <= self._since or self._namespace not in {"", change.after.key[0]}:
            return
        line = event(change.type, change.after.encoded)
        if self._selector is not None:
            line = _selected(change, self._selector)
        if line:
            self._lines.append(line)
            self._awake.set()

    async def lines(self, seconds: float) -> bytes:
        """All lines there are; when there are none, those that come first within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
        except TimeoutError:
            return b""
        self._awake.clear()
        lines = b"".join(self._lines)
        self._lines.clear()
        return lines


def _selected(change: StoredChange, selector: Selector) -> bytes:
    """What a watch with a selector sees: objects appear and vanish as they come to match and cease to."""
    now = change.type != "DELETED" and selector(change.after.document)
    before = change.before is not None and selector(change.before.document)
    if not now and not before:
        return b""
    type_ = "ADDED" if not before else "MODIFIED" if now else "DELETED"
    return event(type_, change.after.encoded)


def event(type_: str, encoded: bytes) -> bytes:
    """One line of a watch."""
    return b'{"type":"%b","object":%b}\n' % (type_.encode("ascii"), encoded)


def bookmark(kind: ResourceType, version: int, *, end_of_initial: bool = False) -> bytes:
    """A line that only tells how far the watch has come."""
    metadata: Document = {"resourceVersion": str(version), "creationTimestamp": None}
    if end_of_initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    document = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    return event("BOOKMARK", msgspec.json.encode(document))


def too_large_version(wanted: int, current: int) -> StatusError:
    """The server has not come that far yet, or no longer is."""
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    return StatusError(504, "Timeout", message, cause="ResourceVersionTooLarge")
