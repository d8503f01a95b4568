"""What all connections of one listener share: routes, limits, counters, and the answers that wait to be written."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tessera.webhook.http.messages import Limits, Route, Tally

_MOST_HEADS: Final = 1024  # kept at a time; those of an API server differ in nothing but the body's length
_LONGEST_HEAD: Final = 1024  # bytes
_MOST_WAITING: Final = 1024 * 1024  # bytes of answers that wait for each other


class Wire(Protocol):
    """What a connection writes to: a transport of the event loop's, or TLS on top of one."""

    def write(self, data: bytes, /) -> None:
        """Send this, after what was written before."""

    def get_write_buffer_size(self) -> int:
        """How many bytes the client has not taken yet."""

    def pause_reading(self) -> None:
        """Take nothing more from the client."""

    def resume_reading(self) -> None:
        """Go on."""

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""

    def close(self) -> None:
        """Send what was written, then close."""

    def abort(self) -> None:
        """Close now."""


class Guest(Protocol):
    """A connection as the site sees it."""

    deadline: float  # loop time at which it expires

    def expire(self) -> None:
        """The deadline has passed."""

    def abort(self) -> None:
        """End now, whatever is still to be sent."""


class Client(Guest, Protocol):
    """A guest that may ask."""

    busy: bool  # a request has begun and is not answered yet

    def end_if_quiet(self, since: float) -> None:
        """While draining: end, if nothing was asked since then."""


class Site:
    """A listener's connections and what they have in common."""

    __slots__ = (
        "_outbox",
        "_waiting",
        "arrivals",
        "connections",
        "draining",
        "heads",
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
        self.arrivals: set[Guest] = set()  # accepted, not yet through the handshake
        self.connections: set[Client] = set()
        self.draining = False
        self.now = 0.0  # loop time, at most a sweep old: exact enough for timeouts and free to read
        # Heads of requests that the parser has read, and what it made of them: who answers, how long the body is.
        # The same bytes say the same every time, so only new ones go through the parser.
        self.heads: dict[bytes, tuple[Route, int]] = {}
        self._outbox: list[tuple[Wire, bytes]] = []
        self._waiting = 0  # bytes in it

    def learn(self, head: bytes, route: Route, length: int) -> None:
        """Keep what a head says."""
        if len(head) <= _LONGEST_HEAD:
            if len(self.heads) >= _MOST_HEADS:
                del self.heads[next(iter(self.heads))]
            self.heads[head] = route, length

    def send(self, wire: Wire, octets: bytes, *, at_once: bool = False) -> None:
        """Write, but answer first what else has arrived in the meantime.

        A client with many connections is then woken once for many answers, which takes a quarter of the time away.
        """
        if at_once or (len(self.connections) < 2 and not self._outbox):
            self.flush()  # earlier answers on the same connection come first
            wire.write(octets)
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._outbox.append((wire, octets))
        self._waiting += len(octets)
        if self._waiting > _MOST_WAITING:  # only what is written tells whether a client takes it
            self.flush()

    def flush(self) -> None:
        """Write what waits to be written, except to those who have gone meanwhile."""
        outbox, self._outbox, self._waiting = self._outbox, [], 0
        for wire, octets in outbox:
            if not wire.is_closing():
                wire.write(octets)

    def sweep(self, now: float) -> None:
        """End what has had its time; called about once a second."""
        self.now = now
        for guest in [one for one in (*self.arrivals, *self.connections) if one.deadline <= now]:
            guest.expire()

    def arrive(self, guest: Guest) -> None:
        """Let in who has yet to shake hands; at the limit, the one that has taken longest for it goes."""
        if len(self.arrivals) >= self.limits.connections:
            self.tally.refused += 1
            min(self.arrivals, key=lambda a: a.deadline).abort()
        self.arrivals.add(guest)

    def join(self, client: Client) -> None:
        """Let in who may ask; at the limit, who has been idle longest goes, or else has been sending longest."""
        if len(self.connections) >= self.limits.connections:
            self.tally.refused += 1
            min(self.connections, key=lambda c: (c.busy, c.deadline)).abort()
        self.connections.add(client)

    def abort(self) -> None:
        """End all of them now."""
        for guest in (*self.arrivals, *self.connections):
            guest.abort()
