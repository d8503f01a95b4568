"""HTTP/1.1 for one page on this machine: small requests, small answers, and streams of events.

It listens on loopback alone, and answers only those who called it by a name of loopback: a page of the wide world that has
its own name point here (DNS rebinding) is refused, and so is a form that another page sends here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

from tessera.core.errors import TesseraError

HOST: Final = "127.0.0.1"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_BODY: Final = 256 * 1024  # a pod's YAML is a few KiB
_MOST_HEAD: Final = 16 * 1024
_MOST_CONNECTIONS: Final = 64
_REQUEST_SECONDS: Final = 10.0  # for a request to arrive
_IDLE_SECONDS: Final = 60.0  # between two of them
_READ: Final = 64 * 1024

# Everything the page needs comes from here, nothing else may; nobody may frame it, and no form may leave it.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request, read whole."""

    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in one piece."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on for as long as somebody listens."""

    pieces: AsyncIterator[bytes]
    content_type: str


Handler = Callable[[Request], Awaitable[Answer | Stream]]


class _Refused(Exception):  # an answer, not an error
    def __init__(self, status: int, sentence: str) -> None:
        self.answer = Answer(sentence.encode() + b"\n", status=status)
        super().__init__(sentence)


@dataclass(slots=True)
class _Parsed:
    url: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    head: int = 0
    complete: bool = False
    keep: bool = False
    parser: Any = None

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
        self.keep = self.parser.should_keep_alive()


class Server:
    """Serves a handler on loopback."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, port: int) -> str:
        """Listen; port 0 picks a free one. The page's address."""
        try:
            self._server = await asyncio.start_server(self._connected, HOST, port)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            if error.errno is not None and "in use" in why:
                why = "something else listens there; choose another with --port, or 0 for any"
            raise TesseraError(f"cannot listen on {HOST}:{port}: {why}") from error
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}/"

    async def stop(self) -> None:
        """Stop listening, and hang up on everybody."""
        if self._server is not None:
            self._server.close()
        for task, writer in tuple(self._connections.items()):
            writer.transport.abort()
            task.cancel()
        if self._connections:
            await asyncio.wait(tuple(self._connections))

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except _Refused as refusal:
            with contextlib.suppress(OSError):
                await _write(writer, refusal.answer, "GET", keep=False)
        except (OSError, TimeoutError):
            pass  # gone, or too slow
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request, keep = await _read(reader)
        if request is None:
            return False
        _check_origin(request)
        answer = await self._handler(request)
        if isinstance(answer, Answer):
            await _write(writer, answer, request.method, keep=keep)
            return keep
        await _write_stream(reader, writer, answer)
        return False


async def _read(reader: asyncio.StreamReader) -> tuple[Request | None, bool]:
    parsed = _Parsed()
    parsed.parser = httptools.HttpRequestParser(parsed)
    patience = _IDLE_SECONDS
    while not parsed.complete:
        async with asyncio.timeout(patience):
            data = await reader.read(_READ)
        if not data:
            return None, False
        patience = _REQUEST_SECONDS
        try:
            parsed.parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise _Refused(400, f"not HTTP/1.1: {error}") from error
        parsed.head += len(data)
        if len(parsed.body) > _MOST_BODY:
            raise _Refused(413, f"more than {_MOST_BODY // 1024} KiB")
        if parsed.head - len(parsed.body) > _MOST_HEAD + _READ:
            raise _Refused(431, "the headers are too large")
    path = urlsplit(parsed.url.decode("latin-1")).path
    method = parsed.parser.get_method().decode("ascii")
    return Request(method, path, parsed.headers, bytes(parsed.body)), parsed.keep


def _check_origin(request: Request) -> None:
    if _hostname(f"//{request.headers.get('host', '')}") not in _LOOPBACK:
        raise _Refused(403, "this page is for this machine: call it by 127.0.0.1 or localhost")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise _Refused(403, "asked by another page")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _head(status: int, content_type: str, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in _HEADERS.items()]
    return "\r\n".join([*lines, *more, "", ""]).encode("latin-1")


async def _write(writer: asyncio.StreamWriter, answer: Answer, method: str, *, keep: bool) -> None:
    length, ending = f"Content-Length: {len(answer.body)}", f"Connection: {'keep-alive' if keep else 'close'}"
    head = _head(answer.status, answer.content_type, length, ending)
    writer.write(head + (b"" if method == "HEAD" else answer.body))
    await writer.drain()


async def _write_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
    """Write piece by piece until the stream ends or the client leaves."""
    writer.write(_head(200, stream.content_type, "Connection: close"))

    async def copy() -> None:
        async for piece in stream.pieces:
            writer.write(piece)
            await writer.drain()

    copying, leaving = asyncio.create_task(copy()), asyncio.create_task(reader.read(1))
    try:
        await asyncio.wait({copying, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (copying, leaving):
            task.cancel()
        await asyncio.gather(copying, leaving, return_exceptions=True)
