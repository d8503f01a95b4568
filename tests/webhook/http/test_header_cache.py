"""Request heads that were read before: a server that remembers them answers as one that reads every time."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.webhook.http import parser
from tessera.webhook.http.connection import Connection
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits, Response, Route
from tessera.webhook.http.parser import HeaderCache
from tests.examples import examples
from tests.webhook.support import request

LOOP = asyncio.new_event_loop()


class Paper(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Forgetful(HeaderCache):
    """Has every head read."""

    def learn(self, head: bytes, route: Route, length: int) -> None:
        pass


def make(header_cache: type[HeaderCache] = HeaderCache, limits: Limits | None = None) -> Listener:
    def answer(body: bytes) -> Response:
        if body == b"fails":
            raise ZeroDivisionError
        return Response(200, b"<%b>" % body)

    listener = Listener(
        {b"/mutate": Route(answer, b"POST", json=True), b"/livez": Route(lambda _: Response(200, b"ok"))},
        limits or Limits(),
    )
    listener.header_cache = header_cache()
    return listener


def talk(listener: Listener, pieces: list[bytes]) -> tuple[bytes, bool]:
    """One client's connection, piece by piece."""
    paper = Paper()
    connection = Connection(listener)

    async def say() -> None:
        connection.connection_made(paper)
        for piece in pieces:
            if not paper.closed:
                connection.data_received(piece)
            while paper.paused and not paper.closed:
                await asyncio.sleep(0)
        connection.connection_lost(None)

    LOOP.run_until_complete(say())
    return paper.written, paper.closed


def test_read_once():
    """The second request with the same head does not go through the parser, whole or in pieces."""
    listener = make()
    talk(listener, [request(b"first")])
    assert list(listener.header_cache) == [request(b"first").partition(b"first")[0]]
    for head, (_, size) in listener.header_cache.items():
        listener.header_cache[head] = Route(lambda b: Response(200, b"known")), size
    again = request(b"again")
    for pieces in ([again], [again[:-3], again[-3:]], [again[:-5], *(bytes([b]) for b in b"again")]):
        assert talk(listener, pieces)[0].endswith(b"known")
    assert not talk(listener, [again[:40], again[40:]])[0].endswith(b"known")  # a head in pieces is read
    assert not talk(listener, [request(b"longer")])[0].endswith(b"known")


def test_learnt_in_pieces():
    """A request whose body came late teaches its head, as an API server's do: they come in records of 4 KiB."""
    listener = make()
    whole = request(bytes(9000))
    talk(listener, [whole[:4096], whole[4096:8192], whole[8192:]])
    assert len(listener.header_cache) == 1


@pytest.mark.parametrize(
    "sent",
    [
        request(b"x", headers=b"Connection: close\r\n"),
        request(b"x", headers=b"Expect: 100-continue\r\n"),
        request(b"x", headers=b"Content-Encoding: gzip\r\n"),
        request(b"x", headers=b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
        request(b"x").replace(b"application/json", b"text/plain"),
        request(b""),
        request(b"x", path=b"/nowhere"),
        request(b"x", headers=b"Large: %b\r\n" % (b"x" * 1000)),
        b"\r\n\r\n" + request(b"x"),
        request(b"x") * 2,
        request(b"x").replace(b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n")[:-1] + b"1\r\nx\r\n0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["close", "expect", "encoded", "upgrade", "text", "empty", "nowhere", "large", "blank", "two", "chunked", "get"],
)  # fmt: skip
def test_not_learnt(sent):
    """Only plain requests teach anything: one head, then a body as long as it says."""
    listener = make()
    said, _ = talk(listener, [sent])
    assert said.startswith(b"HTTP/1.1 ")
    assert listener.header_cache == {}


def test_bounded(monkeypatch):
    """The oldest heads are dropped first."""
    monkeypatch.setattr(parser, "_MOST_HEADERS_CACHED", 3)
    listener = make()
    for size in range(1, 6):
        talk(listener, [request(bytes(size))])
    assert [size for _, size in listener.header_cache.values()] == [3, 4, 5]


def test_draining():
    """A client that asks while the server ends is told to close, known or not."""
    listener = make()
    talk(listener, [request(b"x")])
    listener.draining = True
    for pieces in ([request(b"y")], [request(b"y")[:-1], b"y"]):
        said, closed = talk(listener, pieces)
        assert b"\r\nConnection: close\r\n" in said
        assert closed


def test_late_body():
    """A body that does not come is waited for no longer than for any other."""
    listener = make()
    talk(listener, [request(b"xy")])
    paper = Paper()
    connection = Connection(listener)
    connection.connection_made(paper)
    connection.data_received(request(b"xy")[:-1])
    assert (connection.busy, connection.deadline) == (True, listener.limits.request_seconds)
    listener.sweep(31)
    assert paper.written.startswith(b"HTTP/1.1 408 ")
    assert listener.counters.timeouts == 1
    connection.data_received(b"y" + request(b"next"))
    assert paper.written.count(b"HTTP/1.1") == 1


_BODIES = st.sampled_from(
    [b"x", b"ab", b"fails", b"\r\n\r\n", b"a\r\n\r\nb", b"POST /mutate HTTP/1.1\r\n\r\n", request(b"in")]
)
_REQUESTS = st.one_of(
    st.builds(
        request,
        _BODIES,
        st.sampled_from([b"/mutate", b"/mutate", b"/mutate?timeout=10s", b"/livez"]),
        st.sampled_from([b"", b"", b"", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n"]),
    ),
    st.sampled_from(
        [
            b"\r\n", b"\r\n\r\n", b"\n", b"\x00", b"GET /livez HTTP/1.1\r\n\r\n", b"HEAD /livez HTTP/1.1\r\n\r\n",
            request(b"x").replace(b"\r\n", b"\n"),
            request(b"x").replace(b"\r\n\r\n", b"\n\n") + b"\r\n\r\nx",
            request(b"abc").replace(b"Length: 3", b"Length: 2"),
            request(b"x").replace(b"Content-Length: 1", b"Content-Length: +1"),
            b"POST /mutate HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        ]
    ),
)  # fmt: skip


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.lists(_REQUESTS, min_size=1, max_size=4), st.integers(1, 400)), max_size=6))
def test_as_if_read(clients):
    """Client after client, however their bytes are cut: the same answers, ends and counts as without the memory."""
    remembers, reads = make(), make(Forgetful)
    for requests, cut in clients:
        stream = b"".join(requests)
        pieces = [stream[at : at + cut] for at in range(0, len(stream), cut)]
        assert talk(remembers, pieces) == talk(reads, pieces)
        assert remembers.counters == reads.counters


def test_nothing_is_written_to_who_has_gone():
    """Answers wait for those of others; a client that leaves meanwhile is passed over."""

    async def main() -> list[bytes]:
        listener = make()
        papers = [Paper(), Paper(), Paper()]
        connections = [Connection(listener) for _ in papers]
        for connection, paper in zip(connections, papers, strict=True):
            connection.connection_made(paper)
        for connection in connections:
            connection.data_received(request(b"x"))
        assert [paper.written for paper in papers] == [b"", b"", b""]
        connections[1].abort()
        await asyncio.sleep(0)
        return [paper.written for paper in papers]

    first, second, third = asyncio.run(main())
    assert first == third != b""
    assert second == b""
