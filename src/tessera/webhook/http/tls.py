"""TLS on one connection: bytes of the network below, a connection's requests and responses above.

The event loop could do this too: about as fast, with large reviews a little faster. But a connection that is kept takes
twice the memory there, and four times after large reviews (the benchmark `tls`); and a client is known here from its
first byte, so that handshakes are limited in number and time like connections (`Listener.handshakes`).
"""

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, cast

from tessera.webhook.http.connection import Connection

if TYPE_CHECKING:  # a listener makes these
    from tessera.webhook.http.listener import Listener

_RECORD: Final = 16 * 1024  # bytes, the most that one TLS record carries


class TlsTransport(asyncio.Protocol, asyncio.Transport):
    """A protocol to the socket's transport, a transport to the connection."""

    def __init__(self, listener: "Listener", context: ssl.SSLContext, connection: Connection) -> None:
        self._listener = listener
        self._connection: Connection | None = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: asyncio.Transport
        self._shaken = False
        self._closing = False
        self._paused = False  # by the connection
        self._reading = False  # records are being passed on, further up the stack
        self._unread = b""  # what came meanwhile, as it came
        self.address = ""  # of the client
        self.deadline = listener.now + listener.limits.handshake_seconds

    # The network's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._listener.arrive(self)

    def data_received(self, data: bytes) -> None:
        # Piece by piece: the buffers of OpenSSL grow with what is put in, and never shrink.
        for at in range(0, len(data), _RECORD):
            if self._paused:
                self._unread += data[at:]
                cast(Connection, self._connection).count_buffered()
                return
            self._incoming.write(data[at : at + _RECORD])
            if self._closing:
                self._discard()
            elif self._shaken or self._shake():
                self._read()

    def eof_received(self) -> None:
        if self._shaken and not self._closing:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        connection, self._connection = cast(Connection, self._connection), None  # they refer to each other
        if self._shaken:
            connection.connection_lost(error)
        else:
            self._listener.handshakes.discard(self)
            self._listener.counters.handshake_failures += 1

    def pause_writing(self) -> None:
        if self._connection is not None and self._shaken:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None and self._shaken:
            self._connection.resume_writing()

    # The listener's side, during the handshake

    def expire(self) -> None:
        self.abort()

    # The connection's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._closing:
            return
        try:
            for at in range(0, len(data), _RECORD):
                self._tls.write(data[at : at + _RECORD])
                self._transport.write(self._outgoing.read())
                if self.is_closing():  # the client takes nothing, and there is no room to wait for it
                    return
        except ssl.SSLError:
            # Half of a message of TLS's own has come (a new key, say): until the rest has, nothing can be sent.
            self.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on, first with what had come already."""
        self._paused = False
        if self._reading:  # and does so by itself
            self._transport.resume_reading()
            return
        if self._shaken and not self._closing:
            self._read()
        if not self._paused:
            unread, self._unread = self._unread, b""
            self.data_received(unread)
        if not self._paused:
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What the socket's transport knows; and `unread`, how many bytes wait to be read here."""
        if name == "unread":
            return len(self._unread)
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Say close notify, and close once the client has done so too (or its connection's time is up)."""
        if self._closing:
            return
        self._closing = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # mostly: it has not said close notify yet
            self._flush()
        else:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._listener.handshakes.discard(self)  # its place is free from now on
        self._transport.abort()

    # In between

    def _shake(self) -> bool:
        """Go on with the handshake; true when it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError:  # what the client sent: no TLS, no common version
            self._flush()
            self._closing = True
            self._transport.close()
            return False
        self._flush()
        self._shaken = True
        self._listener.handshakes.discard(self)
        cast(Connection, self._connection).connection_made(self)
        return True

    def _read(self) -> None:
        """Pass on what has arrived in whole records."""
        connection = cast(Connection, self._connection)
        self._reading = True
        try:
            self._read_records(connection)
        finally:
            self._reading = False
        if self._outgoing.pending:  # TLS has something to say for itself, such as a new key
            self._flush()

    def _read_records(self, connection: Connection) -> None:
        while self._incoming.pending and not self._closing and not self._paused:
            try:
                data = self._tls.read(_RECORD)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:  # not what the client encrypted
                self._flush()
                self.abort()
                return
            if not data:
                self._end()
                return
            connection.data_received(data)

    def _end(self) -> None:
        """The client will send no more."""
        cast(Connection, self._connection).eof_received()
        self.close()

    def _discard(self) -> None:
        """After our close notify: wait for the client's."""
        try:
            while self._tls.read(_RECORD):
                pass
        except ssl.SSLWantReadError:
            self._outgoing.read()  # what TLS would answer, such as a new key for each that it is sent
            return
        except ssl.SSLError:
            pass
        self._transport.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())
