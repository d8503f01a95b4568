"""Clients that do what no client should, and the others who must not suffer for it."""

import asyncio
import contextlib
import hashlib
import hmac
import socket
import ssl
import struct
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tessera.webhook.http.connection import Connection
from tessera.webhook.http.messages import MIB, Limits, Response, Route
from tessera.webhook.http.tls import TlsTransport
from tests.webhook.http.test_header_cache import Paper, make, talk
from tests.webhook.support import DEADLINE, Live, request

_APPLICATION, _HANDSHAKE = 23, 22
_HALF_A_KEY_UPDATE = b"\x18\x00\x00\x01"  # the head of the message; its only byte is withheld


class Forger:
    """A client of TLS 1.3 that encrypts records of any kind, as OpenSSL would never send them."""

    def __init__(self, port: int, keys: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        keys.write_text("")
        context.keylog_filename = str(keys)
        self.tls = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE))
        self.socket = socket.socket(fileno=socket.dup(self.tls.fileno()))
        self.socket.settimeout(DEADLINE)
        secret = next(
            bytes.fromhex(line.split()[2])
            for line in keys.read_text().splitlines()
            if line.startswith("CLIENT_TRAFFIC_SECRET_0")
        )
        name, _, _ = self.tls.cipher() or ("", "", 0)
        self._hash, size = (hashlib.sha384, 32) if "256_GCM" in name else (hashlib.sha256, 16)
        self._size = size
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._gcm = AESGCM(self._expand(secret, b"key", self._size))
        self._iv = int.from_bytes(self._expand(secret, b"iv", 12))
        self._count = 0

    def key_update(self) -> bytes:
        """A new key, and the wish for one from the other side."""
        record = self.record(_HANDSHAKE, b"\x18\x00\x00\x01\x01")
        self._use(self._expand(self._secret, b"traffic upd", self._hash().digest_size))
        return record

    def _expand(self, secret: bytes, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = struct.pack(">HB", size, len(label)) + label + b"\0"
        return hmac.digest(secret, info + b"\1", self._hash)[:size]

    def record(self, kind: int, data: bytes) -> bytes:
        head = struct.pack(">BHH", _APPLICATION, 0x0303, len(data) + 17)
        nonce = (self._iv ^ self._count).to_bytes(12)
        self._count += 1
        return head + self._gcm.encrypt(nonce, data + bytes([kind]), head)

    def close(self) -> None:
        self.socket.close()
        self.tls.close()


@pytest.fixture
def forge(tmp_path):
    with contextlib.ExitStack() as stack:

        def connect(live: Live) -> Forger:
            forger = Forger(live.port, tmp_path / "keys")
            stack.callback(forger.close)
            return forger

        yield connect


def test_half_a_key_update_takes_nobodys_answer(forge):
    """Who begins a message of TLS's own and does not end it cannot be written to; every other client can."""
    with Live() as live, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(live.connect()) for _ in range(4)]
        for client in clients:
            client.post(b"x")
        others = set(live.listener.connections)
        bad = forge(live)
        bad.socket.sendall(bad.record(_APPLICATION, b"POST /mu") + bad.record(_HANDSHAKE, _HALF_A_KEY_UPDATE))
        live.until(lambda: any(c.busy for c in live.listener.connections))

        async def all_at_once() -> None:
            (worst,) = live.listener.connections - others
            worst.data_received(request(b"x").removeprefix(b"POST /mu"))
            for connection in others:
                connection.data_received(request(b"waits"))

        live.run(all_at_once())
        for client in clients:
            client.socket.settimeout(3)
            assert client.answer().body == b"waits"
        live.until(lambda: len(live.listener.connections) == 4)


def test_half_a_key_update_and_the_sweeper(forge):
    """Nor does such a client keep others from being swept."""
    with Live() as live, live.connect() as idle:
        idle.post(b"x")
        bad = forge(live)
        bad.socket.sendall(bad.record(_APPLICATION, b"POST /mu") + bad.record(_HANDSHAKE, _HALF_A_KEY_UPDATE))
        live.until(lambda: any(c.busy for c in live.listener.connections))
        live.sweep(31)
        live.until(lambda: len(live.listener.connections) == 1)
        live.sweep(121)
        assert idle.rest() == b""


def test_head_is_never_answered_with_a_body():
    """HEAD with a body is a strange request; the second is answered as the first."""
    listener = make()
    sent = b"HEAD /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    first, second = talk(listener, [sent]), talk(listener, [sent])
    assert first == second
    assert first[0].endswith(b"\r\n\r\n")


@pytest.mark.parametrize("headers", [b"", b"Expect: 100-continue\r\n"])
def test_refusals_are_counted(headers):
    """A request that is refused counts as such, whether or not it asked before it sent its body."""
    listener = make()
    talk(listener, [request(b"x", path=b"/nowhere", headers=headers)])
    assert listener.counters.bad_requests == 1


def test_a_burst_of_arrivals_is_limited():
    """However many connect at once and say nothing, no more than the limit are kept."""
    with Live(limits=Limits(connections=3)) as live, contextlib.ExitStack() as stack:

        async def at_once() -> None:
            # the loop stands still here: all of these are accepted in a row
            for _ in range(40):
                stack.enter_context(socket.create_connection(("127.0.0.1", live.port)))

        live.run(at_once())
        live.until(
            lambda: live.listener.counters.accepted == 40 and live.listener.counters.handshake_failures >= 37
        )
        assert len(live.listener.handshakes) == 3
        assert live.listener.counters.refused == 37


