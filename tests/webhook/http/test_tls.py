"""TLS, record by record: handshakes and farewells in any order, in any pieces."""

import contextlib
import socket
import ssl
from collections.abc import Iterator

import pytest

from tessera.webhook.http.messages import Limits
from tests.webhook.support import DEADLINE, Client, Live, request


class Raw:
    """A TLS client that sees the encrypted bytes, and may do with them what it wants."""

    def __init__(self, port: int, piece: int = 1 << 20) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.piece = piece
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)
        self._do(self.tls.do_handshake)

    def _do(self, step):
        """Until it is done, however often bytes have to go back and forth."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self.flush()
                data = self.socket.recv(65536)
                self.incoming.write(data) if data else self.incoming.write_eof()
            else:
                self.flush()
                return done

    def flush(self) -> None:
        data = self.outgoing.read()
        for at in range(0, len(data), self.piece):
            self.socket.sendall(data[at : at + self.piece])

    def write(self, data: bytes) -> None:
        """Encrypt, without sending."""
        self.tls.write(data)

    def close_notify(self) -> None:
        """Say that nothing more will come, without sending it."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()

    def rest(self) -> bytes:
        """All that comes until the server's close notify; anything but a close notify is an error."""
        said = b""
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while piece := self._do(lambda: self.tls.read(65536)):
                said += piece
        return said


@contextlib.contextmanager
def raw(live: Live, piece: int = 1 << 20) -> Iterator[Raw]:
    client = Raw(live.port, piece)
    with client.socket:
        yield client


@pytest.fixture(scope="module")
def live():
    with Live() as server:
        yield server


@pytest.mark.parametrize("piece", [1, 2, 7, 100])
def test_in_pieces(live, piece):
    """A handshake and a request that come in pieces are put together."""
    with raw(live, piece) as client:
        client.write(request(b"x" * 300, headers=b"Connection: close\r\n"))
        client.flush()
        assert client.rest().endswith(b"x" * 300)


def test_many_records(live):
    """A body in many small records, and one in many large ones, arrive whole."""
    with raw(live) as client:
        body = bytes(range(256)) * 800
        for at, octet in enumerate(request(body)):
            client.write(bytes([octet]))
            if at % 5000 == 0:
                client.flush()
        client.write(request(body, headers=b"Connection: close\r\n"))
        client.flush()
        said = client.rest()
        assert said.count(body) == 2


def test_clean_farewell(live):
    """The last answer is followed by TLS's own end: the client knows that nothing was cut off."""
    with live.connect() as client:
        client.socket.suppress_ragged_eofs = False
        client.send(request(b"last", headers=b"Connection: close\r\n"))
        assert client.answer().body == b"last"
        assert client.socket.recv(1) == b""
    live.until(lambda: not live.listener.connections)


@pytest.mark.parametrize("others", [0, 2])
def test_asks_and_leaves(live, others):
    """A client that says close notify right behind its request, as in a pipe, still gets its answer."""
    with contextlib.ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(live.connect()).post(b"x")
        with raw(live) as client:
            client.write(request(b"question"))
            client.close_notify()
            client.flush()
            client.socket.shutdown(socket.SHUT_WR)
            assert client.rest().endswith(b"question")
    live.until(lambda: not live.listener.connections)


@pytest.mark.parametrize("others", [0, 2])
def test_asks_and_leaves_without_tls(others):
    """The same on a plain connection."""
    with Live(tls=False) as live, contextlib.ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(live.connect()).post(b"x")
        with live.connect() as client:
            client.send(request(b"question"))
            client.socket.shutdown(socket.SHUT_WR)
            assert client.answer().body == b"question"
            assert client.rest() == b""


def test_sends_on_behind_the_end(live):
    """What comes after the last answer is thrown away, and the end is as clean."""
    with raw(live) as client:
        client.write(request(b"last", headers=b"Connection: close\r\n"))
        client.write(request(b"ignored") * 10)
        client.flush()
        assert client.rest().endswith(b"\r\n\r\nlast")
        client.write(request(b"ignored") * 10)
        client.close_notify()
        client.flush()
    live.until(lambda: not live.listener.connections)


def test_tampered(live):
    """A record that the client did not encrypt ends the connection, and no other."""
    with raw(live) as client, live.connect() as other:
        client.write(request(b"x"))
        record = bytearray(client.outgoing.read())
        record[-1] ^= 1
        client.socket.sendall(record)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            client.rest()
        assert other.post(b"next").body == b"next"
    live.until(lambda: not live.listener.connections)


def test_cut_off(live):
    """A client that goes in the middle of a record leaves nothing behind."""
    with raw(live) as client:
        client.write(request(b"x"))
        client.socket.sendall(client.outgoing.read()[:-5])
    live.until(lambda: not live.listener.connections)
    with raw(live) as client:
        client.write(request(b"x"))
        client.socket.sendall(client.outgoing.read()[:-5])
        client.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )  # a reset, not an end
    live.until(lambda: not live.listener.connections)


def test_slow_handshake():
    """Who does not shake hands in time is left behind, whether it says nothing or half of it."""
    with Live() as live, contextlib.ExitStack() as stack:
        silent, half = (
            stack.enter_context(socket.create_connection(("127.0.0.1", live.port))) for _ in range(2)
        )
        half.sendall(b"\x16\x03\x01\x01\x00\x01")
        live.until(lambda: len(live.listener.handshakes) == 2)
        live.sweep(9)
        assert len(live.listener.handshakes) == 2
        live.sweep(11)
        live.until(lambda: not live.listener.handshakes)
        assert live.listener.counters.handshake_failures == 2
        for one in (silent, half):
            one.settimeout(DEADLINE)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""


def test_arrivals_are_limited():
    """Who says nothing takes no place from who does."""
    with Live(limits=Limits(connections=3)) as live, contextlib.ExitStack() as stack:
        silent: list[socket.socket] = []
        for _ in range(3):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", live.port))))
            live.until(lambda: len(live.listener.handshakes) == len(silent))
        with live.connect() as client:
            assert client.post(b"x").body == b"x"
        assert live.listener.counters.refused == 1
        assert len(live.listener.handshakes) == 2


@pytest.mark.parametrize("tls", [True, False])
def test_one_gone_among_many(tls):
    """A connection that ends while its answer waits for the others' takes none of theirs with it."""
    with Live(tls=tls) as live, contextlib.ExitStack() as stack:
        gone = stack.enter_context(live.connect())
        gone.post(b"first")
        (connection,) = live.listener.connections
        others = [stack.enter_context(live.connect()) for _ in range(3)]
        for client in others:
            client.post(b"second")

        async def all_at_once() -> None:
            for one in (connection, *live.listener.connections - {connection}):
                one.data_received(request(b"waits"))
            connection.abort()

        live.run(all_at_once())
        for client in others:
            assert client.answer().body == b"waits"
        assert gone.rest() == b""


def test_gone_before_its_answer():
    """The same when the client itself has gone, with a reset."""
    with Live() as live, live.connect(), Client(live.port) as other:
        gone = Client(live.port)
        for _ in range(50):
            gone.send(request(b"x" * 5000))
        gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        gone.socket.close()
        for n in range(20):
            assert other.post(b"%d" % n).body == b"%d" % n
        live.until(lambda: len(live.listener.connections) == 2)
        assert live.faults == []
