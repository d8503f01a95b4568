"""HTTP on real sockets: what is answered, what is refused, and that the next request is served."""

import gc
import re
import socket
import ssl
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.webhook.http.connection import Connection
from tessera.webhook.http.messages import MIB, Limits, Response, Route
from tests.examples import examples
from tests.webhook.support import Client, Live, request


@pytest.fixture(scope="module")
def live():
    with Live() as server:
        yield server


@pytest.fixture
def client(live):
    with live.connect() as connection:
        yield connection


def test_kept_alive(client):
    """One connection serves request after request, with nothing in an answer but what is needed."""
    for n in range(3):
        client.send(request(b'{"n":%d}' % n, b"/mutate?timeout=10s"))
        reply = client.answer()
        assert (reply.status, reply.body) == (200, b'{"n":%d}' % n)
        assert reply.headers == {"Content-Type": "application/json", "Content-Length": "7"}


def test_pipelined(client):
    """Requests sent without waiting are answered in their order, however the bytes are cut."""
    stream = b"".join(request(b"%d" % n) for n in range(20)) + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    for at in range(0, len(stream), 301):
        client.send(stream[at : at + 301])
    assert [client.answer().body for _ in range(21)] == [b"%d" % n for n in range(20)] + [b"ok\n"]


def test_large_body(client):
    """A body of just under the limit arrives whole."""
    body = bytes(7 * MIB)
    assert client.post(body).body == body


def test_chunked(client):
    """A chunked body arrives whole, trailers and extensions included in no way."""
    client.send(
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\n4\r\ndefg\r\n0\r\nTrailer: z\r\n\r\n"
    )
    assert client.answer().body == b"abcdefg"
    assert client.post(b"next").body == b"next"


def test_expect_continue(client):
    """A client that asks before it sends is told to go on, or the answer at once."""
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: %b\r\n\r\n"
    client.send(head % (b"/mutate", b"100-continue"))
    assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"{}")
    assert client.answer().body == b"{}"
    client.send(head % (b"/nowhere", b"100-continue"))
    assert client.answer().status == 404


@pytest.mark.parametrize(
    ("sent", "status", "header"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", 200, {}),
        (b"GET http://x/livez?verbose HTTP/1.1\r\nHost: x\r\n\r\n", 200, {}),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404, {}),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404, {}),
        (b"GET /mutate HTTP/1.1\r\nHost: x\r\n\r\n", 405, {"Allow": "POST"}),
        (b"DELETE /livez HTTP/1.1\r\nHost: x\r\n\r\n", 405, {"Allow": "GET, HEAD"}),
        (b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405, {"Allow": "GET, HEAD"}),
        (b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 400, {}),
        (request(b"{}").replace(b"/json", b"/JSON ; charset=utf-8"), 200, {}),
    ],
)
def test_answers(client, sent, status, header):
    """Every request that can be read is answered, and the connection lives on."""
    client.send(sent)
    reply = client.answer()
    assert reply.status == status
    assert header.items() <= reply.headers.items()
    assert client.post(b"next").body == b"next"