def test_who_shakes_hands_late_is_limited():
    """Handshakes that were begun below the limit do not lead beyond it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with Live(limits=Limits(connections=3)) as live, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(live.connect()).post(b"x")
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", live.port))) for _ in range(3)]
        live.until(lambda: len(live.listener.handshakes) == 3)
        for one in silent:
            stack.enter_context(context.wrap_socket(one))
        live.until(lambda: not live.listener.handshakes)
        assert len(live.listener.connections) == 3
        assert live.listener.counters.refused == 2


def test_asked_a_moment_before_the_end():
    """Who has asked within the last second may ask again while the server ends, whenever the sweeper last looked."""
    with Live() as live, live.connect() as client:
        client.post(b"x")

        async def end() -> None:
            live.listener.now -= 0.9  # the sweeper is about to look again
            (connection,) = live.listener.connections
            connection.data_received(request(b"asked"))
            await live.listener.drain(10)

        ending = threading.Thread(target=lambda: live.run(end()))
        ending.start()
        assert client.answer().body == b"asked"
        time.sleep(0.3)
        assert client.post(b"again").body == b"again"
        client.socket.close()
        ending.join()


class Ahead:
    """An event loop whose clock says so many seconds more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._seconds = loop, seconds

    def time(self) -> float:
        return self._loop.time() + self._seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def test_late_handshake_before_the_end():
    """A client that finishes its handshake only while the server ends has as long to ask as any other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with Live() as live, socket.create_connection(("127.0.0.1", live.port), timeout=DEADLINE) as late:
        live.until(lambda: bool(live.listener.handshakes))
        ending = threading.Thread(target=lambda: live.run(live.listener.drain(10)))
        ending.start()
        live.until(lambda: live.listener.draining)
        later = live.listener.now + 2.2
        live.listener._loop = cast("asyncio.AbstractEventLoop", Ahead(live.listener._loop, 2.2))
        live.until(lambda: live.listener.now >= later)
        with context.wrap_socket(late) as client:
            time.sleep(0.2)
            client.sendall(request(b"late"))
            assert client.recv(1000).endswith(b"Connection: close\r\n\r\nlate")
        ending.join()


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("others", [0, 2])
def test_many_questions_and_nobody_reads(tls, others):
    """Small requests with large answers, all in one piece: no more is answered than the client takes, nor for ever."""
    routes = {b"/large": Route(lambda _: Response(200, bytes(20_000)))}
    with Live(routes, tls=tls) as live, contextlib.ExitStack() as stack:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                for one in live.listener.connections:
                    most = max(most, one._transport.get_write_buffer_size())
                await asyncio.sleep(0.001)

        for _ in range(others):
            stack.enter_context(live.connect())
        client = stack.enter_context(live.connect())
        live.until(lambda: len(live.listener.connections) == others + 1)
        watching = asyncio.run_coroutine_threadsafe(watch(), live._thread.loop)
        client.socket.settimeout(1)
        with contextlib.suppress(OSError):
            client.send(b"GET /large HTTP/1.1\r\n\r\n" * 10_000)
        live.until(lambda: sum(one._stalled for one in live.listener.connections) == 1)
        live.sweep(31)
        live.until(lambda: len(live.listener.connections) == others)
        watching.cancel()
        assert most < 1.5 * MIB


class Deaf(Paper):
    """A transport whose other end takes nothing."""

    def pause_reading(self) -> None:
        pass


def test_time_to_read():
    """Who does not read has 30 seconds, also if more of its requests came along with the one that was too much."""
    listener = make()
    connection = Connection(listener)
    connection.connection_made(Deaf())
    for _ in range(2):
        connection.pause_writing()
        connection.data_received(b"GET /livez HTTP/1.1\r\n\r\n" * 3)
        assert connection.deadline == listener.now + 30


@pytest.mark.parametrize("known", [True, False])
def test_a_body_in_crumbs(known):
    """A body takes about its own size, however small the pieces are that it comes in."""
    listener = make()
    whole = request(bytes(50_000))
    if known:
        talk(listener, [whole])
    connection = Connection(listener)
    connection.connection_made(Paper())
    head = len(whole) - 50_000
    connection.data_received(whole[:head])
    tracemalloc.start()
    try:
        for at in range(head, len(whole) - 2, 2):
            connection.data_received(whole[at : at + 2])
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_new_keys_behind_the_end(forge):
    """What TLS would say to a client after our close notify is not kept for it."""
    with Live(limits=Limits(linger_seconds=DEADLINE)) as live:
        client = forge(live)
        client.socket.sendall(client.record(_APPLICATION, request(b"x", headers=b"Connection: close\r\n")))
        live.until(lambda: any(c.ended for c in live.listener.connections))
        (connection,) = live.listener.connections
        for _ in range(10):
            client.socket.sendall(b"".join(client.key_update() for _ in range(1000)))
        time.sleep(0.1)
        transport = connection._transport
        assert isinstance(transport, TlsTransport)
        assert transport._outgoing.pending < 50_000
