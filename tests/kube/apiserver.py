"""The stand-in API server, able to misbehave on purpose: one switch per fault."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

import msgspec

from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.serving.http_messages import HangUp, Request, Response, Stream
from tessera.simulation.control_plane.apiserver import ApiServer, Target, event
from tessera.simulation.control_plane.store import StatusError, expired

END = None


class MisbehavingApiServer(ApiServer):
    """An API server that does what real ones do on their bad days."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.requests: list[Request] = []  # everything that was asked, in order
        self.intercept: Callable[[Request], Response | None] = lambda request: None
        self.seconds_per_answer = 0.0  # slow
        self.storm = 0  # so many requests get 429 from now on
        self.retry_after: int | None = 1  # what a 429 says about it
        self.gone_at_connect = 0  # so many watches get 410 as their status
        self.black_hole = False  # watches stay open and say nothing
        self.piece_bytes: int | None = None  # watch output is cut into pieces of this size
        # or "refuse" (422), "ignore" (as servers do that never heard of it), "end" (half-way, as some proxies do)
        self.watch_list = "serve"
        self._watches: dict[asyncio.Queue[bytes | Exception | None], Target] = {}
        self._changed = asyncio.Event()

    @property
    def cluster(self) -> Cluster:
        """How to reach it without credentials."""
        return Cluster(ServerAddress.parse(self.url, where="test"))

    @property
    def watches(self) -> int:
        """How many watches are open now."""
        return len(self._watches)

    @property
    def watched(self) -> list[str]:
        """What the watches are of that are open now."""
        return [target.kind.plural for target in self._watches.values()]

    @property
    def connections(self) -> int:
        """How many connections it has taken so far."""
        return self._http.accepted

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on requests or watches holds."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def asked(self, path: str = "", **query: str | None) -> list[Request]:
        """The requests so far for a path, with these query parameters (None: without)."""
        return [
            request
            for request in self.requests
            if request.path.startswith(path)
            and all(request.query.get(name) == value for name, value in query.items())
        ]

    async def answer(self, request: Request) -> Response | Stream:
        self.requests.append(request)
        self._changed.set()
        if self.seconds_per_answer:
            await asyncio.sleep(self.seconds_per_answer)
        if (intercepted := self.intercept(request)) is not None:
            return intercepted
        if self.storm > 0:
            self.storm -= 1
            error = StatusError(429, "TooManyRequests", "the server has received too many requests")
            headers = (("Retry-After", str(self.retry_after)),) if self.retry_after is not None else ()
            return Response(msgspec.json.encode(error.document), 429, headers=headers)
        if request.query.get("watch") == "true":
            if self.gone_at_connect > 0:
                self.gone_at_connect -= 1
                return status(expired())
            if request.query.get("sendInitialEvents") == "true" and self.watch_list == "refuse":
                message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch"
                return status(StatusError(422, "Invalid", message))
            if request.query.get("sendInitialEvents") == "true" and self.watch_list == "end":
                return Response(event("ADDED", b'{"metadata":{"name":"half"}}'))
        return await super().answer(request)

    async def watch(self, target: Target, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        if self.watch_list == "ignore":
            query = {name: value for name, value in query.items() if name != "sendInitialEvents"}
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(super().watch(target, query), queue))
        self._watches[queue] = target
        self._changed.set()
        try:
            while (piece := await queue.get()) is not END:
                if isinstance(piece, Exception):
                    raise piece
                size = self.piece_bytes or len(piece)
                for start in range(0, len(piece), size):
                    yield piece[start : start + size]
        finally:
            pump.cancel()
            del self._watches[queue]
            self._changed.set()

    async def _pump(
        self, pieces: AsyncIterator[bytes], queue: "asyncio.Queue[bytes | Exception | None]"
    ) -> None:
        async for piece in pieces:
            if not self.black_hole:
                queue.put_nowait(piece)
        queue.put_nowait(END)

    def say(self, line: bytes) -> None:
        """Send a line to every open watch, whatever it says."""
        for queue in self._watches:
            queue.put_nowait(line)

    def gone_mid_stream(self) -> None:
        """410, as an event in the middle of every open watch."""
        self.say(event("ERROR", msgspec.json.encode(expired().document)))

    def end_watches(self) -> None:
        """End every open watch in good order."""
        for queue in self._watches:
            queue.put_nowait(END)

    def cut_watches(self) -> None:
        """Cut the connection of every open watch."""
        for queue in self._watches:
            queue.put_nowait(HangUp())

    async def restart(self, pause: Callable[[], object] = lambda: None) -> None:
        """Stop, do something meanwhile, and listen again on the same port."""
        port = self._http.port
        await self.stop()
        pause()
        await self.start(port=port)


def status(error: StatusError) -> Response:
    """A refusal as a response."""
    return Response(msgspec.json.encode(error.document), error.code)
