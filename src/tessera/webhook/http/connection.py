"""HTTP/1.1 on one connection: bytes in, a handler called, one write out.

A connection never blocks: handlers are functions of microseconds, so requests that were pipelined are answered in their
order, one after the other, and there is nothing to cancel. Large ones and many at once take turns with those of other
connections (`FairQueue`), and until then nothing more is read. What may go wrong on the way in has a limit (`Limits`) and a
response; what cannot be answered is closed cleanly.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from tessera.webhook.http.messages import CONTINUE, TEXT, Response
from tessera.webhook.http.parser import Continue, Parser, ParserEvent, Refusal, Request

if TYPE_CHECKING:  # a listener makes connections
    from tessera.webhook.http.listener import Listener

_SMALL: Final = 16 * 1024  # bytes of a body: what is not larger is decided in a few milliseconds at most
_EVENT_BYTES: Final = 100  # of one that waits, beside its body
_KERNEL_FACTOR: Final = 4  # of a client that takes nothing: both directions, each with as much room again
_COSTLY_SECONDS: Final = 0.001  # a decision takes a tenth of it
_FAULT: Final = Response(500, b"internal error\n", TEXT)


class Connection(asyncio.Protocol):
    """One client: at most one request being read, responses going out."""

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._parser: Parser  # from the handshake to the end, as the transport
        self._transport: asyncio.Transport
        self._stalled = False  # the client does not take what is written
        self._costly = False  # its last request took long, and the next one may
        self._pending: deque[ParserEvent] | None = None  # what waits for its turn; meanwhile nothing is read
        self.address = ""  # of the client
        self.buffered = 0  # bytes of requests that are not answered yet
        self.served = False  # has had a request answered: not a client that only takes room
        self.busy = False  # a request has begun and is not answered yet
        self.deadline: float  # loop time
        self.ended = False  # the last response has been written: what still comes is discarded

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._listener
        self._transport = cast(asyncio.Transport, transport)
        self.deadline = listener.now + listener.limits.idle_seconds  # not from before the handshake
        self._parser = Parser(listener.routes, listener.limits, listener.header_cache)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        listener.join(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._leave()
        # The transport refers to us, and we to it: nothing should wait for the garbage collector.
        self._parser.close()
        del self._parser, self._transport

    def data_received(self, data: bytes) -> None:
        if self.ended:
            return
        events = self._parser.feed(data)
        if (  # nearly always, and quick to find out
            len(events) == 1
            and not self._costly
            and not self._stalled
            and self._pending is None
            and (type(events[0]) is not Request or len(events[0].body) <= _SMALL)
        ):
            begun = perf_counter()
            self._take(events[0])
            self._costly = perf_counter() - begun > _COSTLY_SECONDS
        elif events:
            self._wait(events)
        reading = self._parser.reading
        if reading or self.buffered:
            self.count_buffered()
        if reading and not self.busy and not self.ended:
            self.busy = True
            self.deadline = self._listener.now + self._listener.limits.request_seconds

    def go_on(self) -> None:
        """Answer what waits, as long as there is time."""
        fair_queue, pending = self._listener.fair_queue, self._pending
        if pending is None:  # it has gone, or had its turn
            return
        while pending and not self.ended and not self._stalled:
            fair_queue.begin()
            self._take(pending.popleft())
            self._costly = fair_queue.end() > _COSTLY_SECONDS
            self.busy = self.busy or bool(pending)
            if pending and not fair_queue.free and not self._stalled:
                fair_queue.wait(self)
                return
        if not pending and not self.ended:
            self._pending = None
            self.count_buffered()
            if not self._stalled:
                fair_queue.begin()  # what came meanwhile is read at once
                self._transport.resume_reading()
                fair_queue.end()
                self.count_buffered()

    def _wait(self, events: Sequence[ParserEvent]) -> None:
        """Take turns with the other connections; while it waits, a client is not read from."""
        fair_queue = self._listener.fair_queue
        if self._pending is not None:
            self._pending.extend(events)
            return
        if len(events) == 1 and fair_queue.free and not self._stalled:
            fair_queue.begin()  # at once, without a word to the kernel
            self._take(events[0])
            self._costly = fair_queue.end() > _COSTLY_SECONDS
            return
        self._pending = deque(events)
        self._transport.pause_reading()
        if self._stalled:
            return
        if fair_queue.free:
            self.go_on()
        else:
            self.busy = True
            fair_queue.wait(self)

    def count_buffered(self) -> None:
        """Report to the listener how many bytes are kept of requests that are not answered, and of responses that are not taken."""
        buffered: int = self._transport.get_extra_info("unread", 0)
        if self._stalled:
            buffered += self._transport.get_write_buffer_size()
            buffered += _KERNEL_FACTOR * self._listener.limits.socket_bytes
        if self._parser.reading:
            buffered += self._parser.buffered
        for one in self._pending or ():
            buffered += _EVENT_BYTES + (len(one.body) if isinstance(one, Request) else 0)
        self._listener.set_buffered(self, 0 if self.ended else buffered)

    def eof_received(self) -> None:
        """The client will send no more, but may still read: the transport closes once all is written."""
        self._listener.flush()

    def pause_writing(self) -> None:
        """The client does not read: neither do we, and not for ever."""
        self._stalled = True
        self._transport.pause_reading()
        self.deadline = self._listener.now + self._listener.limits.request_seconds
        self.count_buffered()

    def resume_writing(self) -> None:
        self._stalled = False
        self.count_buffered()
        if self._pending is None:
            self._transport.resume_reading()
        else:
            self._listener.fair_queue.wait(self)
        if not self.busy and not self.ended:
            self.deadline = self._listener.now + self._listener.limits.idle_seconds

    # The listener's side

    def expire(self) -> None:
        """The deadline has passed."""
        if self.ended or self._transport.get_write_buffer_size():
            self.abort()
        elif self._pending and not self._stalled:  # it waits for us, not we for it
            self.deadline = self._listener.now + self._listener.limits.request_seconds
        elif self.busy:
            self._listener.counters.timeouts += 1
            self._take(self._parser.refuse(408, "the request did not arrive in time"))
        else:
            self._end()

    def end_if_quiet(self, since: float) -> None:
        """While draining: end a connection on which nothing was asked since then."""
        if not self.busy and not self.ended and self.deadline - self._listener.limits.idle_seconds <= since:
            self._end()

    def refuse(self) -> None:
        """Give up what has come of this client: there is no room for it."""
        if self._stalled or self._pending:
            self.abort()
        else:
            self._take(self._parser.refuse(503, "too much is being read at once, try again"))

    def abort(self) -> None:
        """End now, whatever is still to be sent."""
        self.ended = True
        self._leave()
        self._transport.abort()

    def _leave(self) -> None:
        self._listener.leave(self)
        self._pending = None

    # From an event to a response

    def _take(self, event: ParserEvent) -> None:
        listener = self._listener
        if self.ended:  # by the event before
            return
        if isinstance(event, Request):
            try:
                response = event.route.handle(event.body)
            except Exception as error:  # noqa: BLE001 # the next request must be served, whatever a handler did
                listener.counters.faults += 1
                listener.on_fault(error)
                response = _FAULT
            self.served = True
            self._respond(response, event.method, last=listener.draining or not event.keep_alive)
        elif isinstance(event, Refusal):
            listener.counters.bad_requests += 1
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
        self.deadline = listener.now + listener.limits.idle_seconds
        listener.send(self._transport, response.encode(method, last=last), at_once=last)
        if last and whole:
            self._end()
        elif last:
            # Closing with unread bytes resets the connection, and the client might never see the response. So the
            # rest is read and discarded until the client leaves, or has had its time.
            self.ended = True
            self._rest()

    def _end(self) -> None:
        """Close, as soon as all is written."""
        listener = self._listener
        listener.flush()  # its own last response may still be waiting for the others'
        self.ended = True
        self._rest()
        self._transport.close()

    def _rest(self) -> None:
        """After the last response: keep nothing, and read on until the client has gone."""
        listener = self._listener
        self.deadline = listener.now + listener.limits.linger_seconds
        listener.set_buffered(self, 0)
        if self._pending is not None:
            self._pending = None
            if not self._stalled:
                self._transport.resume_reading()
