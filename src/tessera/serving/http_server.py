"""Listening, and the conversation with each client.

`/livez`, `/readyz` and `/metrics` of a program without a page of its own, over plain HTTP.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

from tessera.serving.address import Address
from tessera.serving.http_messages import (
    READ,
    Handler,
    HangUp,
    Headers,
    Limits,
    Parser,
    Request,
    Response,
    Stream,
    head,
    text,
)
from tessera.serving.metrics import CONTENT_TYPE, Family, exposition

# connections accepted in a row: few of the places, so that a crowd does not end a client before its request was read
_BATCH: Final = 4
_RETRY_SECONDS: Final = 1.0  # without file descriptors: how long until accepting is tried again
_LINGER_SECONDS: Final = 1.0  # for a refused client to read why: closing at once would reset the connection

_log: Final = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Client:
    """One connection, and what it does now."""

    connection: socket.socket
    address: str
    since: float  # when it came, became idle or began a request
    begun: bool = False  # its task runs, and closes the connection
    served: bool = False  # it had a response
    kept: bool = False  # the handler works for it, or it has a stream: it is not ended for a new client


class Server:
    """Serves one handler on one address; `headers` go with every response."""

    def __init__(self, handler: Handler, limits: Limits = Limits(), headers: Headers = ()) -> None:  # noqa: B008 # frozen
        self._handler = handler
        self._limits = limits
        self._headers = headers
        self._listener: socket.socket | None = None
        self._clients: dict[_Client, asyncio.Task[None]] = {}
        self._streams = 0
        self._tls: ssl.SSLContext | None = None
        self.address = Address("127.0.0.1", 0)
        self.accepted = 0  # connections so far

    @property
    def port(self) -> int:
        return self.address.port

    @property
    def url(self) -> str:
        """`https://127.0.0.1:40123`."""
        return f"{'https' if self._tls else 'http'}://{self.address}"

    async def start(self, address: Address, tls: ssl.SSLContext | None = None) -> Address:
        """Listen; the address that is returned has the port that was really taken."""
        self._listener = address.listen()
        self._tls, self.address = tls, Address(address.host, self._listener.getsockname()[1])
        # not asyncio's server: that one loses connections which are on their way when it is closed
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)
        return self.address

    async def stop(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        tasks = list(self._clients.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                connection, peer = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._rest(listener)
                return  # none left, or gone again already
            self.accepted += 1
            if len(self._clients) >= self._limits.connections and not self._make_room():
                connection.close()
                continue
            connection.settimeout(0)
            loop = asyncio.get_running_loop()
            client = _Client(connection, str(peer[0]), loop.time())
            self._clients[client] = task = loop.create_task(self._serve(client))
            task.add_done_callback(partial(self._gone, client))

    def _gone(self, client: _Client, _: asyncio.Task[None]) -> None:
        self._clients.pop(client, None)
        if not client.begun:
            client.connection.close()

    def _make_room(self) -> bool:
        """End one connection for a new one, so that no crowd keeps probes out; false if none can be ended.

        A client that never had a response goes first, then one of the address that has most connections. Of these, the one
        that has been idle, or has been sending its request, for the longest time.
        """
        open_to_end = [client for client in self._clients if not client.kept]
        if not open_to_end:
            return False
        share = Counter(client.address for client in open_to_end)
        ended = min(open_to_end, key=lambda one: (one.served, -share[one.address], one.since))
        self._clients.pop(ended).cancel()
        return True

    def _rest(self, listener: socket.socket) -> None:
        """Out of file descriptors: the listener stays readable, so not accepting for a while saves a busy loop."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def again() -> None:
            if self._listener is listener:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(_RETRY_SECONDS, again)

    async def _serve(self, client: _Client) -> None:
        client.begun = True
        loop, connection = asyncio.get_running_loop(), client.connection
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
        except OSError:  # TLS that did not come about, or not in time
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._converse(client, reader, writer)
            writer.close()
        except (HangUp, OSError, TimeoutError):
            pass  # gone, or too slow
        except Exception:  # noqa: BLE001 # a stream that failed half way cannot say so: the log does
            _log.exception("a stream failed")
        finally:
            if not writer.is_closing():
                transport.abort()

    async def _converse(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Requests and their responses, in order, until one side has enough."""
        loop, limits = asyncio.get_running_loop(), self._limits
        parser = Parser(limits, writer.get_extra_info("peercert"))
        until = loop.time() + limits.idle_seconds
        while True:
            idle = parser.idle
            async with asyncio.timeout_at(until):
                data = await reader.read(READ)
            if not data:
                return None
            for request in parser.feed(data):
                if isinstance(request, Response):
                    await self._write(writer, request, "GET", keep=False)
                    if writer.can_write_eof():
                        writer.write_eof()
                    async with asyncio.timeout(_LINGER_SECONDS):
                        return await _end_of(reader)
                client.kept = True
                response = await self._response(request)
                if isinstance(response, Stream):
                    if self._streams < limits.streams:
                        return await self._stream(request, response, reader, writer)
                    await response.pieces.aclose()
                    response = text(f"there are {limits.streams} streams already: try again later", 503)
                client.kept = False
                await self._write(writer, response, request.method, keep=request.keep_alive)
                client.served = True
                await asyncio.sleep(0)  # one that asks a thousand things at once takes turns with the others
                if not request.keep_alive:
                    return None
            if parser.idle:
                client.since = loop.time()
                until = client.since + limits.idle_seconds
            elif idle:
                client.since = loop.time()
                until = client.since + limits.request_seconds

    async def _response(self, request: Request) -> Response | Stream:
        try:
            return await self._handler(request)
        except HangUp:
            raise
        except Exception:  # noqa: BLE001 # the client gets an error, the log says why, and the others are served on
            _log.exception("%s %s failed", request.method, request.path)
            return text("this failed unexpectedly", 500)

    async def _write(
        self, writer: asyncio.StreamWriter, response: Response, method: str, *, keep: bool
    ) -> None:
        length = ("Content-Length", str(len(response.body)))
        connection = ("Connection", "keep-alive" if keep else "close")
        headers = (*self._headers, *response.headers, length, connection)
        body = b"" if method == "HEAD" else response.body
        writer.write(head(response.status, response.content_type, headers) + body)
        await self._taken(writer)

    async def _stream(
        self, request: Request, stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Piece by piece, until the stream ends or the client leaves."""
        chunked = request.version != "1.0"
        framing = ("Transfer-Encoding", "chunked") if chunked else ("Connection", "close")
        writer.write(head(200, stream.content_type, (*self._headers, framing)))

        async def copy() -> None:
            async with aclosing(stream.pieces) as pieces:
                if request.method == "HEAD":
                    return
                async for piece in pieces:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    await self._taken(writer)
            if chunked:
                writer.write(b"0\r\n\r\n")

        self._streams += 1
        copying, leaving = asyncio.create_task(copy()), asyncio.create_task(_end_of(reader))
        try:
            await asyncio.wait({copying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
        finally:
            self._streams -= 1
            for task in (copying, leaving):
                task.cancel()
            await asyncio.gather(copying, leaving, return_exceptions=True)

    async def _taken(self, writer: asyncio.StreamWriter) -> None:
        """Wait until the client has taken so much that more may be written."""
        async with asyncio.timeout(self._limits.request_seconds):
            await writer.drain()


async def _end_of(reader: asyncio.StreamReader) -> None:
    """Wait until the client closes; what it sends meanwhile is not read as requests any more."""
    while await reader.read(READ):
        pass


def health_server(
    families: Callable[[], Iterable[Family]],
    alive: Callable[[], bool] = lambda: True,
    ready: Callable[[], bool] = lambda: True,
    why_not: Callable[[], str] = lambda: "not yet",
) -> Server:
    """A server that answers probes and scrapes; `why_not` is the answer while one of the probes fails."""
    probes = {"/livez": alive, "/healthz": alive, "/readyz": ready}

    async def respond(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return text("only GET", 405)
        if request.path == "/metrics":
            return Response(exposition(families()), content_type=CONTENT_TYPE)
        if probe := probes.get(request.path):
            return text("ok") if probe() else text(why_not(), 503)
        return text("the paths are /livez, /readyz and /metrics", 404)

    return Server(respond)
