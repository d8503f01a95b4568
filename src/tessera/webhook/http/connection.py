"""HTTP/1.1 on one connection: bytes in, a handler called, one write out.

A connection never blocks and never waits: handlers are functions of microseconds, so requests that were pipelined
are answered in their order, one after the other, and there is nothing to cancel. What may go wrong on the way in
has a limit (`Limits`) and a response; what cannot be answered is closed cleanly.
"""

import asyncio
from typing import TYPE_CHECKING, Final, cast

from tessera.webhook.http.messages import CONTINUE, MIB, TEXT, Response
from tessera.webhook.http.parser import Continue, Event, Parser, Refusal, Request

if TYPE_CHECKING:  # a listener makes connections
    from tessera.webhook.http.listener import Listener

_MOST_UNREAD: Final = 8 * MIB  # more than any one response
_FAULT: Final = Response(500, b"internal error\n", TEXT)


class Connection(asyncio.Protocol):
    """One client: at most one request being read, responses going out."""

    __slots__ = ("_listener", "_parser", "_stalled", "_transport", "busy", "deadline", "ended")

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._parser: Parser  # from the handshake to the end, as the transport
        self._transport: asyncio.Transport
        self._stalled = False  # the client does not take what is written
        self.busy = False  # a request has begun and is not answered yet
        self.deadline: float  # loop time
        self.ended = False  # the last response has been written: whatever still comes is thrown away

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        self._transport = cast(asyncio.Transport, transport)
        self.deadline = listener.now + listener.limits.idle_seconds  # not from before the handshake
        self._parser = Parser(listener.routes, listener.limits, listener.heads)
        listener.join(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._listener.connections.discard(self)
        # The transport refers to us, and we to it: nothing should wait for the garbage collector.
        self._parser.close()
        del self._parser, self._transport

    def data_received(self, data: bytes) -> None:
        events = () if self.ended else self._parser.feed(data)
        for event in events:
            self._take(event)
        if not self.ended and not self.busy and self._parser.reading:
            self.busy = True
            self.deadline = self._listener.now + self._listener.limits.request_seconds

    def eof_received(self) -> None:
        """The client will send no more, but may still read: the transport closes once all is written."""
        self._listener.flush()

    def pause_writing(self) -> None:
        """The client does not read: neither do we, and not for ever."""
        self._stalled = True
        self._transport.pause_reading()
        self.deadline = self._listener.now + self._listener.limits.request_seconds

    def resume_writing(self) -> None:
        self._stalled = False
        self._transport.resume_reading()
        if not self.busy and not self.ended:
            self.deadline = self._listener.now + self._listener.limits.idle_seconds

    # The listener's side

    def expire(self) -> None:
        """The deadline has passed."""
        if self.ended or self._transport.get_write_buffer_size():
            self.abort()
        elif self.busy:
            self._listener.tally.timeouts += 1
            self._take(self._parser.refuse(408, "the request did not arrive in time"))
        else:
            self._end()

    def end_if_quiet(self, since: float) -> None:
        """While draining: end a connection on which nothing was asked since then."""
        if not self.busy and not self.ended and self.deadline - self._listener.limits.idle_seconds <= since:
            self._end()

    def abort(self) -> None:
        """End now, whatever is still to be sent."""
        self.ended = True
        self._listener.connections.discard(self)
        self._transport.abort()

    # From an event to a response

    def _take(self, event: Event) -> None:
        listener = self._listener
        if self.ended:  # by the event before
            return
        if isinstance(event, Request):
            try:
                response = event.route.handle(event.body)
            except Exception as error:  # noqa: BLE001 # the next request must be served, whatever a handler did
                listener.tally.faults += 1
                listener.on_fault(error)
                response = _FAULT
            self._respond(response, event.method, last=listener.draining or not event.keep_alive)
        elif isinstance(event, Refusal):
            listener.tally.bad_requests += 1
            last = listener.draining or not event.keep_alive
            self._respond(event.response, event.method, last=last, whole=event.whole)
        elif isinstance(event, Continue):
            listener.send(self._transport, CONTINUE, at_once=True)
        else:  # answered as if it had not wished for another protocol
            self._end()

    def _respond(self, response: Response, method: bytes, *, last: bool, whole: bool = True) -> None:
        """Answer the request; after the last response close, unless the request is not `whole`, see below."""
        listener = self._listener
        self.busy = False
        if not self._stalled:  # else it has been given its time, and this is one of many that came at once
            self.deadline = listener.now + listener.limits.idle_seconds
        elif self._transport.get_write_buffer_size() > _MOST_UNREAD:
            self.abort()
            return
        listener.send(self._transport, response.encode(method, last=last), at_once=last)
        if last and whole:
            self._end()
        elif last:
            # Closing with unread bytes resets the connection, and the client might never see the response. So the
            # rest is read and thrown away until the client leaves, or has had its time.
            self.ended = True
            self.deadline = listener.now + listener.limits.linger_seconds

    def _end(self) -> None:
        """Close, as soon as all is written."""
        listener = self._listener
        listener.flush()  # its own last response may still be waiting for the others'
        self.ended = True
        self.deadline = listener.now + listener.limits.linger_seconds
        self._transport.close()
