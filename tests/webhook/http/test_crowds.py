"""Many clients, or one that wants everything at once: the others are served meanwhile, and memory is bounded."""

import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading

import pytest

from tessera.webhook.certificates.served import InvalidCertificate, ServedCertificate
from tessera.webhook.http.connection import Connection
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import MIB, Limits, Response, Route
from tests.webhook.http.test_header_cache import LOOP, Paper, make
from tests.webhook.support import DEADLINE, PAIR, Live, context_of, echo, make_pair, request


class From(Paper):
    """A client's transport, from an address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._extra = {"peername": (address, 40000)}


def join(listener: Listener, address: str = "10.0.0.1") -> Connection:
    connection = Connection(listener)
    connection.connection_made(From(address))
    return connection


def feed(*said: tuple[Connection, bytes]) -> None:
    """Have connections receive this, in one round of the event loop; then as many rounds as it takes."""

    async def say() -> None:
        for connection, data in said:
            connection.data_received(data)
        while any(one._pending for one, _ in said):
            await asyncio.sleep(0)

    LOOP.run_until_complete(say())


def unfinished(size: int) -> bytes:
    """A request whose body of 6 MiB has come in part."""
    return request(bytes(6 * MIB))[: 100 + size]


def test_fault_43_unfinished_bodies_share_a_budget():
    """Sixty bodies that never end take no more than the budget; a client that was served keeps its place."""
    listener = make(limits=Limits(reading_bytes=10 * MIB))
    good = join(listener, "10.0.0.2")
    feed((good, request(b"x")))
    feed((good, unfinished(MIB)))
    bad, large = [join(listener) for _ in range(60)], unfinished(5 * MIB)
    for one in bad:
        feed((one, large))
        assert listener.buffered <= 10 * MIB
    assert good.buffered
    assert not good.ended
    assert sum(not one.ended for one in bad) <= 1
    assert listener.counters.crowded_out >= 59
    refused = next(one for one in bad if one.ended)
    assert isinstance(refused._transport, Paper)
    assert refused._transport.written.startswith(b"HTTP/1.1 503 Service Unavailable")
    for one in (*bad, good):
        one.connection_lost(None)
    assert listener.buffered == 0


def test_among_served_clients_the_address_that_sends_most_is_refused():
    """Fair shares: the address that sends most at once makes room."""
    listener = make(limits=Limits(reading_bytes=10 * MIB))
    crowd, single = [join(listener, "10.0.0.1") for _ in range(4)], join(listener, "10.0.0.2")
    for one in (*crowd, single):
        feed((one, request(b"x")))
    feed((single, unfinished(3 * MIB)))
    for one in crowd:
        feed((one, unfinished(2 * MIB)))
    assert single.buffered
    assert not single.ended
    assert [one.ended for one in crowd].count(True) == 1


def test_clients_that_were_never_served_make_room_first():
    """At the limit of connections: first who never asked anything, then the address that has most."""
    listener = make(limits=Limits(connections=4))
    served = [join(listener, address) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.2")]
    for one in served:
        feed((one, request(b"x")))
    idle = join(listener, "10.0.0.3")
    newcomer = join(listener, "10.0.0.4")
    assert (idle.ended, newcomer.ended) == (True, False)
    feed((newcomer, request(b"x")))
    another = join(listener, "10.0.0.5")
    assert [one.ended for one in served] in ([False, True, False], [False, False, True])
    assert (newcomer.ended, another.ended) == (False, False)


def test_fault_43_many_requests_at_once_take_turns():
    """One client sends a quarter of a MiB of requests; another's, which comes later, is not answered after all of them."""
    order: list[bytes] = []

    def slow(body: bytes) -> Response:
        order.append(body)
        until = LOOP.time() + 0.0005
        while LOOP.time() < until:
            pass
        return Response(200, b"")

    listener = Listener({b"/mutate": Route(slow, b"POST", json=True)}, Limits())
    greedy, modest = join(listener), join(listener)
    feed((greedy, request(b"many") * 200), (modest, request(b"one")))
    assert order.count(b"many") == 200
    assert order.index(b"one") < 30


def test_fault_43_large_reviews_take_turns():
    """Eight reviews of half a MiB at once: a small one that comes after them waits for one of them at most."""
    order: list[int] = []

    def slow(body: bytes) -> Response:
        order.append(len(body))
        until = LOOP.time() + (0.008 if len(body) > 100 else 0)
        while LOOP.time() < until:
            pass
        return Response(200, b"")

    listener = Listener({b"/mutate": Route(slow, b"POST", json=True)}, Limits())
    large, small = [join(listener) for _ in range(8)], join(listener)
    feed(*((one, request(bytes(500_000))) for one in large), (small, request(b"one")))
    assert order == [500_000, 3, *[500_000] * 7]


