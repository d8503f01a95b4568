"""HTTP/1.1 on one connection: bytes in, a handler called, one write out.

A connection never blocks and never waits: handlers are functions of microseconds, so requests that were pipelined
are answered in their order, one after the other, and there is nothing to cancel. What may go wrong on the way in
has a limit (`Limits`) and an answer; what cannot be answered is closed cleanly.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, cast

import httptools

from tessera.webhook.http import CONTINUE, JSON, TEXT, Answer, Limits, Route, Tally, message, path_of

# Added for each header, as HTTP/2 counts a header list: it limits the number along with the size.
_HEADER_OVERHEAD: Final = 32


class Site:
    """What all connections of one listener share."""

    __slots__ = (
        "_outbox",
        "buffer",
        "connections",
        "draining",
        "limits",
        "now",
        "on_fault",
        "routes",
        "tally",
    )

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        limits: Limits,
        on_fault: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.routes = dict(routes)
        self.limits = limits
        self.on_fault = on_fault
        self.tally = Tally()
        self.connections: set[Connection] = set()
        self.draining = False
        self.now = 0.0  # loop time, at most a sweep old: exact enough for timeouts and free to read
        # One buffer for all: it is filled and consumed within one callback of the event loop.
        self.buffer = memoryview(bytearray(64 * 1024))
        self._outbox: list[tuple[asyncio.Transport, bytes]] = []

    def send(self, transport: asyncio.Transport, octets: bytes, *, at_once: bool = False) -> None:
        """Write, but answer first what else has arrived in the meantime.

        A client with many connections is then woken once for many answers, which takes a quarter of the time away.
        """
        if at_once or (len(self.connections) < 2 and not self._outbox):
            self.flush()  # earlier answers on the same connection come first
            transport.write(octets)
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._outbox.append((transport, octets))

    def flush(self) -> None:
        """Write what waits to be written."""
        outbox, self._outbox = self._outbox, []
        for transport, octets in outbox:
            transport.write(octets)

    def sweep(self, now: float) -> None:
        """End the connections whose time is up; called about once a second."""
        self.now = now
        for connection in [c for c in self.connections if c.deadline <= now]:
            connection.expire()

    def make_room(self) -> None:
        """At the limit, end the connection that has been idle longest, or else has been sending its request longest."""
        if len(self.connections) >= self.limits.connections:
            self.tally.refused += 1
            min(self.connections, key=lambda c: (c.busy, c.deadline)).abort()


class Connection(asyncio.BufferedProtocol):
    """One client: a parser, at most one request being read, answers going out."""

    __slots__ = (
        "_announced", "_body", "_ended", "_expect", "_header_bytes", "_json", "_method", "_parser", "_parts",
        "_refusal", "_route", "_site", "_size", "_transport", "_unclaimed", "_url", "busy", "deadline",
    )  # fmt: skip

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parser: httptools.HttpRequestParser | None = None  # from the handshake to the end
        self._transport: asyncio.Transport
        self.busy = False  # a request has begun and is not answered yet
        self.deadline = site.now + site.limits.idle_seconds
        self._ended = False  # the last answer has been written: whatever still comes is thrown away
        self._unclaimed = 0  # bytes since the parser last made anything of them but a header
        # The request being read
        self._method: bytes
        self._url: bytes
        self._announced: bytes  # Content-Length
        self._expect: bytes
        self._json: bool
        self._header_bytes: int
        self._body: bytes  # its first piece, mostly the only one
        self._parts: list[bytes]
        self._size: int
        self._route: Route | None
        self._refusal: Answer | None  # decided before the request is whole
        self._forget_request()

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._site.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._site.connections.discard(self)
        # The parser and we refer to each other. So do the TLS transport and we, through the event loop's own
        # objects, which the garbage collector cannot free: without this every connection would stay for ever.
        self._parser = None
        del self._transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._site.buffer

    def buffer_updated(self, nbytes: int) -> None:
        parser = self._parser
        if self._ended or parser is None:
            return
        self._unclaimed += nbytes
        try:
            parser.feed_data(self._site.buffer[:nbytes])
        except httptools.HttpParserUpgrade:
            if not self._ended:  # answered as if it had not asked; what follows is no HTTP/1.1
                self._end()
        except httptools.HttpParserError as error:
            if not self._ended:
                self._refuse(400, f"not HTTP/1.1: {error}")
        if self._unclaimed > self._site.limits.header_bytes and not self._ended:
            # One endless header, trailer or chunk extension: the parser would go on collecting it.
            self._refuse(431, f"a header is larger than {self._site.limits.header_bytes} bytes")

    def pause_writing(self) -> None:
        """The client does not read: neither do we, and not for ever."""
        self._transport.pause_reading()
        self.deadline = self._site.now + self._site.limits.request_seconds

    def resume_writing(self) -> None:
        self._transport.resume_reading()
        if not self.busy and not self._ended:
            self.deadline = self._site.now + self._site.limits.idle_seconds

    # The sweeper's side

    def expire(self) -> None:
        """The deadline has passed."""
        if self._ended or self._transport.get_write_buffer_size():
            self.abort()
        elif self.busy:
            self._site.tally.timeouts += 1
            self._refuse(408, "the request did not arrive in time")
        else:
            self._end()

    def end_if_quiet(self, since: float) -> None:
        """While draining: end a connection on which nothing was asked since then."""
        if not self.busy and not self._ended and self.deadline - self._site.limits.idle_seconds <= since:
            self._end()

    def abort(self) -> None:
        """End now, whatever is still to be sent."""
        self._ended = True
        self._site.connections.discard(self)
        self._transport.abort()

    # The parser's side, in the order in which it calls

    def on_message_begin(self) -> None:
        self._unclaimed = 0
        if not self._ended:
            self.busy = True
            self.deadline = self._site.now + self._site.limits.request_seconds

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
        if self._header_bytes > self._site.limits.header_bytes and not self._ended:
            self._refuse(431, f"the headers are larger than {self._site.limits.header_bytes} bytes")

    def on_headers_complete(self) -> None:
        self._unclaimed = 0
        if self._ended:
            return
        self._method = method = cast(httptools.HttpRequestParser, self._parser).get_method()
        self._route = route = self._site.routes.get(path_of(self._url))
        if route is None:
            self._refusal = Answer(404, b"nothing here\n", TEXT)
        elif method != route.method and not (method == b"HEAD" and route.method == b"GET"):
            self._refusal = Answer(405, b"this path takes %b\n" % route.method, TEXT)
        elif route.json and not self._json:
            self._refusal = Answer(400, b"the content type must be application/json\n", TEXT)
        if self._announced and int(self._announced) > self._site.limits.body_bytes:
            self._refuse(413, f"the body is larger than {self._site.limits.body_bytes} bytes")
        elif self._expect:
            self._meet_expectation()

    def _meet_expectation(self) -> None:
        if self._expect.lower() != b"100-continue":
            self._refuse(417, "the only expectation understood is 100-continue")
        elif self._refusal is not None:
            self._finish(self._refusal, last=True, whole=False)
        else:
            self._site.send(self._transport, CONTINUE, at_once=True)

    def on_body(self, body: bytes) -> None:
        self._unclaimed = 0
        if self._ended:
            return
        self._size += len(body)
        if self._size > self._site.limits.body_bytes:
            self._refuse(413, f"the body is larger than {self._site.limits.body_bytes} bytes")
        elif self._refusal is not None:
            pass  # read to its end, so that the connection stays usable, but not kept
        elif not self._body:
            self._body = body
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._unclaimed = 0
        if self._ended:
            return
        answer = self._refusal
        if answer is None:
            body = b"".join((self._body, *self._parts)) if self._parts else self._body
            try:
                answer = cast(Route, self._route).handle(body)
            except Exception as error:  # noqa: BLE001 # the next request must be served, whatever a handler did
                self._site.tally.faults += 1
                self._site.on_fault(error)
                answer = Answer(500, b"internal error\n", TEXT)
        else:
            self._site.tally.bad_requests += 1
        last = self._site.draining or not cast(httptools.HttpRequestParser, self._parser).should_keep_alive()
        self._finish(answer, last)

    # Answers

    def _forget_request(self) -> None:
        self._method = self._url = self._announced = self._expect = self._body = b""
        self._header_bytes = self._size = 0
        self._json = False
        self._route = None
        self._refusal = None
        self._parts = []

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer in the middle of a request. What comes after it cannot be told from the rest of it: the end."""
        self._site.tally.bad_requests += 1
        self._finish(Answer(status, sentence.encode() + b"\n", TEXT), last=True, whole=False)

    def _finish(self, answer: Answer, last: bool, whole: bool = True) -> None:
        """Answer the request; after the last answer close, unless the request is not `whole`, see below."""
        octets = message(answer, self._method, last, self._route)
        self._forget_request()
        self.busy = False
        self.deadline = self._site.now + self._site.limits.idle_seconds
        self._site.send(self._transport, octets, at_once=last)
        if last and whole:
            self._end()
        elif last:
            # Closing with unread bytes resets the connection, and the client might never see the answer. So the
            # rest is read and thrown away until the client leaves, or has had its time.
            self._ended = True
            self.deadline = self._site.now + self._site.limits.linger_seconds

    def _end(self) -> None:
        self._site.flush()  # its own last answer may still be waiting for the others'
        self._ended = True
        self.deadline = self._site.now + self._site.limits.linger_seconds
        self._transport.close()
