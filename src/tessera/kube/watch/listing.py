"""A List read as it comes, object by object.

An API server that answers from its watch cache ignores `limit` and sends thousands of objects in one body. Held
whole, with what is decoded from it, such a body is the largest thing in the process; cut up while it arrives it is
no more than one object and one read.

The cut needs no JSON parser of its own. The server writes compact JSON, every object of a list begins with the same
key, and a quote inside a text is escaped: `},{"metadata":` stands between objects, or between deeper ones, never in
a text. What reaches from the begin of an object to such a place is that object exactly when it is complete JSON,
because no complete JSON object is the beginning of another.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from tessera.core.errors import InvalidInput
from tessera.kube.errors import NOT_JSON, ApiError, BadResponse, KubeError
from tessera.kube.rest.client import Client, Query
from tessera.kube.rest.connection import MAX_BODY, MAX_LINE
from tessera.kube.watch.table import Resource, Table, TableEntry, do_nothing
from tessera.protocol.kubernetes import objects

T = TypeVar("T")

# Called while a long list is read: with what it is of and how many there are, then with how many were read so far.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]

PAGE: Final = 500  # objects; what client-go asks for

_ITEMS: Final = b'"items":['
_MAX_HEAD: Final = 64 * 1024  # before the objects: a kind, a version, a token
_MOST_TRIES: Final = 64  # places that turn out to be inside of an object, or not the list's end

_complete: Final = msgspec.json.Decoder(msgspec.Raw).decode


class _ListMeta(msgspec.Struct, rename={"version": "resourceVersion", "token": "continue"}):
    version: str = ""
    token: str = ""


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


_list: Final = msgspec.json.Decoder(_List).decode
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ListCutter:
    """Takes the body of a List in pieces and hands out its objects, each as soon as it is there."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._head: bytes | None = None  # up to and with `"items":[`
        self._between = b""  # what stands between two objects: `},{"metadata":`
        self._buffer = bytearray()
        self._scanned = 0  # of the buffer: no end of an object before here
        self._tries = 0  # how many such places the present object has had
        self._whole = False  # a list written in some other way, to be read in one piece

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._buffer += piece
        if self._head is None and not self._whole:
            self._find_items()
        if self._whole:
            if len(self._buffer) > MAX_BODY:
                raise BadResponse(f"a list of more than {MAX_BODY // 2**20} MiB that cannot be read in parts")
            return
        if self._between or self._find_between():
            self._cut()
        if len(self._buffer) > MAX_LINE + len(piece):
            raise BadResponse(f"an object of more than {MAX_LINE // 2**20} MiB in a list")

    def _find_items(self) -> None:
        start = self._buffer.find(_ITEMS, 0, _MAX_HEAD)
        if start >= 0:
            end = start + len(_ITEMS)
            self._head = bytes(self._buffer[:end])
            del self._buffer[:end]
        elif len(self._buffer) >= _MAX_HEAD:
            self._whole = True

    def _find_between(self) -> bool:
        colon = self._buffer.find(b":", 0, 256)
        if self._head is not None and colon > 0 and self._buffer.startswith(b'{"'):
            self._between = b"}," + bytes(self._buffer[: colon + 1])
        return bool(self._between)

    def _cut(self) -> None:
        buffer, between, start = self._buffer, self._between, 0
        while not self._whole and (end := buffer.find(between, self._scanned)) >= 0:
            self._scanned = end + 2
            candidate = bytes(buffer[start : end + 1])
            try:
                _complete(candidate)
            except NOT_JSON:
                self._tries += 1
                self._whole = self._tries > _MOST_TRIES  # each try reads all of it: no more of them
                continue
            self._take(candidate)
            start, self._tries = self._scanned, 0
        del buffer[:start]
        # a separator may be cut in two; it is looked for again from where it could begin
        self._scanned = max(0, self._scanned - start, len(buffer) - len(between) + 1)

    def finish(self) -> _ListMeta:
        """What is left when the body is over: the last object, and what the list says of itself."""
        rest = bytes(self._buffer)
        if self._head is None:
            try:
                whole = _list(rest)
            except NOT_JSON as error:
                raise BadResponse(f"not a list: {error}") from error
            for raw in whole.items or ():
                self._take(bytes(raw))
            return whole.metadata
        end = len(rest)
        for _ in range(_MOST_TRIES):
            end = rest.rfind(b"]", 0, end)
            if end < 0:
                break
            try:
                envelope = _list(self._head + rest[end:])
                raws = _raws(b"[" + rest[:end] + b"]")
            except NOT_JSON:
                continue
            for raw in raws:
                self._take(bytes(raw))
            return envelope.metadata
        raise BadResponse("a list that is truncated or not JSON")


