"""The least that an HTTPS server in Python does for a request: event loop, TLS, and the same bytes for everyone.

It has the webhook's own TLS and writes as the webhook does, many answers at a time. It waits for as many bytes as the
request announces, and copies its uid into the answer. No limits, no checks, no decision: no server, but the floor
under one. `python floor.py HOST:PORT CERTIFICATE KEY`
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import cast

import uvloop

from tessera.webhook.certificates.served import server_context
from tessera.webhook.http.connection import Connection
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits
from tessera.webhook.http.tls import TlsTransport

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_UID = re.compile(rb'"uid":"([^"]+)"')
_BODY = b'{"response":{"uid":"%b","patch":"' + b"x" * 700 + b'"}}'
_outbox: list[tuple[asyncio.Transport, bytes]] = []


def _flush() -> None:
    for transport, octets in _outbox:
        transport.write(octets)
    _outbox.clear()


class Floor(Connection):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._first = b""
        self._missing = 0

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
        else:
            self._first = data
            length = _LENGTH.search(data)
            self._missing = (int(length[1]) if length else 0) + data.find(b"\r\n\r\n") + 4 - len(data)
        if self._missing <= 0:
            self._missing = 0
            uid = _UID.search(self._first)
            body = _BODY % (uid[1] if uid else b"")
            if not _outbox:
                asyncio.get_running_loop().call_soon(_flush)
            _outbox.append(
                (self._transport, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            )

    def eof_received(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass

    pause_writing = resume_writing = eof_received


async def main(address: str, certificate: str, key: str) -> None:
    """Serve until killed."""
    listener = Listener({}, Limits())
    context = server_context(Path(certificate).read_bytes(), Path(key).read_bytes())
    host, _, port = address.rpartition(":")
    server = await asyncio.get_running_loop().create_server(
        lambda: TlsTransport(listener, context, Floor(listener)), host, int(port)
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:4]))
