"""Reading a request with the parser: piece by piece, within limits, to its answer or its refusal."""

from typing import Final, Protocol, cast

import httptools

from tessera.webhook.http.messages import JSON, TEXT, Answer, Route, path_of
from tessera.webhook.http.site import Site

# Added for each header, as HTTP/2 counts a header list: it limits the number along with the size.
_HEADER_OVERHEAD: Final = 32


class Asked(Protocol):
    """The connection that is being read."""

    ended: bool  # the last answer has been written: whatever still comes is thrown away

    def begin(self) -> None:
        """A request has begun."""

    def go_on(self) -> None:
        """The client waits to be told to send the body."""

    def ask(self, route: Route, body: bytes) -> Answer:
        """The handler's answer."""

    def finish(self, answer: Answer, method: bytes, route: Route | None, *, last: bool, whole: bool) -> None:
        """Answer the request."""

    def end(self) -> None:
        """Close."""


class Reader:
    """The parser of one connection, and the request it is at."""

    __slots__ = (
        "_announced", "_body", "_connection", "_expect", "_fed", "_head", "_header_bytes", "_json", "_lesson",
        "_method", "_parser", "_refusal", "_route", "_site", "_size", "_unclaimed", "_url",
    )  # fmt: skip

    def __init__(self, site: Site, connection: Asked) -> None:
        self._site = site
        self._connection = connection
        self._parser = httptools.HttpRequestParser(self)
        self._unclaimed = 0  # bytes since the parser last made anything of them but a header
        # What it was given since it last began with a request, and what can be learnt from that
        self._head = b""
        self._fed = 0
        self._lesson: tuple[Route, int] | None = None
        # The request
        self._method: bytes
        self._url: bytes
        self._announced: bytes  # Content-Length
        self._expect: bytes
        self._json: bool
        self._header_bytes: int
        self._body: bytearray  # one piece, however small those were that it came in
        self._size: int
        self._route: Route | None
        self._refusal: Answer | None  # decided before the request is whole
        self._forget()

    def begin(self, head: bytes) -> None:
        """What is fed from now on is a new request; its head, if it arrived in one piece."""
        self._head, self._fed = head, 0

    def feed(self, data: bytes) -> None:
        """Read on."""
        self._unclaimed += len(data)
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if not self._connection.ended:  # answered as if it had not asked; what follows is no HTTP/1.1
                self._connection.end()
        except httptools.HttpParserError as error:
            if not self._connection.ended:
                self.refuse(400, f"not HTTP/1.1: {error}")
        if self._unclaimed > self._site.limits.header_bytes and not self._connection.ended:
            # One endless header, trailer or chunk extension: the parser would go on collecting it.
            self.refuse(431, f"a header is larger than {self._site.limits.header_bytes} bytes")
        if self._lesson is not None:
            route, length = self._lesson
            self._lesson = None
            # Only if the parser saw head and body cut where we do, and nothing before, between or behind them.
            if self._fed == len(self._head) + length:
                self._site.learn(self._head, route, length)

    def close(self) -> None:
        """Read no more: the parser and we refer to each other."""
        del self._parser

    def refuse(self, status: int, sentence: str) -> None:
        """Answer in the middle of a request. What comes after it cannot be told from the rest of it: the end."""
        self._site.tally.bad_requests += 1
        self._finish(Answer(status, sentence.encode() + b"\n", TEXT), last=True, whole=False)

    # The parser's calls, in their order

    def on_message_begin(self) -> None:
        self._unclaimed = 0
        if not self._connection.ended:
            self._connection.begin()

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
                self._announced = value
        elif size == 6:
            if name.lower() == b"expect":
                self._expect = value
        elif size == 16 and name.lower() == b"content-encoding" and value.lower() != b"identity":
            self._refusal = Answer(400, b"the body must not be encoded\n", TEXT)
        if self._header_bytes > self._site.limits.header_bytes and not self._connection.ended:
            self.refuse(431, f"the headers are larger than {self._site.limits.header_bytes} bytes")

    def on_headers_complete(self) -> None:
        self._unclaimed = 0
        if self._connection.ended:
            return
        self._method = method = self._parser.get_method()
        self._route = route = self._site.routes.get(path_of(self._url))
        if route is None:
            self._refusal = Answer(404, b"nothing here\n", TEXT)
        elif method != route.method and not (method == b"HEAD" and route.method == b"GET"):
            self._refusal = Answer(405, b"this path takes %b\n" % route.method, TEXT)
        elif route.json and not self._json:
            self._refusal = Answer(400, b"the content type must be application/json\n", TEXT)
        if self._announced and int(self._announced) > self._site.limits.body_bytes:
            self._refuse_body()
        elif self._expect:
            self._meet_expectation()

    def _meet_expectation(self) -> None:
        if self._expect.lower() != b"100-continue":
            self.refuse(417, "the only expectation understood is 100-continue")
        elif self._refusal is not None:
            self._site.tally.bad_requests += 1
            self._finish(self._refusal, last=True, whole=False)
        else:
            self._connection.go_on()

    def on_body(self, body: bytes) -> None:
        self._unclaimed = 0
        if self._connection.ended:
            return
        self._size += len(body)
        if self._size > self._site.limits.body_bytes:
            self._refuse_body()
        elif self._refusal is None:  # else read to its end, so that the connection stays usable, but not kept
            self._body += body

    def _refuse_body(self) -> None:
        self.refuse(413, f"the body is larger than {self._site.limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        self._unclaimed = 0
        if self._connection.ended:
            return
        last = self._site.draining or not self._parser.should_keep_alive()
        if self._refusal is not None:
            self._site.tally.bad_requests += 1
            self._finish(self._refusal, last=last)
            return
        route = cast(Route, self._route)
        plain = self._method == route.method and not (self._expect or last or self._parser.should_upgrade())
        if plain and self._announced and self._size:  # HEAD is not: the known are answered as the route says
            self._lesson = route, self._size
        self._finish(self._connection.ask(route, bytes(self._body)), last=last)

    def _finish(self, answer: Answer, *, last: bool, whole: bool = True) -> None:
        method, route = self._method, self._route
        self._forget()
        self._connection.finish(answer, method, route, last=last, whole=whole)

    def _forget(self) -> None:
        self._method = self._url = self._announced = self._expect = b""
        self._header_bytes = self._size = 0
        self._json = False
        self._route = None
        self._refusal = None
        self._body = bytearray()