async def read_list(
    client: Client, path: str, query: Query, begin: Callable[[], Callable[[bytes], None]]
) -> str:
    """Read a whole list, in pages where the server makes pages, and return its version.

    `begin` starts a list and returns what takes its objects; it is called again when the pages expire half-way
    and everything starts again, without pages.
    """
    take, token = begin(), ""
    while True:
        page = {**query, "continue": token, "resourceVersion": None} if token else query
        cutter = ListCutter(take)
        try:
            async with client.stream("GET", path, page) as answer:
                while piece := await answer.read():
                    cutter.feed(piece)
        except ApiError as error:
            if not (token and error.is_expired):
                raise
            take, token = begin(), ""
            query = {**query, "limit": None, "resourceVersion": "", "resourceVersionMatch": None}
            continue
        metadata = cutter.finish()
        if not metadata.token:
            return metadata.version
        token = metadata.token


async def list_all(
    client: Client,
    resource: Resource,
    decode: Callable[[bytes], T | None],
    *,
    unseen: dict[str, str] | None = None,
    odd: dict[str, list[str]] | None = None,
) -> list[T]:
    """All objects of a collection, at once; for collections with few. `unseen` and `odd` are those of `list_once`."""
    collected: list[T] = []
    table = {resource: TableEntry(decode, collected.append, begin=collected.clear)}
    await list_once(client, table, unseen=unseen, odd=odd)
    return collected


async def list_once(
    client: Client,
    table: Table,
    *,
    unseen: dict[str, str] | None = None,
    odd: dict[str, list[str]] | None = None,
    progress: Progress | None = None,
) -> None:
    """List each collection of a table once, in the table's order.

    `unseen` gets, by a resource's name, why its collection cannot be read; one that does not exist is empty. `odd` gets, by the
    same name, the objects that cannot be read, and why. Without them the error is raised.
    """
    for resource, entry in table.items():
        number = await _count_objects(client, resource) if progress else 0
        try:
            with progress(resource.name, number) if progress else nullcontext() as report:
                await _fill(client, resource, entry, odd, report)
        except (KubeError, InvalidInput) as error:
            if unseen is None:
                raise
            note_unseen(unseen, resource.name, error)


def note_unseen(unseen: dict[str, str], name: str, error: Exception) -> None:
    """Note why something cannot be read, unless it is only not there."""
    if not isinstance(error, ApiError):
        unseen[name] = str(error)
    elif not error.is_not_found:
        unseen[name] = error.message


def note_odd(odd: dict[str, list[str]], name: str, raw: bytes | msgspec.Raw, error: Exception) -> None:
    """Note an object that cannot be read, by its name."""
    try:
        metadata = objects.decode_named(raw).metadata
        which = "/".join(part for part in (metadata.namespace, metadata.name) if part)
    except InvalidInput:
        which = "one without a name"
    odd.setdefault(name, []).append(f"{which}: {error}")


async def _fill(
    client: Client,
    resource: Resource,
    entry: TableEntry[Any],
    odd: dict[str, list[str]] | None,
    report: Callable[[int], object] | None,
) -> None:
    """List a collection into its entry; where the list begins again half-way, the entry does, too."""
    decode = entry.decode
    finish: Callable[[], object] = do_nothing

    def begin() -> Callable[[bytes], None]:
        nonlocal finish
        (take, finish), numbers = entry.start(), count(1)
        if odd is not None:
            odd.pop(resource.name, None)

        def read(raw: bytes) -> None:
            try:
                if (decoded := decode(raw)) is not None:
                    take(decoded)
            except InvalidInput as error:
                if odd is None:
                    raise
                note_odd(odd, resource.name, raw, error)
            if report is not None:
                report(next(numbers))

        return read

    query: Query = {**resource.query, "limit": PAGE}
    await client.with_retries(lambda: read_list(client, resource.path, query, begin))
    finish()


async def _count_objects(client: Client, resource: Resource) -> int:
    """How many objects a collection has; 0 when the server does not count them."""
    page = await client.get(resource.path, {"limit": 1})
    try:
        return 1 + objects.decode_list(page).metadata.remaining_item_count
    except objects.InvalidObject:
        return 0
