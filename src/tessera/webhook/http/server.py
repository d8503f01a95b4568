"""Listening: connections accepted, limited, swept, and in the end drained.

Sockets are accepted here rather than by the event loop's own server, for three reasons: every connection takes the
TLS context of its moment, so that a new certificate needs nothing but a new context; handshakes are limited in
number and time like connections, and take no place from them; and at the end the kernel's queue of connections is
emptied, not reset.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from tessera.serving.address import Address
from tessera.webhook.http.connection import Connection
from tessera.webhook.http.site import Site
from tessera.webhook.http.tls import Secure

_BATCH: Final = 16  # connections accepted in a row before requests have their turn again
_SWEEP_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0  # without file descriptors: how long until accepting is tried again
_QUIET_SECONDS: Final = 1.0  # while draining: a connection that asked within this time may ask again
_DRAIN_STEP: Final = 0.05
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Server:
    """One listening address and everything that is connected to it."""

    def __init__(self, site: Site, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self.site = site
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._welcomes: set[asyncio.Task[None]] = set()  # accepted, not yet in the event loop's hands
        self._sweeper: asyncio.TimerHandle | None = None

    def start(self, address: Address) -> Address:
        """Listen; the address that is answered has the port that was really taken."""
        self._socket = address.listen()
        self._loop.add_reader(self._socket.fileno(), self._accept_some)
        self._sweep()
        return Address(address.host, self._socket.getsockname()[1])

    async def drain(self, seconds: float) -> None:
        """Stop accepting, answer whatever was accepted, then close. At most that long; what is left is cut off."""
        self.site.draining = True
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            while self._accept():
                pass
            self._socket.close()
            self._socket = None
        start = self._loop.time()
        while (
            self._welcomes or self.site.arrivals or self.site.connections
        ) and self._loop.time() < start + seconds:
            self.site.now = self._loop.time()
            # What was asked before this began is known to a sweep only.
            since = self.site.now - _QUIET_SECONDS - _SWEEP_SECONDS
            for connection in list(self.site.connections):
                connection.end_if_quiet(since)
            await asyncio.sleep(_DRAIN_STEP)
        self.abort()

    def abort(self) -> None:
        """Close everything now."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self.site.abort()
        for task in self._welcomes:
            task.cancel()

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)  # first: whatever this one does
        self.site.sweep(self._loop.time())

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
            self._rest()
            return False
        self.site.tally.accepted += 1
        client.settimeout(0)
        task = self._loop.create_task(self._welcome(client))
        self._welcomes.add(task)
        task.add_done_callback(self._welcomes.discard)
        return True

    def _rest(self) -> None:
        """Out of file descriptors: the queue stays readable, so looking away for a while saves a busy loop."""
        listening = self._socket
        assert listening is not None  # noqa: S101 # see _accept
        self.site.tally.refused += 1
        self._loop.remove_reader(listening.fileno())

        def again() -> None:
            if self._socket is listening and not self.site.draining:
                self._loop.add_reader(listening.fileno(), self._accept_some)

        self._loop.call_later(_RETRY_SECONDS, again)

    async def _welcome(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, client)
        except OSError:  # gone already
            self.site.tally.handshake_failures += 1
            client.close()

    def _protocol(self) -> asyncio.Protocol:
        connection = Connection(self.site)
        return connection if self._tls is None else Secure(self.site, self._tls(), connection)
