"""HTTP/1.1 without a socket: bytes in, events out. It calls no other part and keeps no time.

An API server's requests differ in little but their bodies. So heads that were read once are cached (`HeaderCache`), with
what they say, and the same bytes again are a request without going through httptools.
"""

from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import Final, TypeAlias, cast

import httptools
import msgspec

from tessera.webhook.http.messages import JSON, TEXT, Limits, Response, Route, path_of

_HEAD_END: Final = b"\r\n\r\n"
_MOST_HEADERS_CACHED: Final = 1024  # those of an API server differ in nothing but the body's length
_LONGEST_HEAD: Final = 1024  # bytes
_HEAD_OVERHEAD: Final = 200  # bytes of one that is kept, beside its own (tracemalloc)
# Added for each header, as HTTP/2 counts a header list: it limits the number along with the size.
_HEADER_OVERHEAD: Final = 32


class Request(msgspec.Struct, frozen=True, gc=False):
    """A whole request that a route answers."""

    route: Route
    body: bytes
    method: bytes
    keep_alive: bool = True


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A request that no handler sees, and the response to it."""

    response: Response
    method: bytes
    keep_alive: bool = False
    whole: bool = False  # else the next request cannot be distinguished from the rest of it: the end


class Continue(msgspec.Struct, frozen=True, gc=False):
    """The client waits for `100 Continue` before it sends the body."""


class Upgrade(msgspec.Struct, frozen=True, gc=False):
    """The request before this wished for another protocol: what follows is no HTTP/1.1."""


ParserEvent: TypeAlias = Request | Refusal | Continue | Upgrade


class HeaderCache(dict[bytes, tuple[Route, int]]):
    """Request heads that were read, each with its route and the length of its body. Shared by connections."""

    @property
    def size(self) -> int:
        """About how many bytes of memory they take."""
        return sum(map(getsizeof, self)) + len(self) * _HEAD_OVERHEAD

    def learn(self, head: bytes, route: Route, length: int) -> None:
        """Keep what a head says."""
        if len(head) <= _LONGEST_HEAD:
            if len(self) >= _MOST_HEADERS_CACHED:
                del self[next(iter(self))]
            self[head] = route, length


class Parser:
    """The requests of one connection."""

    def __init__(self, routes: Mapping[bytes, Route], limits: Limits, header_cache: HeaderCache) -> None:
        self._routes = routes
        self._limits = limits
        self._header_cache = header_cache
        self._http = httptools.HttpRequestParser(self)
        self._events: list[ParserEvent] = []
        self._over = False  # refused in the middle: whatever still comes is no event
        self._unclaimed = 0  # bytes since httptools last made anything of them but a header
        # What httptools was given since it last began with a request, and what can be learnt from that
        self._head = b""
        self._fed = 0
        self._learned: tuple[Route, int] | None = None
        self._forget()

    def _forget(self) -> None:
        """Be ready for the next request."""
        self.reading = False  # one has begun and is not whole yet
        self._missing = 0  # bytes of the body, if the head was known
        self._method = self._url = self._expect = b""
        self._length = b""  # Content-Length
        self._header_bytes = self._size = 0
        self._json = False
        self._route: Route | None = None
        self._error: Response | None = None  # decided before the request is whole
        self._body = bytearray()  # one piece, however small those were that it came in

    def feed(self, data: bytes) -> Sequence[ParserEvent]:
        """What these bytes complete. After an event that ends the connection nothing may be fed."""
        events = self._events
        while data:
            if self._missing:
                data = self._collect(data)
            elif self.reading:
                self._parse(data)
                break
            else:
                end = data.find(_HEAD_END) + len(_HEAD_END)
                known = self._header_cache.get(data[:end])
                if known is None:
                    self._head, self._fed = data[:end], 0
                    self._parse(data)
                    break
                route, length = known
                if len(data) == end + length and not events:  # mostly: one request, and all of it
                    return (Request(route, data[end:], route.method),)
                self.reading = True
                self._route, self._missing = known
                data = data[end:]
        if events:
            self._events = []  # an idle connection keeps no bodies
        return events

    @property
    def buffered(self) -> int:
        """Bytes that are kept of the request that is being read."""
        return len(self._body) + self._header_bytes + self._unclaimed

    def refuse(self, status: int, sentence: str) -> Refusal:
        """Give up the request that is being read."""
        self._over = True
        refusal = Refusal(Response(status, sentence.encode() + b"\n", TEXT), self._method)
        self._forget()
        return refusal

    def close(self) -> None:
        """Read no more: httptools and we refer to each other."""
        del self._http

    def _collect(self, data: bytes) -> bytes:
        """Take what belongs to the body behind a known head; what does not is returned."""
        piece = data[: self._missing]
        self._body += piece
        self._missing -= len(piece)
        if not self._missing:
            route, body = cast(Route, self._route), bytes(self._body)
            self._events.append(Request(route, body, route.method))
            self.reading = False
            self._body = bytearray()
        return data[len(piece) :]

    def _parse(self, data: bytes) -> None:
        self._unclaimed += len(data)
        self._fed += len(data)
        try:
            self._http.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._events.append(Upgrade())
            return
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP/1.1: {error}")
        if self._unclaimed > self._limits.header_bytes:
            # One endless header, trailer or chunk extension: httptools would go on collecting it.
            self._refuse(431, f"a header is larger than {self._limits.header_bytes} bytes")
        if self._learned is not None:
            route, length = self._learned
            self._learned = None
            # Only if httptools saw head and body cut where we do, and nothing before, between or behind them.
            if self._fed == len(self._head) + length:
                self._header_cache.learn(self._head, route, length)

    # The calls of httptools, in their order

    def on_message_begin(self) -> None:
        self._unclaimed = 0
        self.reading = not self._over

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name)
        self._header_bytes += size + len(value) + _HEADER_OVERHEAD
        if size == 12:
            if name.lower() == b"content-type":
                self._json = value == JSON or value.partition(b";")[0].strip().lower() == JSON
        elif size == 14:
            if name.lower() == b"content-length":
                self._length = value
        elif size == 6:
            if name.lower() == b"expect":
                self._expect = value
        elif size == 16 and name.lower() == b"content-encoding" and value.lower() != b"identity":
            self._error = Response(400, b"the body must not be encoded\n", TEXT)
        if self._header_bytes > self._limits.header_bytes:
            self._refuse(431, f"the headers are larger than {self._limits.header_bytes} bytes")

    def on_headers_complete(self) -> None:
        self._unclaimed = 0
        if self._over:
            return
        self._method = method = self._http.get_method()
        self._route = route = self._routes.get(path_of(self._url))
        if route is None:
            self._error = Response(404, b"nothing here\n", TEXT)
        elif method != route.method and not (method == b"HEAD" and route.method == b"GET"):
            self._error = Response(405, b"this path takes %b\n" % route.method, TEXT, route.allow)
        elif route.json and not self._json:
            self._error = Response(400, b"the content type must be application/json\n", TEXT)
        if self._length and int(self._length) > self._limits.body_bytes:
            self._refuse_body()
        elif self._expect:
            self._meet_expectation()

    def _meet_expectation(self) -> None:
        if self._expect.lower() != b"100-continue":
            self._refuse(417, "the only expectation understood is 100-continue")
        elif self._error is not None:
            self._over = True
            self._events.append(Refusal(self._error, self._method))
            self._forget()
        else:
            self._events.append(Continue())

    def on_body(self, body: bytes) -> None:
        self._unclaimed = 0
        if self._over:
            return
        self._size += len(body)
        if self._size > self._limits.body_bytes:
            self._refuse_body()
        elif self._error is None:  # else read to its end, so that the connection stays usable, but not kept
            self._body += body

    def on_message_complete(self) -> None:
        self._unclaimed = 0
        if self._over:
            return
        keep_alive = self._http.should_keep_alive()
        if self._error is not None:
            self._events.append(Refusal(self._error, self._method, keep_alive, whole=True))
        else:
            route = cast(Route, self._route)
            # HEAD is not plain: the known are answered as the route says
            plain = self._method == route.method and not (self._expect or self._http.should_upgrade())
            if plain and keep_alive and self._length and self._size:
                self._learned = route, self._size
            self._events.append(Request(route, bytes(self._body), self._method, keep_alive))
        self._forget()

    def _refuse(self, status: int, sentence: str) -> None:
        if not self._over:
            self._events.append(self.refuse(status, sentence))

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body is larger than {self._limits.body_bytes} bytes")
