"""One HTTP/1.1 connection to an API server, read as it comes.

The parser is llhttp (httptools); this module adds what the parser leaves open: bounds, truncation, lines.
"""

import asyncio
import ssl
from typing import Final

import httptools

from tessera.kube.errors import BadResponse, Unreachable

_READ: Final = 256 * 1024
_MAX_HEAD: Final = 64 * 1024  # Go's servers send a few hundred bytes
# etcd takes objects of 1.5 MiB, some clusters raise that a few times; twice that again is no object but a fault
MAX_LINE: Final = 16 * 1024 * 1024
# 500 objects of a list are a few MiB; what comes in one piece (no paging, no streaming) must end somewhere
MAX_BODY: Final = 64 * 1024 * 1024


class Connection:
    """A connection that carries one request and its response at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self.peer = peer
        self.idle_since = 0.0  # when it went back to the pool
        self.identity: tuple[bytes | None, bytes | None] = (None, None)  # whom the other side takes us for
        self.read_timeout: float | None = (
            None  # seconds to wait for any next bytes; None: that is the reader's
        )
        self._reader = reader
        self._writer = writer
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self.headers: dict[str, str] = {}  # of the response, names in lower case
        self._head_done = False
        self._complete = False
        self._keep = False
        self._surplus = False
        self._body: list[bytes] = []
        self.status = 0
        self.answered = False  # whether any byte of the response has come

    # what the parser calls
    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete:
            key, text = name.decode("latin-1").lower(), value.decode(errors="replace")
            if key == "warning" and key in self.headers:  # a line for each; of other headers the last counts
                text = f"{self.headers[key]}, {text}"
            self.headers[key] = text

    def on_headers_complete(self) -> None:
        if not self._complete:
            self.status = self._parser.get_status_code()
            self._head_done = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._complete:
            return
        if self.status >= 200:
            self._complete = True
            self._keep = self._parser.should_keep_alive()  # known only now: the parser forgets it
        else:
            self.headers.clear()  # 100 Continue and its kin: the real response follows

    @property
    def reusable(self) -> bool:
        """Whether the response was read whole and the connection may carry another."""
        return self._keep and not self._surplus and not self._body and self.alive

    @property
    def alive(self) -> bool:
        """Whether the other side still seems to be there."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def send(self, request: bytes) -> None:
        """Send one request; the response before it must have been read."""
        self._reset()
        try:
            async with asyncio.timeout(self.read_timeout):
                self._writer.write(request)
                await self._writer.drain()
        except OSError as error:
            raise self._lost(error) from error

    async def read_head(self) -> None:
        while not self._head_done:
            if self._head_bytes > _MAX_HEAD:
                raise BadResponse(f"{self.peer} sent more than {_MAX_HEAD // 1024} KiB of headers")
            await self._feed()

    async def read(self) -> bytes:
        """The next piece of the body, empty at its end."""
        while not self._body:
            if self._complete:
                return b""
            await self._feed()
        pieces, self._body = self._body, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_all(self, most: int = MAX_BODY) -> bytes:
        """The whole body, if it is not larger than `most`."""
        body = bytearray()
        while piece := await self.read():
            if len(body) + len(piece) > most:
                raise BadResponse(f"{self.peer} sent a body of more than {most // 2**20} MiB")
            body += piece
        return bytes(body)

    async def _feed(self) -> None:
        try:
            async with asyncio.timeout(self.read_timeout):
                data = await self._reader.read(_READ)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            if self._head_done and not {"content-length", "transfer-encoding"} & self.headers.keys():
                self._complete = True  # a body that ends with the connection
                return
            raise Unreachable("closed", f"{self.peer} closed the connection in the middle of an answer")
        self.answered = True
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadResponse(f"{self.peer} does not speak HTTP/1.1: {error}") from error

    def _lost(self, error: OSError) -> Unreachable:
        if isinstance(error, ssl.SSLError):
            return Unreachable("tls", f"TLS with {self.peer} failed: {error.reason or error}")
        if isinstance(error, TimeoutError):
            waited = f" within {self.read_timeout:g} s" if self.read_timeout is not None else ""
            return Unreachable("timeout", f"{self.peer} did not answer{waited}")
        return Unreachable("closed", f"the connection to {self.peer} was lost: {error.strerror or error}")

    def abort(self) -> None:
        """Close at once; nothing is waited for."""
        self._writer.transport.abort()


class BodyLines:
    """The complete lines of a response's body, however they were cut on the way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest = bytearray()

    async def batch(self) -> list[bytes]:
        """At least one line, and all that have come with it; an empty list at the end."""
        while piece := await self._connection.read():
            start, lines = 0, []
            while (end := piece.find(b"\n", start)) >= 0:
                line = piece[start:end]
                if self._rest:
                    line = bytes(self._rest) + line
                    self._rest.clear()
                if line:
                    lines.append(line)
                start = end + 1
            self._rest += piece[start:]
            if len(self._rest) > MAX_LINE:
                raise BadResponse(f"{self._connection.peer} sent a line of more than {MAX_LINE // 2**20} MiB")
            if lines:
                return lines
        if self._rest:
            raise Unreachable("closed", f"{self._connection.peer} ended a stream in the middle of a line")
        return []

    def abort(self) -> None:
        """Cut the stream: a reader that waits for its next line gets an error."""
        self._connection.abort()
