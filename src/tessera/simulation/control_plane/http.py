"""A small HTTP/1.1 server: requests in, responses or endless streams out.

Only what a stand-in needs: bodies of bounded size, kept-alive connections, chunked streams, a stop that leaves
nothing behind. It faces programs on the same machine, not the world.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import httptools

_MAX_BODY: Final = 8 * 1024 * 1024  # the API server takes 3 MiB; reviews for webhooks are larger
_READ: Final = 256 * 1024
_BACKLOG: Final = 128


class HangUp(Exception):  # not an error: what a server does that dies
    """Raised by a handler or a stream: the connection is cut, without another byte."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read whole."""

    method: str
    path: str  # decoded
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    certificate: Mapping[str, object] | None = None  # the client's, as ssl reports it


@dataclass(frozen=True, slots=True)
class Response:
    """An answer in one piece."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that comes piece by piece, for as long as it takes."""

    pieces: AsyncIterator[bytes]
    content_type: str = "application/json"


Handler = Callable[[Request], Awaitable[Response | Stream]]


@dataclass(slots=True)
class _Parsed:
    """What the parser found of one request."""

    url: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    parser: Any = None
    complete: bool = False
    keep: bool = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
        self.keep = self.parser.should_keep_alive()  # known only now: the parser forgets it


class HttpServer:
    """Serves a handler until it is stopped; it can be started again, on the same port."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._listener: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._tls: ssl.SSLContext | None = None
        self.host = "127.0.0.1"
        self.port = 0
        self.taken = 0  # connections so far

    @property
    def url(self) -> str:
        """`https://127.0.0.1:40123`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """Listen; port 0 picks a free one."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.settimeout(0)
        self._tls, self.host, self.port = tls, host, self._listener.getsockname()[1]
        # not asyncio's server: that one loses connections which are on their way when it is closed
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def stop(self) -> None:
        """Close the listener and cut every connection."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self.hang_up()

    async def hang_up(self) -> None:
        """Cut every connection, but go on listening."""
        connections = dict(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for connection in connections.values():
            connection.close()  # of those whose task had not begun

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BACKLOG):
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # none left, or gone again already
            connection.settimeout(0)
            task = asyncio.create_task(self._serve(connection))
            self._connections[task] = connection
            self.taken += 1
            task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
        except OSError:
            connection.close()  # TLS that did not come about
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (HangUp, OSError, httptools.HttpParserError):
            pass  # gone, or never spoke HTTP: there is nobody left to answer
        finally:
            if not writer.is_closing():
                transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        parsed = _Parsed()
        parser = parsed.parser = httptools.HttpRequestParser(parsed)
        while not parsed.complete:
            data = await reader.read(_READ)
            if not data:
                return False
            parser.feed_data(data)
            if len(parsed.body) > _MAX_BODY:
                await _write(writer, Response(b"", 413), keep=False)
                return False
        url = urlsplit(parsed.url.decode("ascii", "replace"))
        request = Request(
            parser.get_method().decode("ascii"),
            unquote(url.path),
            dict(parse_qsl(url.query, keep_blank_values=True)),
            parsed.headers,
            bytes(parsed.body),
            writer.get_extra_info("peercert"),
        )
        answer = await self._handler(request)
        if isinstance(answer, Response):
            await _write(writer, answer, keep=parsed.keep)
            return parsed.keep
        await _write_stream(reader, writer, answer)
        return False


async def _write(writer: asyncio.StreamWriter, response: Response, *, keep: bool) -> None:
    lines = [
        f"HTTP/1.1 {response.status} {_phrase(response.status)}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers),
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode("latin-1") + response.body)
    await writer.drain()
    if not keep:
        writer.close()


async def _write_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {stream.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode("latin-1"))

    async def copy() -> None:
        pieces = stream.pieces
        async with aclosing(pieces) as pieces:  # type: ignore[type-var] # streams are written as generators
            async for piece in pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    copying = asyncio.create_task(copy())
    leaving = asyncio.create_task(reader.read(1))  # a client that closes a stream ends it
    try:
        await asyncio.wait({copying, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if copying.done():
            copying.result()
    finally:
        for task in (copying, leaving):
            task.cancel()
        await asyncio.gather(copying, leaving, return_exceptions=True)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
