"""Several webhooks behind one address, as a Service has them."""

import asyncio
import contextlib
import itertools
import subprocess
import threading
from types import TracebackType
from typing import Any, Self

from e2e.webhook import Webhook


class Replicas:
    """Webhooks whose certificates one authority signed. Each new connection goes to the next one."""

    def __init__(self, *webhooks: Webhook) -> None:
        self._first = webhooks[0]
        self._used = webhooks
        self._turn = itertools.count()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(30)
        self._port = self._server.sockets[0].getsockname()[1]

    @property
    def client(self) -> dict[str, Any]:
        """How the API server reaches them: a clientConfig."""
        return {**self._first.client, "url": f"https://127.0.0.1:{self._port}/mutate"}

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self._used[0].process

    def requests(self) -> float:
        """How many reviews they have answered."""
        return sum(one.requests() for one in self._used)

    def use(self, *webhooks: Webhook) -> None:
        """Lead new connections to these alone; there are no others when this returns."""
        self.lead_to(*webhooks)
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result(30)

    def lead_to(self, *webhooks: Webhook) -> None:
        """Lead new connections to these alone; those that are there stay."""
        self._used = webhooks

    async def _hang_up(self) -> None:
        before = set(self._open)
        for writer in before:
            writer.write_eof()  # the API server hangs up, too: else it might still ask
        for _ in range(100):
            if not before & self._open:
                return
            await asyncio.sleep(0.01)
        for writer in before & self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        webhook = self._used[next(self._turn) % len(self._used)]
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", webhook.port)
                await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            writer.close()
            self._open.remove(writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.1)  # until all sockets are closed


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything from one side to the other, until one of them has hung up."""
    try:
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: `_hang_up` has ended this side
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
