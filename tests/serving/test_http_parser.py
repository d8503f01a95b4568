"""Bytes to requests: however they are cut, and whatever they are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.serving.http_messages import READ, Limits, Parser, Request, Response

LIMITS = Limits(head=1024, body=2048)
GET = b"GET /a%20b?x=1&y HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: h\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\nHost: trailer\r\n\r\n"
)
OLD = b"GET /old HTTP/1.0\r\n\r\n"


def parsed(*pieces: bytes) -> list[Request | Response]:
    parser = Parser(LIMITS)
    return [one for piece in pieces for one in parser.feed(piece)]


def brief(one: Request | Response) -> object:
    if isinstance(one, Response):
        return one.status
    return one.method, one.path, dict(one.query), dict(one.headers), one.body, one.version, one.keep_alive


EXPECTED = {
    GET: ("GET", "/a b", {"x": "1", "y": ""}, {"host": "h"}, b"", "1.1", True),
    POST: ("POST", "/p", {}, {"content-length": "5"}, b"hello", "1.1", True),
    CHUNKED: ("PUT", "/c", {}, {"transfer-encoding": "chunked", "host": "h"}, b"abcde", "1.1", True),
    OLD: ("GET", "/old", {}, {}, b"", "1.0", False),
}


@pytest.mark.parametrize("sent", EXPECTED, ids=["get", "post", "chunked", "1.0"])
def test_a_request_is_read_whole(sent):
    """Path and query are decoded, a body is put together, trailers change no header."""
    assert [brief(one) for one in parsed(sent)] == [EXPECTED[sent]]


@given(
    st.lists(st.sampled_from([GET, POST, CHUNKED]), min_size=1, max_size=4),
    st.lists(st.integers(0, 400), max_size=6),
)
def test_pipelined_requests_stay_apart(requests, cuts):
    """Several requests in a row are as many requests, wherever the bytes are cut."""
    sent = b"".join(requests)
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    pieces = [sent[start:end] for start, end in pairwise(places) if start < end]
    assert [brief(one) for one in parsed(*pieces)] == [EXPECTED[one] for one in requests]


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"nonsense\r\n\r\n", [400]),
        (b"GET //[ HTTP/1.1\r\n\r\n", [400]),
        (b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", [400]),
        (b"CONNECT a:80 HTTP/1.1\r\n\r\n", [400]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", [400]),
        (b"GET /" + b"x" * 1024 + b" HTTP/1.1\r\n\r\n", [431]),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 1024 + b"\r\n\r\n", [431]),
        (b"POST / HTTP/1.1\r\nContent-Length: 9999\r\n\r\n" + b"x" * 2049, [413]),
        (GET + b"nonsense\r\n\r\n", [EXPECTED[GET], 400]),
        (OLD + GET, [EXPECTED[OLD], 400]),
    ],
)
def test_refusals(sent, statuses):
    """What is no request is refused, after the requests before it."""
    assert [brief(one) for one in parsed(sent)] == statuses


def test_a_head_without_an_end_is_refused():
    """A client that never ends its headers is held to the limit, too."""
    parser, sent = Parser(LIMITS), 0
    refusals: list[Request | Response] = list(parser.feed(b"GET / HTTP/1.1\r\nX: "))
    while not refusals:
        refusals += parser.feed(b"x" * 1000)
        sent += 1000
    assert [brief(one) for one in refusals] == [431]
    assert sent <= LIMITS.head + READ + 1000
