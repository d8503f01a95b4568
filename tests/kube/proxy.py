"""A little proxy: CONNECT, and plain requests with a whole URL."""

import asyncio
import base64
import ssl
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class LittleProxy:
    """Forwards to whatever it is asked for, wherever `routes` says that this is."""

    def __init__(
        self,
        user: str | None = None,
        routes: dict[str, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.user = user
        self._tls = tls
        self.routes = routes or {}  # `host:port` → a port on this machine
        self.heads: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_) -> None:
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader, writer) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader, writer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        method, target, _ = head.split(" ", 2)
        if self.user is not None and base64.b64encode(self.user.encode()).decode() not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        authority = target if method == "CONNECT" else urlsplit(target).netloc
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.routes[authority])
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            upstream_writer.write(head.replace(f"http://{authority}", "", 1).encode())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, upstream_writer))
                group.create_task(_copy(upstream_reader, writer))
        finally:
            for one in (writer, upstream_writer):
                one.transport.abort()


async def _copy(reader, writer) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
