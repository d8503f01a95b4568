"""Bytes in, events out: the parser alone, without a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.webhook.http.messages import TEXT, Limits, Response, Route
from tessera.webhook.http.parser import Continue, HeaderCache, Parser, ParserEvent, Refusal, Request, Upgrade
from tests.webhook.support import LIVE, echo, request

MUTATE = Route(echo, b"POST", json=True)
LIVEZ = Route(lambda _: LIVE)
ROUTES = {b"/mutate": MUTATE, b"/livez": LIVEZ}
GET = b"GET /livez HTTP/1.1\r\n\r\n"


def parser(header_cache: HeaderCache | None = None) -> Parser:
    return Parser(
        ROUTES,
        Limits(body_bytes=10, header_bytes=1000),
        HeaderCache() if header_cache is None else header_cache,
    )


def refused(status: int, sentence: bytes, method: bytes = b"POST", **more: bool) -> Refusal:
    return Refusal(Response(status, sentence + b"\n", TEXT), method, **more)


@pytest.mark.parametrize(
    ("sent", "events"),
    [
        (b"", []),
        (GET, [Request(LIVEZ, b"", b"GET")]),
        (GET.replace(b"GET", b"HEAD"), [Request(LIVEZ, b"", b"HEAD")]),
        (GET * 2 + b"GET /li", [Request(LIVEZ, b"", b"GET")] * 2),
        (request(b"body"), [Request(MUTATE, b"body", b"POST")]),
        (request(b"body", headers=b"Connection: close\r\n"), [Request(MUTATE, b"body", b"POST", keep_alive=False)]),
        (request(b"body", headers=b"Expect: 100-continue\r\n"), [Continue(), Request(MUTATE, b"body", b"POST")]),
        (GET[:-2] + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n" + GET, [Request(LIVEZ, b"", b"GET"), Upgrade()]),
        # refused, and the next one is read
        (request(b"body", path=b"/") + GET, [refused(404, b"nothing here", keep_alive=True, whole=True), Request(LIVEZ, b"", b"GET")]),
        (request(b"body", headers=b"Content-Encoding: br\r\n"), [refused(400, b"the body must not be encoded", keep_alive=True, whole=True)]),
        (GET.replace(b"/livez", b"/mutate"), [Refusal(Response(405, b"this path takes POST\n", TEXT, b"POST"), b"GET", keep_alive=True, whole=True)]),
        # refused in the middle: nothing after it is an event
        (request(b"body", path=b"/", headers=b"Expect: 100-continue\r\n") + GET, [refused(404, b"nothing here")]),
        (request(b"body", headers=b"Expect: more\r\n") + GET, [refused(417, b"the only expectation understood is 100-continue")]),
        (request(b"12345678901") + GET, [refused(413, b"the body is larger than 10 bytes")]),
        (b"GET /livez HTTP/1.1\r\nA: " + b"b" * 1000 + b"\r\n\r\n" + GET, [refused(431, b"the headers are larger than 1000 bytes", b"")]),
        (b"nonsense\r\n\r\n", [refused(400, b"not HTTP/1.1: Invalid method encountered", b"")]),
    ],
)  # fmt: skip
def test_events(sent, events):
    """What each stream of bytes means, exactly."""
    assert list(parser().feed(sent)) == events


def test_endless():
    """A line without an end is refused as soon as more than the limit has come since the request began."""
    one = parser()
    assert [len(one.feed(b"GET /")), *(len(one.feed(b"a" * 500)) for _ in range(3))] == [0, 0, 0, 1]


def test_reading():
    """A request is being read from its first byte to its last, whether or not its head was known."""
    header_cache = HeaderCache()
    for _ in range(2):
        one = parser(header_cache)
        whole = request(b"body")
        seen = []
        for piece in (b"", whole[:-2], whole[-2:]):
            one.feed(piece)
            seen.append(one.reading)
        assert seen == [False, True, False]
    assert len(header_cache) == 1


@pytest.mark.parametrize("known", [False, True])
def test_given_up(known):
    """A request that does not arrive in time is refused with what is known of it, and is over."""
    header_cache = HeaderCache()
    if known:
        parser(header_cache).feed(request(b"body"))
    one = parser(header_cache)
    one.feed(request(b"body")[:-1])
    assert one.refuse(408, "late") == refused(408, b"late", b"" if known else b"POST")
    assert not one.reading


def test_an_idle_parser_keeps_no_body():
    """What was yielded is the connection's: the parser lets go of it."""
    one = parser()
    events = one.feed(request(b"body"))
    assert one._events == []
    assert one._body == b""
    assert events


_STREAM = st.lists(
    st.sampled_from([GET, request(b"body"), request(b"x", path=b"/"), request(b"y", headers=b"Expect: 100-continue\r\n")]),
    max_size=5,
)  # fmt: skip


@given(_STREAM, st.integers(1, 200))
def test_cuts_do_not_matter(requests, cut):
    """The same events, however the bytes are cut; a refusal that ends the connection ends the stream."""
    stream = b"".join(requests)
    whole, pieces = parser(), parser()
    events: list[ParserEvent] = []
    for at in range(0, len(stream), cut):
        events += pieces.feed(stream[at : at + cut])
    assert events == list(whole.feed(stream))
