"""Listening: connections accepted, limited, swept, and in the end drained.

Sockets are accepted here rather than by the event loop's own server, for three reasons: every connection takes the
TLS context of its moment, so that a new certificate needs nothing but a new context; handshakes are limited in
number and time like connections, and take no place from them; and at the end the kernel's queue of connections is
emptied, not reset.

Which connection is answered next when there is much to do at once.

All connections share one thread. A small request is answered as it comes, in microseconds. Large ones, and those of a
client that sends many without waiting for answers, take turns: together they get a few milliseconds of each round of
the event loop, in the order in which they came, and between rounds all other clients are heard.
"""

import asyncio
import ctypes
import errno
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

from tessera.serving.address import Address
from tessera.webhook.http.connection import Connection
from tessera.webhook.http.messages import Counters, Limits, Route
from tessera.webhook.http.parser import HeaderCache
from tessera.webhook.http.tls import TlsTransport

_ROUND_SECONDS: Final = 0.005  # for all; one that has begun is not interrupted, and takes 20 ms at most


class FairQueue:
    """The connections that wait for their turn."""

    def __init__(self) -> None:
        self._waiting: deque[Connection] = deque()
        self._spent = 0.0  # seconds of this round
        self._begun = 0.0
        self._scheduled = False  # the next round

    @property
    def free(self) -> bool:
        """Whether there is time left in this round, and no connection waits already."""
        return not self._waiting and self._spent < _ROUND_SECONDS

    def begin(self) -> None:
        """Some work is done now."""
        self._begun = perf_counter()
        self._schedule()

    def end(self) -> float:
        """It is done; how many seconds it took."""
        now = perf_counter()
        taken, self._begun = now - self._begun, now
        self._spent += taken
        return taken

    def wait(self, connection: "Connection") -> None:
        """Go on with this connection when its turn comes."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._spent = 0.0
        self._scheduled = False
        waiting = self._waiting
        while waiting and self._spent < _ROUND_SECONDS:
            waiting.popleft().go_on()
        if waiting:
            self._schedule()


_BATCH: Final = 16  # connections accepted in a row before requests have their turn again
_SWEEP_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0  # without file descriptors: how long until accepting is tried again
_QUIET_SECONDS: Final = 1.0  # while draining: a connection that asked within this time may ask again
_DRAIN_STEP: Final = 0.05
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_M_MMAP_THRESHOLD: Final = -3  # malloc.h
_LARGE_BLOCK: Final = 1024 * 1024  # bytes; more than nearly all reviews have
_MOST_UNWRITTEN: Final = 16 * 1024  # bytes for one client that the kernel does not take; then it is stalled
_MOST_WAITING: Final = 64 * 1024  # bytes of responses that wait for each other; of small ones a hundred


class Listener:
    """One listening address, its connections, and what they have in common."""

    def __init__(
        self,
        routes: Mapping[bytes, Route],
        limits: Limits,
        tls: Callable[[], ssl.SSLContext] | None = None,
        on_fault: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.routes = dict(routes)
        self.limits = limits
        self.on_fault = on_fault
        self.counters = Counters()
        self.header_cache = HeaderCache()
        self.handshakes: set[TlsTransport] = set()  # accepted, not yet through the handshake
        self.connections: set[Connection] = set()
        self.fair_queue = FairQueue()
        self.buffered = 0  # bytes of requests that are not answered yet
        self.draining = False
        self.now = 0.0  # loop time, at most a sweep old: exact enough for timeouts and free to read
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop
        self._socket: socket.socket | None = None
        self._accepted: set[asyncio.Task[None]] = set()  # not yet in the event loop's hands
        self._sweeper: asyncio.TimerHandle | None = None
        self._outbox: list[tuple[asyncio.Transport, bytes]] = []
        self._waiting = 0  # bytes in it

    # From the start to the end

    def start(self, address: Address) -> Address:
        """Listen; the address that is answered has the port that was really taken."""
        self._loop = asyncio.get_running_loop()
        _return_large_blocks()
        self._socket = address.listen()
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # which its connections inherit
            self._socket.setsockopt(socket.SOL_SOCKET, option, self.limits.socket_bytes)
        self._loop.add_reader(self._socket.fileno(), self._accept_some)
        self._sweep()
        return Address(address.host, self._socket.getsockname()[1])

    async def drain(self, seconds: float) -> None:
        """Stop accepting, answer whatever was accepted, then close. At most that long; what is left is cut off."""
        self.draining = True
        if self._socket is not None:
            while self._accept():
                pass
            self._stop_listening()
        start = self._loop.time()
        while (self._accepted or self.handshakes or self.connections) and self._loop.time() < start + seconds:
            self.now = self._loop.time()
            # What was asked before this began is known to a sweep only.
            since = self.now - _QUIET_SECONDS - _SWEEP_SECONDS
            for connection in list(self.connections):
                connection.end_if_quiet(since)
            await asyncio.sleep(_DRAIN_STEP)
        self.abort()

    def abort(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._stop_listening()
        for one in self._clients():
            one.abort()
        for task in self._accepted:
            task.cancel()

    def sweep(self, now: float) -> None:
        """End what has had its time; called about once a second."""
        self.now = now
        for one in self._clients():
            if one.deadline <= now:
                one.expire()

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)  # first: whatever this one does
        self.sweep(self._loop.time())

    def _clients(self) -> list[TlsTransport | Connection]:
        return [*self.handshakes, *self.connections]

    def _stop_listening(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    # Letting in

    def _accept_some(self) -> None:
        for _ in range(_BATCH):
            if not self._accept():
                break

    def _accept(self) -> bool:
        """Take one connection from the kernel's queue; false when there is none."""
        assert self._socket is not None  # noqa: S101 # called between start and drain only
        try:
            client, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError:
            return True  # that one has gone already
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            self._rest(self._socket)
            return False
        self.counters.accepted += 1
        client.settimeout(0)
        task = self._loop.create_task(self._connect(client))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)
        return True

    def _rest(self, listening: socket.socket) -> None:
        """Out of file descriptors: the queue stays readable, so a pause saves a busy loop."""
        self.counters.refused += 1
        self._loop.remove_reader(listening.fileno())

        def again() -> None:
            if self._socket is listening and not self.draining:
                self._loop.add_reader(listening.fileno(), self._accept_some)

        self._loop.call_later(_RETRY_SECONDS, again)

    async def _connect(self, client: socket.socket) -> None:
        try:
            transport, _ = await self._loop.connect_accepted_socket(self._protocol, client)
            transport.set_write_buffer_limits(_MOST_UNWRITTEN)
        except OSError:  # gone already
            self.counters.handshake_failures += 1
            client.close()

    def _protocol(self) -> asyncio.Protocol:
        connection = Connection(self)
        return connection if self._tls is None else TlsTransport(self, self._tls(), connection)

    def arrive(self, handshake: TlsTransport) -> None:
        """Let in a client that has yet to shake hands.

        At the limit one goes: of the address that has most of them, the one that has taken longest.
        """
        if len(self.handshakes) >= self.limits.connections:
            self.counters.refused += 1
            share = Counter(one.address for one in self.handshakes)
            min(self.handshakes, key=lambda one: (-share[one.address], one.deadline)).abort()
        self.handshakes.add(handshake)

    def join(self, connection: Connection) -> None:
        """Let in a client that may ask.

        At the limit one goes: one that never had a request answered before one that had, then one of the address that
        has most of them; of these the one idle longest, or else the one sending longest.
        """
        if len(self.connections) >= self.limits.connections:
            self.counters.refused += 1
            share = Counter(one.address for one in self.connections)
            min(
                self.connections, key=lambda one: (one.served, -share[one.address], one.busy, one.deadline)
            ).abort()
        self.connections.add(connection)

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.set_buffered(connection, 0)

    def set_buffered(self, connection: Connection, buffered: int) -> None:
        """A connection keeps so many bytes of requests. When all keep too many, some are refused.

        First of clients that never had one answered, then of the address that sends most; of these the largest.
        """
        self.buffered += buffered - connection.buffered
        connection.buffered = buffered
        while self.buffered > self.limits.reading_bytes:
            reading = [one for one in self.connections if one.buffered]
            share: Counter[str] = Counter()
            for one in reading:
                share[one.address] += one.buffered
            self.counters.crowded_out += 1
            max(reading, key=lambda one: (not one.served, share[one.address], one.buffered)).refuse()

    # Sending

    def send(self, transport: asyncio.Transport, octets: bytes, *, at_once: bool = False) -> None:
        """Write, but answer first what else has arrived in the meantime.

        A client with many connections is then woken once for many responses, which takes a quarter of the time away.
        """
        if at_once or (len(self.connections) < 2 and not self._outbox):
            self.flush()  # earlier responses on the same connection come first
            transport.write(octets)
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._outbox.append((transport, octets))
        self._waiting += len(octets)
        if self._waiting > _MOST_WAITING:  # only a write shows whether a client takes it
            self.flush()

    def flush(self) -> None:
        """Write what waits to be written, except to clients that have gone meanwhile."""
        outbox, self._outbox, self._waiting = self._outbox, [], 0
        for transport, octets in outbox:
            if not transport.is_closing():
                transport.write(octets)


def _return_large_blocks() -> None:
    """Have the allocator return the memory of a large body to the kernel as soon as it is free.

    By itself glibc keeps blocks as large as the largest that was ever freed in its heap, and bodies of several MB leave holes
    there: twice what they were takes room for good.
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