def test_head(client):
    """HEAD is GET without the body."""
    client.send(b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    reply = client.answer("HEAD")
    assert (reply.status, reply.headers["Content-Length"], reply.body) == (200, "3", b"")
    client.send(b"HEAD /mutate HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.answer("HEAD").status == 405
    assert client.post(b"next").body == b"next"


@pytest.mark.parametrize(
    "kind", [b"text/plain", b"application/yaml", b"application/jsonx", b"application/vnd.kubernetes.protobuf"]
)
def test_fault_3_wrong_content_type(client, kind):
    """A body that does not say that it is JSON is refused with 400 and one sentence."""
    client.send(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: 2\r\n\r\n{}" % kind)
    reply = client.answer()
    assert (reply.status, reply.body) == (400, b"the content type must be application/json\n")
    assert client.post(b"next").body == b"next"


def test_fault_3_encoded(client):
    """A compressed body is refused with 400."""
    reply = client.post(b"x", headers=b"Content-Encoding: gzip\r\n")
    assert (reply.status, reply.body) == (400, b"the body must not be encoded\n")
    assert client.post(b"next").body == b"next"


def test_fault_1_announced_too_large(live, client):
    """A body announced as too large is refused before any of it is read."""
    client.send(
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % (7 * MIB + 1)
    )
    reply = client.answer()
    assert (reply.status, reply.headers["Connection"]) == (413, "close")
    assert reply.body == b"the body is larger than 7340032 bytes\n"
    with live.connect() as other:
        assert other.post(b"next").body == b"next"


def test_fault_1_endless_chunks(live, client):
    """A chunked body without an end is cut off at the limit, and memory stays where it was."""
    before = _resident()
    client.send(
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    _send_chunks(client, 20 * MIB)
    assert client.answer().status == 413
    live.sweep(3)  # it has had its time to read the answer
    with pytest.raises((ConnectionError, ssl.SSLError)):
        _send_chunks(client, 200 * MIB)
    assert _resident() - before < 40 * MIB
    with live.connect() as other:
        assert other.post(b"next").body == b"next"


def _send_chunks(client: Client, size: int) -> None:
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    for _ in range(size // 0x10000):
        client.send(chunk)


def _resident() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * 4096


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % n for n in range(1000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nBig: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 200_000,
        b"GET / HTTP/1.1\r\nBig: " + b"x" * 200_000,
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 200_000,
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: "
        + b"x" * 200_000,
        b"POST /mutate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        + b"A: b\r\n" * 2000
        + b"\r\n",
        b"\r\n" * 100_000,
    ],
    ids=[
        "many",
        "large",
        "endless-url",
        "endless-header",
        "endless-extension",
        "endless-trailer",
        "trailers",
        "blank",
    ],
)
def test_header_limits(live, client, sent):
    """Too much before, between or after the body is refused, however it is spread."""
    client.send(sent)
    assert client.answer().status == 431
    with live.connect() as other:
        assert other.post(b"next").body == b"next"


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"POST /mutate HTTP/1.1\r\nContent-Length: -3\r\n\r\nabc",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\nabc",
        b"POST /mutate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /livez HTTP/3.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nBad header: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_not_http(live, client, sent):
    """What is not HTTP/1.1, or could be read in two ways, is refused with 400 and the connection closed."""
    client.send(sent)
    reply = client.answer()
    assert reply.status == 400
    assert reply.headers["Connection"] == "close"
    assert b"Traceback" not in reply.body
    with live.connect() as other:
        assert other.post(b"next").body == b"next"


def test_upgrade_is_ignored(client):
    """An offer to speak another protocol is answered in this one."""
    client.send(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert client.answer().body == b"ok\n"
    assert client.rest() == b""


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_close_when_asked(client, version):
    """`Connection: close` is honoured, and nothing after that request is answered."""
    client.send(
        b"GET /livez HTTP/%b\r\nHost: x\r\nConnection: close\r\n\r\nGET /livez HTTP/1.1\r\n\r\n" % version
    )
    reply = client.answer()
    assert (reply.body, reply.headers["Connection"]) == (b"ok\n", "close")
    assert client.rest() == b""


def test_fault_12_handler_fails():
    """An exception in a handler is a 500 with no detail, reported, counted, and the connection serves on."""

    def handle(body: bytes) -> Response:
        if body == b"bad":
            raise ZeroDivisionError("secret")
        return Response(200, body)

    with Live({b"/mutate": Route(handle, b"POST", json=True)}) as live, live.connect() as client:
        reply = client.post(b"bad")
        assert (reply.status, reply.body) == (500, b"internal error\n")
        assert client.post(b"good").body == b"good"
        assert [str(fault) for fault in live.faults] == ["secret"]
        assert live.listener.counters.faults == 1


def test_slow_request():
    """A request that does not arrive in time is refused; one idle connection may wait longer."""
    with Live() as live, live.connect() as slow, live.connect() as idle:
        slow.send(b"POST /mutate HT")
        live.until(lambda: any(c.busy for c in live.listener.connections))
        live.sweep(31)
        assert slow.answer().status == 408
        assert idle.post(b"still here").body == b"still here"
        live.sweep(31 + 121)
        assert idle.rest() == b""
        assert live.listener.counters.timeouts == 1


def test_client_that_does_not_read():
    """Answers that the client does not read stop further reading, and the connection ends when its time is up."""
    body = bytes(MIB)
    with Live() as live, live.connect() as client:
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(request(body) * 100)
        live.until(
            lambda: bool(live.listener.connections)
        )  # the client is through the handshake a moment earlier
        (connection,) = live.listener.connections
        assert connection._transport.get_write_buffer_size() < 8 * MIB
        live.sweep(31)
        live.until(lambda: not live.listener.connections)


def test_client_that_reads_late():
    """Answers that wait to be read arrive whole, and then the connection may idle as long as any."""
    body = bytes(MIB)
    # without TLS: a TLS socket must not be written by one thread and read by another
    with Live(tls=False) as live, live.connect() as client:
        sender = threading.Thread(target=client.send, args=(request(body) * 20,))
        sender.start()
        live.until(
            lambda: bool(live.listener.connections)
        )  # the client is through the handshake a moment earlier
        (connection,) = live.listener.connections
        live.until(lambda: connection._transport.get_write_buffer_size() > 0)
        for _ in range(20):
            assert client.answer().body == body
        sender.join()
        live.until(lambda: connection.deadline > live.listener.now + 100)
        assert client.post(b"next").body == b"next"


def test_an_upgrade_beside_others():
    """A client that asks for another protocol is answered before the connection goes, however busy the server is."""
    with Live() as live, live.connect(), live.connect() as client:
        live.until(lambda: len(live.listener.connections) == 2)
        client.send(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert client.answer().body == b"ok\n"
        assert client.rest() == b""


def test_connection_limit():
    """At the limit a new connection takes the place of the one that has been idle longest."""
    with Live(limits=Limits(connections=3)) as live:
        first, second, third = (live.connect() for _ in range(3))
        for n, client in enumerate((first, second, third)):
            client.post(b"x")
            live.sweep(n / 100)
        first.post(b"again")
        with live.connect() as fourth:
            assert fourth.post(b"y").body == b"y"
            assert second.rest() == b""
            assert first.post(b"z").body == b"z"
            assert third.post(b"z").body == b"z"
        assert live.listener.counters.refused == 1
        for client in (first, second, third):
            client.socket.close()


@pytest.mark.parametrize("tls", [True, False])
def test_nothing_is_left_of_a_connection(tls):
    """However a connection ended, its objects are gone, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        before = _connections()
        with Live(tls=tls) as live:
            for n in range(60):
                with live.connect() as client:
                    if n % 3 == 0:
                        client.post(b"x")
                    elif n % 3 == 1:
                        client.send(b"nonsense\r\n\r\n")
                        client.answer()
                    else:
                        client.send(b"POST /mu")
                with socket.create_connection(
                    ("127.0.0.1", live.port)
                ) as raw:  # and one that never shakes hands
                    raw.sendall(b"nonsense")
            live.until(lambda: not live.listener.connections and not live.listener.handshakes)
            live.until(lambda: _connections() == before)
    finally:
        gc.enable()


def _connections() -> int:
    return sum(isinstance(one, Connection) for one in gc.get_objects())


_PIECES = st.sampled_from(
    [
        b"POST /mutate HTTP/1.1\r\n", b"GET /livez HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n", b"\n", b"\r",
        b"Content-Length: 5\r\n", b"Content-Length: 99999999\r\n", b"Transfer-Encoding: chunked\r\n",
        b"Content-Type: application/json\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello", b"\x00", b"HTTP/1.1",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"HEAD /livez HTTP/1.0\r\n\r\n",
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def plain():
    with Live(tls=False) as server:
        yield server


@given(st.lists(st.one_of(_PIECES, st.binary(max_size=40)), max_size=20), st.integers(1, 200))
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzz(plain, pieces, cut):
    """Whatever is sent gets answers or a clean close, never a traceback, and the next client is served."""
    stream = b"".join(pieces)
    with plain.connect() as client:
        try:
            for at in range(0, len(stream), cut):
                client.send(stream[at : at + cut])
            client.socket.shutdown(1)
        except (ConnectionError, OSError):
            pass
        said = client.rest()
    assert said == b"" or said.startswith(b"HTTP/1.1 ")
    assert b"Traceback" not in said
    assert {int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", said)} <= {
        100, 200, 400, 404, 405, 408, 413, 417, 431,
    }  # fmt: skip
    assert plain.faults == []
    with plain.connect() as client:
        assert client.post(b"next").body == b"next"


def test_many_clients(live):
    """Answers never reach the wrong client."""
    wrong: list[bytes] = []

    def talk(name: int) -> None:
        with live.connect() as client:
            for n in range(50):
                body = b"%d-%d" % (name, n)
                if client.post(body).body != body:
                    wrong.append(body)

    threads = [threading.Thread(target=talk, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
