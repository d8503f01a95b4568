"""A server on loopback in a thread of its own, and a client that may misbehave."""

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import uvloop
from e2e.cluster.pki import PemPair, make_certificate

from tessera.serving.address import Address
from tessera.webhook.certificates.served import ServedCertificate, server_context
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import MIB, Limits, Response, Route

T = TypeVar("T")
DEADLINE = 20.0  # seconds after which a test that waits has failed


def make_pair(name: str = "localhost", days: int = 30) -> PemPair:
    """Make a self-signed certificate that ends after this number of days."""
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    return make_certificate(name, hosts=(name, "127.0.0.1"), ends=ends)


def context_of(pair: PemPair) -> ssl.SSLContext:
    return server_context(pair.certificate, pair.key)


PAIR = make_pair()


def echo(body: bytes) -> Response:
    return Response(200, body)


class LoopThread:
    """An event loop running elsewhere, as the webhook's does."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(DEADLINE)
        self.loop.close()


class Live:
    """A server that really listens, over TLS unless told otherwise."""

    def __init__(
        self,
        routes: dict[bytes, Route] | None = None,
        limits: Limits | None = None,
        served: ServedCertificate | None = None,
        tls: bool = True,
    ) -> None:
        self.faults: list[Exception] = []
        self.served = served or ServedCertificate(context_of(PAIR))
        self.tls = tls
        self.listener = Listener(
            routes or {b"/mutate": Route(echo, b"POST", json=True), b"/livez": Route(lambda _: LIVE)},
            limits or Limits(),
            self.served.context if tls else None,
            self.faults.append,
        )
        self._thread = LoopThread()
        self.run = self._thread.run
        self.port = self.run(self._start()).port

    async def _start(self) -> Address:
        return self.listener.start(Address("127.0.0.1", 0))

    def sweep(self, seconds_later: float) -> None:
        """Look at deadlines as if that much time had passed."""

        async def sweep() -> None:
            self.listener.sweep(self._thread.loop.time() + seconds_later)

        self.run(sweep())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the server will do by itself."""

        async def wait() -> None:
            async with asyncio.timeout(DEADLINE):
                while not condition():
                    await asyncio.sleep(0.005)

        self.run(wait())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self.listener.abort()
            await asyncio.sleep(0)

        self.run(end())
        self._thread.stop()

    def connect(self) -> "Client":
        return Client(self.port, tls=self.tls)


LIVE = Response(200, b"ok\n", b"text/plain; charset=utf-8")


class Client:
    """A connection on which anything can be said."""

    def __init__(self, port: int, tls: bool = True, trust: bytes | None = None) -> None:
        self._read = b""
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as API servers do
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if trust is not None:
                context.load_verify_locations(cadata=trust.decode())
            else:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            context.set_alpn_protocols(["h2", "http/1.1"])
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, method: str = "POST") -> "Reply":
        """Read one answer."""
        while b"\r\n\r\n" not in self._read:
            self._read += self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        size = 0 if method == "HEAD" else int(headers["Content-Length"])
        pieces, missing = [self._read], size - len(self._read)
        while missing > 0:
            pieces.append(self._more())
            missing -= len(pieces[-1])
        whole = b"".join(pieces)
        body, self._read = whole[:size], whole[size:]
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        return Reply(int(status), headers, body)

    def _more(self) -> bytes:
        piece = self.socket.recv(MIB)
        if not piece:
            raise ConnectionError(f"closed in the middle of an answer: {self._read!r}")
        return piece

    def post(self, body: bytes, path: bytes = b"/mutate", headers: bytes = b"") -> "Reply":
        self.send(request(body, path, headers))
        return self.answer()

    def rest(self) -> bytes:
        """Whatever comes until the server closes; a reset counts as an end."""
        pieces = [self._read]
        with contextlib.suppress(ConnectionError):
            while piece := self.socket.recv(65536):
                pieces.append(piece)
        return b"".join(pieces)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


def request(body: bytes, path: bytes = b"/mutate", headers: bytes = b"") -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
        % (
            path,
            len(body),
            headers,
            body,
        )
    )
