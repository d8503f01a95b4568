"""The small server: its conversations, streams, limits and end."""

import asyncio
import contextlib
import logging
import socket
from contextlib import asynccontextmanager

import pytest

from tessera.core.errors import TesseraError
from tessera.serving.address import Address
from tessera.serving.http_messages import HangUp, Limits, Response, Stream, text
from tessera.serving.http_server import Server

LIMITS = Limits()
LOOPBACK = Address("127.0.0.1", 0)


async def count():
    for number in range(3):
        yield b"%d\n" % number


async def forever(closed):
    try:
        while True:
            yield b"again\n"
            await asyncio.sleep(0)
    finally:
        closed.set()


async def broken():
    yield b"half"
    raise ZeroDivisionError


class Handler:
    def __init__(self):
        self.closed = asyncio.Event()  # the endless stream
        self.paths = []

    async def __call__(self, request):
        self.paths.append(request.path)
        match request.path:
            case "/stream":
                return Stream(count(), "text/plain")
            case "/forever":
                return Stream(forever(self.closed), "text/plain")
            case "/broken-stream":
                return Stream(broken(), "text/plain")
            case "/bug":
                raise ZeroDivisionError
            case "/hang-up":
                raise HangUp
        return text(f"{request.method} {request.path} {request.body.decode()}".rstrip())


@asynccontextmanager
async def serving(limits=LIMITS, headers=(), address=LOOPBACK):
    handler = Handler()
    server = Server(handler, limits, headers)
    await server.start(address)
    try:
        yield server, handler
    finally:
        await server.stop()


