"""HTTP/1.1 on one connection: bytes in, a handler called, one write out.

A connection never blocks and never waits: handlers are functions of microseconds, so requests that were pipelined
are answered in their order, one after the other, and there is nothing to cancel. What may go wrong on the way in
has a limit (`Limits`) and an answer; what cannot be answered is closed cleanly.
"""

import asyncio
from typing import Final, cast

from tessera.webhook.http.messages import CONTINUE, MIB, TEXT, Answer, Route, message
from tessera.webhook.http.parser import Reader
from tessera.webhook.http.site import Site, Wire

_HEAD_END: Final = b"\r\n\r\n"
_MOST_UNREAD: Final = 8 * MIB  # more than any one answer


class Connection(asyncio.Protocol):
    """One client: at most one request being read, answers going out."""

    __slots__ = (
        "_body",
        "_missing",
        "_reader",
        "_route",
        "_site",
        "_stalled",
        "_wire",
        "busy",
        "deadline",
        "ended",
    )

    def __init__(self, site: Site) -> None:
        self._site = site
        self._reader: Reader | None = None  # from the handshake to the end
        self._wire: Wire
        self._stalled = False  # the client does not take what is written
        self.busy = False  # a request has begun and is not answered yet
        self.deadline: float
        self.ended = False  # the last answer has been written: whatever still comes is thrown away
        # The request whose head was known: how much of its body is to come, what has come, whose it is
        self._missing = 0
        self._body = bytearray()
        self._route: Route

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport | Wire) -> None:
        self._wire = cast(Wire, transport)
        self.deadline = self._site.now + self._site.limits.idle_seconds  # not from before the handshake
        self._reader = Reader(self._site, self)
        self._site.join(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._site.connections.discard(self)
        # They refer to us, and we to them: nothing should wait for the garbage collector.
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        del self._wire

    def data_received(self, data: bytes) -> None:
        while data and not self.ended:
            if self._missing:
                data = self._collect(data)
            elif self.busy:
                cast(Reader, self._reader).feed(data)
                return
            else:
                end = data.find(_HEAD_END) + len(_HEAD_END)
                known = self._site.heads.get(data[:end])
                if known is None:
                    reader = cast(Reader, self._reader)
                    reader.begin(data[:end])
                    reader.feed(data)
                    return
                route, length = known
                if len(data) == end + length:  # mostly: one request, and all of it
                    self._answer(route, data[end:])
                    return
                self.begin()
                self._route, self._missing = known
                data = data[end:]

    def _collect(self, data: bytes) -> bytes:
        """Take what belongs to the body; what does not is returned."""
        piece = data[: self._missing]
        self._body += piece
        self._missing -= len(piece)
        if not self._missing:
            route, body = self._route, bytes(self._body)
            self._body = bytearray()
            self._answer(route, body)
        return data[len(piece) :]

    def _answer(self, route: Route, body: bytes) -> None:
        """Answer a request whose head was known."""
        self.finish(self.ask(route, body), route.method, route, last=self._site.draining)

    def eof_received(self) -> None:
        """The client will send no more, but may still read: the transport closes once all is written."""
        self._site.flush()

    def pause_writing(self) -> None:
        """The client does not read: neither do we, and not for ever."""
        self._stalled = True
        self._wire.pause_reading()
        self.deadline = self._site.now + self._site.limits.request_seconds

    def resume_writing(self) -> None:
        self._stalled = False
        self._wire.resume_reading()
        if not self.busy and not self.ended:
            self.deadline = self._site.now + self._site.limits.idle_seconds

    # The sweeper's side

    def expire(self) -> None:
        """The deadline has passed."""
        if self.ended or self._wire.get_write_buffer_size():
            self.abort()
        elif self.busy:
            self._site.tally.timeouts += 1
            cast(Reader, self._reader).refuse(408, "the request did not arrive in time")
        else:
            self.end()

    def end_if_quiet(self, since: float) -> None:
        """While draining: end a connection on which nothing was asked since then."""
        if not self.busy and not self.ended and self.deadline - self._site.limits.idle_seconds <= since:
            self.end()

    def abort(self) -> None:
        """End now, whatever is still to be sent."""
        self.ended = True
        self._site.connections.discard(self)
        self._wire.abort()

    # The reader's side

    def begin(self) -> None:
        """A request has begun."""
        self.busy = True
        self.deadline = self._site.now + self._site.limits.request_seconds

    def go_on(self) -> None:
        """Tell the client to send the body."""
        self._site.send(self._wire, CONTINUE, at_once=True)

    def ask(self, route: Route, body: bytes) -> Answer:
        """The handler's answer, whatever it does."""
        try:
            return route.handle(body)
        except Exception as error:  # noqa: BLE001 # the next request must be served, whatever a handler did
            self._site.tally.faults += 1
            self._site.on_fault(error)
            return Answer(500, b"internal error\n", TEXT)

    def finish(
        self, answer: Answer, method: bytes, route: Route | None, *, last: bool, whole: bool = True
    ) -> None:
        """Answer the request; after the last answer close, unless the request is not `whole`, see below."""
        self.busy = False
        if not self._stalled:  # else it has been given its time, and this is one of many that came at once
            self.deadline = self._site.now + self._site.limits.idle_seconds
        elif self._wire.get_write_buffer_size() > _MOST_UNREAD:
            self.abort()
            return
        self._site.send(self._wire, message(answer, method, last, route), at_once=last)
        if last and whole:
            self.end()
        elif last:
            # Closing with unread bytes resets the connection, and the client might never see the answer. So the
            # rest is read and thrown away until the client leaves, or has had its time.
            self.ended = True
            self.deadline = self._site.now + self._site.limits.linger_seconds

    def end(self) -> None:
        """Close, as soon as all is written."""
        self._site.flush()  # its own last answer may still be waiting for the others'
        self.ended = True
        self.deadline = self._site.now + self._site.limits.linger_seconds
        self._wire.close()
