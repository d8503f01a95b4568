"""The least that an HTTPS server in Python does for a request: event loop, TLS, and the same bytes for everyone.

It waits for as many bytes as the request announces, and copies its uid into the answer. No limits, no checks, no
decision: no server, but the floor under one. `python floor.py HOST:PORT CERTIFICATE KEY`
"""

import asyncio
import re
import ssl
import sys

import uvloop

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_UID = re.compile(rb'"uid":"([^"]+)"')
_BODY = b'{"response":{"uid":"%b","patch":"' + b"x" * 700 + b'"}}'
_buffer = memoryview(bytearray(64 * 1024))


class Floor(asyncio.BufferedProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = transport.write  # type: ignore[attr-defined] # it is a stream's
        self._first = b""
        self._missing = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._missing:
            self._missing -= nbytes
        else:
            self._first = first = bytes(_buffer[:nbytes])
            length = _LENGTH.search(first)
            self._missing = (int(length[1]) if length else 0) + first.find(b"\r\n\r\n") + 4 - nbytes
        if self._missing <= 0:
            self._missing = 0
            uid = _UID.search(self._first)
            body = _BODY % (uid[1] if uid else b"")
            self._write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def main(address: str, certificate: str, key: str) -> None:
    """Serve until killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    host, _, port = address.rpartition(":")
    server = await asyncio.get_running_loop().create_server(Floor, host, int(port), ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:4]))
