"""The words of the HTTP server: responses as they go out, routes, limits, counters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httptools
import msgspec

MIB: Final = 1024 * 1024
JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    417: b"Expectation Failed",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}
_JSON_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Response(msgspec.Struct, frozen=True, gc=False):
    """What is said to one request."""

    status: int
    body: bytes
    content_type: bytes = JSON
    allow: bytes = b""  # the methods that would be right, with 405

    def encode(self, method: bytes, *, last: bool) -> bytes:
        """The response as it goes out, in one piece; `last`: the connection is closed after it."""
        body = self.body
        if self.status == 200 and self.content_type is JSON and method == b"POST" and not last:
            return b"%b%d\r\n\r\n%b" % (_JSON_OK, len(body), body)
        return b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (
            self.status,
            _REASONS.get(self.status, b"-"),
            self.content_type,
            len(body),
            b"Allow: %b\r\n" % self.allow if self.allow else b"",
            b"Connection: close\r\n" if last else b"",
            b"" if method == b"HEAD" else body,
        )


Handler = Callable[[bytes], Response]


@dataclass(frozen=True, slots=True)
class Route:
    """Which handler answers on a path, and to which method (GET includes HEAD)."""

    handle: Handler
    method: bytes = b"GET"
    json: bool = False  # the request's body must say that it is JSON

    @property
    def allow(self) -> bytes:
        """The methods, as the header Allow lists them."""
        return b"GET, HEAD" if self.method == b"GET" else self.method


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of anything one client may take."""

    body_bytes: int = 7 * MIB  # the API server's 3 MiB for an object, twice, and the review around them
    header_bytes: int = 32 * 1024  # the API server sends about 300 bytes
    request_seconds: float = 30.0  # the longest that the API server waits for a webhook (timeoutSeconds)
    idle_seconds: float = 120.0  # longer than the API server's 90 s, so that it is never we who close first
    handshake_seconds: float = 10.0
    linger_seconds: float = 2.0  # after a refusal: time for the client to read it before the connection goes
    connections: int = 1024  # about 40 KiB each after large reviews
    # Of all requests that are being read: three of the largest, or a thousand of the usual ones; and of responses that
    # clients do not take.
    reading_bytes: int = 24 * MIB
    # What the kernel keeps of a connection in each direction, twice that with the room around it. By itself it would keep
    # megabytes for a client that sends much and reads nothing, and they count as the container's memory.
    socket_bytes: int = 48 * 1024  # more than nearly all reviews


@dataclass(slots=True)
class Counters:
    """What happened on a listener: plain integers, for metrics."""

    accepted: int = 0
    handshake_failures: int = 0
    refused: int = 0  # connections refused, or closed to make room
    crowded_out: int = 0  # requests refused because too much was being read
    timeouts: int = 0
    bad_requests: int = 0  # 4xx answered by the server itself
    faults: int = 0  # exceptions that escaped a handler


def path_of(url: bytes) -> bytes:
    """The path of a request's target: `/mutate?timeout=10s` as the API server asks, or a whole URL."""
    if url[:1] == b"/":
        return url.partition(b"?")[0]
    try:
        return httptools.parse_url(url).path or b"/"
    except httptools.HttpParserInvalidURLError:
        return b""