async def said(port, sent, host="127.0.0.1"):
    """Everything that the server says to these bytes, until it closes."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(sent)
    try:
        return await reader.read()
    finally:
        writer.close()


def get(path, *headers, version="1.1"):
    return "\r\n".join([f"GET {path} HTTP/{version}", *headers, "", ""]).encode()


def bodies(answer):
    """The bodies of responses in a row."""
    found = []
    while answer:
        head, _, answer = answer.partition(b"\r\n\r\n")
        length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        found.append(answer[:length].decode())
        answer = answer[length:]
    return found


async def test_pipelined_requests_are_answered_in_order():
    """Three requests in one packet get three responses; the last says that it is the last."""
    async with serving() as (server, _):
        post = b"POST /b HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
        answer = await said(server.port, get("/a") + post + get("/c", "Connection: close"))
    assert bodies(answer) == ["GET /a\n", "POST /b hi\n", "GET /c\n"]
    assert answer.count(b"Connection: keep-alive") == 2


async def test_many_requests_at_once_take_turns():
    """A client that sends a thousand requests at once does not keep another one waiting for all of them."""
    async with serving() as (server, handler):
        many = get("/many") * 1000 + get("/many", "Connection: close")
        greedy = asyncio.create_task(said(server.port, many))
        while "/many" not in handler.paths:
            await asyncio.sleep(0)
        await said(server.port, get("/one", "Connection: close"))
        assert handler.paths.index("/one") < 500
        await greedy
    assert handler.paths.count("/many") == 1001


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (get("//["), 400, "not a path: Invalid IPv6 URL\n"),
        (get("/x" * 20_000), 431, "the headers are too large\n"),
        (get("/bug", "Connection: close"), 500, "this failed unexpectedly\n"),
        (b"HEAD /a HTTP/1.0\r\n\r\n", 200, ""),
    ],
)
async def test_one_response(sent, status, body, caplog):
    """What is wrong with a request is one sentence to the client, and the next client is served."""
    with caplog.at_level(logging.CRITICAL):
        async with serving(headers=(("X-Always", "yes"),)) as (server, _):
            head, _, rest = (await said(server.port, sent)).decode().partition("\r\n\r\n")
            assert (int(head.split()[1]), rest) == (status, body)
            assert "X-Always: yes" in head
            assert bodies(await said(server.port, get("/a", version="1.0"))) == ["GET /a\n"]


async def test_a_stream_is_chunked_or_ends_with_its_connection():
    """HTTP/1.1 has chunks, HTTP/1.0 does not know them."""
    async with serving() as (server, _):
        new = await said(server.port, get("/stream"))
        old = await said(server.port, get("/stream", version="1.0"))
        only_head = await said(server.port, b"HEAD /stream HTTP/1.0\r\n\r\n")
    assert new.endswith(b"\r\n\r\n2\r\n0\n\r\n2\r\n1\n\r\n2\r\n2\n\r\n0\r\n\r\n")
    assert old.endswith(b"\r\n\r\n0\n1\n2\n")
    assert only_head.endswith(b"\r\n\r\n")


async def test_a_client_that_leaves_ends_its_stream():
    """The generator behind a stream is closed when its client has gone, and when the server stops."""
    async with serving() as (server, handler):
        writers = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writers.append(writer)
            writer.write(get("/forever"))
            await reader.readuntil(b"again")
            assert not handler.closed.is_set()
            if handler.paths.count("/forever") == 1:
                writer.close()
                await handler.closed.wait()
                handler.closed.clear()
    assert handler.closed.is_set()
    writers[-1].close()


async def test_a_stream_that_fails_breaks_off(caplog):
    """The client sees no proper end, and the log says why."""
    async with serving() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get("/broken-stream"))
        answer = b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                answer += data
        writer.close()
    assert not answer.endswith(b"0\r\n\r\n")
    assert [record.getMessage() for record in caplog.records] == ["a stream failed"]


async def test_a_handler_may_hang_up():
    """The connection is cut without a byte."""
    async with serving() as (server, _):
        assert await closed(server.port, get("/hang-up"))


async def test_limits_of_time_and_number():
    """A request that does not arrive, a client that says nothing, and one connection too many are let go."""
    async with serving(Limits(connections=1, request_seconds=0.05, idle_seconds=0.05)) as (server, handler):
        assert await closed(server.port, b"GET / HT")
        assert await closed(server.port, b"")
    async with serving(Limits(connections=1)) as (server, handler):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get("/forever"))
        await reader.readuntil(b"again")
        assert await closed(server.port, get("/a"))
        writer.close()
    assert handler.paths == ["/forever"]


async def test_an_idle_client_makes_room():
    """Clients that say nothing do not keep others out: the one that is idle longest goes."""
    async with serving(Limits(connections=2)) as (server, _):
        streams = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for reader, writer in streams:
            writer.write(get("/a"))
            await reader.readuntil(b"GET /a\n")
        assert bodies(await said(server.port, get("/b", version="1.0"))) == ["GET /b\n"]
        with contextlib.suppress(ConnectionError):
            assert await streams[0][0].read() == b""
        streams[1][1].write(get("/c", version="1.0"))
        assert bodies(await streams[1][0].read()) == ["GET /c\n"]
        for _, writer in streams:
            writer.close()


async def test_fault_47_half_sent_requests_keep_no_probe_out():
    """Ninety clients that send half a request leave room for a whole one, again and again."""
    async with serving() as (server, _):
        crowd = []
        for _ in range(90):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /livez HT")
            await writer.drain()
            crowd.append(writer)
        for _ in range(3):
            assert bodies(await said(server.port, get("/livez", version="1.0"))) == ["GET /livez\n"]
        for writer in crowd:
            writer.close()


async def test_clients_that_were_served_stay():
    """A client that had a response is not ended while one that never had any can be."""
    async with serving(Limits(connections=2)) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(get("/a"))
        await reader.readuntil(b"GET /a\n")
        _, half = await asyncio.open_connection("127.0.0.1", server.port)
        half.write(b"GET /b HT")
        await half.drain()
        assert bodies(await said(server.port, get("/c", version="1.0"))) == ["GET /c\n"]
        writer.write(get("/d", version="1.0"))
        assert bodies(await reader.read()) == ["GET /d\n"]
        half.close()
        writer.close()


async def test_streams_leave_places():
    """More streams than their share are refused with 503; whoever asks something small is served."""
    async with serving(Limits(connections=3, streams=2)) as (server, handler):
        writers = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(get("/forever"))
            await reader.readuntil(b"again")
            writers.append(writer)
        refused = await said(server.port, get("/forever", version="1.0"))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert bodies(refused) == ["there are 2 streams already: try again later\n"]
        assert bodies(await said(server.port, get("/a", version="1.0"))) == ["GET /a\n"]
        writers[0].close()
        await handler.closed.wait()
        assert b"0\n1\n2\n" in await said(server.port, get("/stream", version="1.0"))
        writers[1].close()


async def test_a_client_that_does_not_read_is_let_go():
    """A response that is not taken in time ends its connection."""
    closed = asyncio.Event()

    async def flood():
        try:
            while True:
                yield b"x" * 1_000_000
        finally:
            closed.set()

    async def handler(_):
        return Stream(flood(), "text/plain")

    server = Server(handler, Limits(request_seconds=0.1))
    await server.start(LOOPBACK)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(get("/"))
        await closed.wait()
    await server.stop()


async def closed(port, sent):
    """Whether the server closes without a response."""
    try:
        return await said(port, sent) == b""
    except ConnectionError:
        return True


async def test_without_a_host_both_families_are_served():
    """`:port` is IPv4 and, where there is one, IPv6."""
    async with serving(address=Address("", 0)) as (server, _):
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            assert bodies(await said(server.port, get("/a", version="1.0"), host)) == ["GET /a\n"]


async def test_a_port_that_is_taken():
    """One sentence, not a traceback."""
    async with serving() as (server, handler):
        with pytest.raises(TesseraError, match=rf"cannot listen on 127.0.0.1:{server.port}: .*in use"):
            await Server(handler).start(Address("127.0.0.1", server.port))


async def test_it_can_start_again_on_its_port():
    """A server that stopped leaves its port free at once."""
    async with serving() as (server, _):
        port = server.port
        await server.stop()
        await server.start(Address("127.0.0.1", port))
        assert bodies(await said(port, get("/a", version="1.0"))) == ["GET /a\n"]


def test_unknown_status():
    """A status without a name is sent, too."""
    from tessera.serving.http_messages import head

    assert head(Response(status=299).status, "x/y", ()).startswith(b"HTTP/1.1 299 Unknown\r\n")


def test_headers_beyond_latin():
    """A header may hold any text, as a cut warning's `…`: it goes out in UTF-8."""
    from tessera.serving.http_messages import head

    assert 'Warning: 299 - "a long one…"\r\n'.encode() in head(
        201, "x/y", [("Warning", '299 - "a long one…"')]
    )
