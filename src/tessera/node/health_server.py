"""`/livez`, `/readyz` and `/metrics`: three small pages over plain HTTP."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tessera.core.errors import TesseraError

_PATIENCE: Final = 10.0  # seconds for a whole request
_MOST_BYTES: Final = 8192  # of a request's head
_PLAIN: Final = "text/plain; charset=utf-8"


class HealthServer:
    """Answers probes and scrapes."""

    def __init__(
        self, registry: CollectorRegistry, alive: Callable[[], bool], ready: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._probes = {"/livez": alive, "/healthz": alive, "/readyz": ready}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is a free one for 0."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_MOST_BYTES)
        except OSError as error:
            raise TesseraError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # a client that hangs, leaves, or sends more than a head harms nobody but itself
            with contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                async with asyncio.timeout(_PATIENCE):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            status, kind, body = "405 Method Not Allowed", _PLAIN, b"only GET\n"
        elif path == "/metrics":
            status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        elif probe := self._probes.get(path):
            good = probe()
            status, kind, body = (
                ("200 OK", _PLAIN, b"ok\n") if good else ("503 Service Unavailable", _PLAIN, b"not yet\n")
            )
        else:
            status, kind, body = "404 Not Found", _PLAIN, b"there are /livez, /readyz and /metrics\n"
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if method == "HEAD" else body)