@pytest.mark.parametrize("tls", [True, False])
def test_pipelined_answers_come_in_order(tls):
    """However many requests come at once, each is answered, in order, and what follows them too."""
    with Live(tls=tls) as live, live.connect() as client:
        for bodies in ([b"%d" % number for number in range(700)], [bytes([n]) * 30_000 for n in range(8)]):
            client.send(b"".join(map(request, bodies)))
            assert [client.answer().body for _ in bodies] == bodies
        assert client.post(b"last").body == b"last"
        assert live.listener.buffered == 0


@pytest.mark.parametrize("tls", [True, False])
def test_fault_43_requests_that_wait_share_the_budget(tls):
    """Clients that send much and take no answers keep no more than the budget, all together."""
    routes = {b"/large": Route(lambda _: Response(200, bytes(200_000)))}
    limits = Limits(reading_bytes=MIB)
    with Live(routes, limits, tls=tls) as live, contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(live.connect())
            client.socket.settimeout(0.2)
            with contextlib.suppress(OSError):
                client.send(b"GET /large HTTP/1.1\r\n\r\n" * 10_000)
            assert live.listener.buffered <= MIB
        live.until(lambda: live.listener.counters.crowded_out > 0)


@pytest.mark.parametrize("tls", [True, False])
def test_fault_43_answers_that_are_not_read_share_the_budget(tls):
    """Clients that ask and read nothing: what waits for them is bounded for all together, and one that reads is served."""
    routes = {
        b"/large": Route(lambda _: Response(200, bytes(50_000))),
        b"/small": Route(lambda _: Response(200, b"ok")),
    }
    with Live(routes, Limits(reading_bytes=MIB), tls=tls) as live, contextlib.ExitStack() as stack:

        async def buffered() -> int:  # between two steps of the server, not in the middle of one
            return live.listener.buffered

        async def kept() -> int:
            return sum(one._transport.get_write_buffer_size() for one in live.listener.connections)

        good = stack.enter_context(live.connect())
        for _ in range(40):
            client = stack.enter_context(live.connect())
            client.socket.settimeout(0.2)
            with contextlib.suppress(OSError):  # refused
                client.send(b"GET /large HTTP/1.1\r\n\r\n" * 1000)
            good.send(b"GET /small HTTP/1.1\r\n\r\n")
            assert good.answer().body == b"ok"
            assert live.run(buffered()) <= MIB
            assert live.run(kept()) < 2 * MIB
        live.until(lambda: live.listener.counters.crowded_out > 0)
        assert not live.faults


def test_sockets_have_small_buffers():
    """The kernel keeps tens of KiB for a connection, not megabytes: they are the container's memory too."""
    with Live() as live, live.connect() as client:
        client.post(b"x")
        (one,) = live.listener.connections
        own = one._transport.get_extra_info("socket")
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            assert own.getsockopt(socket.SOL_SOCKET, option) == 2 * 48 * 1024


def test_many_small_records_are_no_deep_stack():
    """Hundreds of records in one piece, two requests in each, are read in a loop."""
    with Live() as live, live.connect() as client:
        client.post(b"x")
        gate, blocked = threading.Event(), threading.Event()

        async def block() -> None:
            blocked.set()
            gate.wait(DEADLINE)

        blocking = asyncio.run_coroutine_threadsafe(block(), live._thread.loop)
        blocked.wait(DEADLINE)
        for number in range(600):
            client.send(request(b"%d" % number) * 2)
        gate.set()
        blocking.result(DEADLINE)
        assert [client.answer().body for _ in range(1200)] == [b"%d" % (n // 2) for n in range(1200)]
        assert not live.faults


def test_pipelined_and_then_the_end():
    """A client that says close notify behind its requests is answered all the same."""
    with Live() as live, live.connect() as client:
        client.send(request(b"x") * 200)  # whose answers the kernel keeps, as the client reads none
        assert isinstance(client.socket, ssl.SSLSocket)
        with contextlib.suppress(OSError):
            client.socket.unwrap()
        live.until(lambda: not live.listener.connections)


def test_clients_must_show_a_certificate():
    """With `--client-ca` only clients with a certificate of that authority are served, also after a new certificate."""
    client, stranger = make_pair("api-server"), make_pair("somebody")
    served = ServedCertificate(clients=client.certificate.decode())
    served.change(context_of(PAIR))
    with Live({b"/mutate": Route(echo, b"POST", json=True)}, served=served) as live:
        for shown, answered in ((client, True), (stranger, False), (None, False)):
            context = _anonymous()
            if shown is not None:
                show(context, shown.certificate + shown.key)
            assert asks_with(context, live.port) is answered
        served.change(context_of(PAIR))
        assert not asks_with(_anonymous(), live.port)


def test_client_authorities_that_are_none():
    """A file without certificates is said at the start."""
    with pytest.raises(InvalidCertificate, match="no certificates of client authorities in PEM"):
        ServedCertificate(clients="nothing")


def _anonymous() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def show(context: ssl.SSLContext, pem: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def asks_with(context: ssl.SSLContext, port: int) -> bool:
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as plain,
            context.wrap_socket(plain) as secure,
        ):
            secure.sendall(request(b"x"))
            return secure.recv(1000).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
