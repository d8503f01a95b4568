"""The dashboard's paths: its files, the state, the stream of changes, nodes' mosaics, and the question about a pod.

It listens on loopback by default, and answers only requests that call it by a name of loopback, or by a name
that it was given: a page of another server that has its own name point here (DNS rebinding) is refused, and so is a form
that another page sends here.
"""

import asyncio
import errno
import importlib.resources
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from tessera.core.errors import InvalidInput, TesseraError
from tessera.dashboard.board import Board, Parts
from tessera.dashboard.following import following
from tessera.dashboard.reasons import Ask, Reasons
from tessera.kube.rest.client import Client
from tessera.serving.address import Address
from tessera.serving.http_messages import Request, Response, Stream, text
from tessera.serving.http_server import Server
from tessera.serving.metrics import CONTENT_TYPE, exposition

Explain = Callable[[str], Awaitable[str]]  # YAML → words; InvalidInput for what is no pod
Why = Callable[[str, str], Awaitable[str]]  # namespace and pod → why it waits, in words

_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HOST: Final = "127.0.0.1"
_LOOPBACK: Final = frozenset({HOST, "localhost", "::1"})
# Everything the page needs comes from here, and nothing else may; it stands in no frame, and no form leaves it.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_PACE: Final = 0.1  # seconds: changes within that time are sent together
_IDLE: Final = 4  # for every second of work so many of rest: thousands of nodes take a tenth of one to add up
_SILENCE: Final = 15.0  # seconds, then a word so that both sides know the other is there
_MOST_MOSAICS: Final = 100  # in one answer: more than fit a screen, and half a megabyte
_BEHIND: Final = 256  # messages that a listener may be behind; one that reads no more is let go


@asynccontextmanager
async def serve_dashboard(
    client: Client | None,
    board: Board,
    explain: Explain,
    where: Address,
    *,
    names: Collection[str] = (),
    denials: bool = True,
    why: Why | None = None,
    ask: Ask | None = None,
) -> AsyncIterator[str]:
    """Serve a cluster's page to those who call it by a name of this machine or one of `names`; its address.

    Without a client the board stays as it is.
    """
    page = Page(board, explain, names, why)
    url = await page.start(where)
    try:
        followed = following(client, board, denials=denials) if client else nullcontext()
        async with followed, asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(page.run())]
            if ask is not None:
                running.append(tasks.create_task(Reasons(board, ask, page.is_watched).run()))
            try:
                yield url
            finally:
                for task in running:
                    task.cancel()
    finally:
        await page.stop()


@asynccontextmanager
async def serve_metrics(board: Board, where: Address) -> AsyncIterator[None]:
    """Serve a board's metrics and nothing else, to every client: Prometheus calls pods by their addresses."""

    async def respond(request: Request) -> Response:
        return _metrics(board) if request.path == "/metrics" else text("nothing here", 404)

    server = Server(respond, headers=_HEADERS)
    await server.start(where)
    try:
        yield
    finally:
        await server.stop()


def _metrics(board: Board) -> Response:
    return Response(exposition(board.metrics()), content_type=CONTENT_TYPE)


class Page:
    def __init__(
        self, board: Board, explain: Explain, names: Collection[str] = (), why: Why | None = None
    ) -> None:
        self._why = why
        self._asking = asyncio.Lock()  # an answer reads all nodes and pods: one at a time
        self._board = board
        self._explain = explain
        self._names = _LOOPBACK | {name.lower() for name in names}
        self._files = _read_files()
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._server = Server(self._respond, headers=_HEADERS)
        self.stop = self._server.stop

    async def start(self, where: Address) -> str:
        """Listen; port 0 picks a free one. The page's address."""
        try:
            await self._server.start(where)
        except TesseraError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
                why = "something else listens there; choose another with --port, or 0 for any"
                raise TesseraError(f"cannot listen on {where}: {why}") from error
            raise
        return f"{self._server.url}/"

    async def run(self) -> None:
        """Send every listener what is new, until cancelled."""
        sent = -1
        while True:
            began = time.monotonic()
            if sent != self._board.version:
                sent = self._board.version
                changed, gone = self._board.changes()
                if changed or gone:
                    self._broadcast(_message("change", changed, gone))
            await asyncio.sleep(max(_PACE, _IDLE * (time.monotonic() - began)))

    def is_watched(self) -> bool:
        """Whether some browser shows the page."""
        return bool(self._listeners)

    def _broadcast(self, message: bytes) -> None:
        for queue in tuple(self._listeners):
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._listeners.discard(queue)  # its stream ends, and the browser comes again

    async def _respond(self, request: Request) -> Response | Stream:
        if (refusal := _from_elsewhere(request, self._names)) is not None:
            return text(refusal, 403)
        if request.path == "/explain":
            return await self._explained(request)
        if request.path == "/why":
            return await self._why_waits(request)
        if request.method not in ("GET", "HEAD"):
            return text("only GET here", 405)
        if request.path == "/events":
            return Stream(self._events(), "text/event-stream")
        if request.path == "/state":
            return Response(_object(self._board.parts()))
        if request.path == "/metrics":
            return _metrics(self._board)
        if request.path == "/mosaics":
            names = request.query.get("nodes", "").split(",")
            return Response(_object(self._board.mosaics(names[:_MOST_MOSAICS])))
        return self._files.get(request.path) or text("nothing here", 404)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Everything, then every change."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_BEHIND)
        changed, gone = self._board.changes()  # others have not heard of these yet
        if changed or gone:
            self._broadcast(_message("change", changed, gone))
        self._listeners.add(queue)
        try:
            yield _message("all", self._board.parts(), [])
            while queue in self._listeners or not queue.empty():
                try:
                    async with asyncio.timeout(_SILENCE):
                        piece = await queue.get()
                except TimeoutError:
                    piece = b": still here\n\n"
                yield piece
        finally:
            self._listeners.discard(queue)

    async def _explained(self, request: Request) -> Response:
        """What would be decided about a pod; nothing but the configuration is read for it, and nothing is changed."""
        if request.method != "POST":
            return text("POST a pod's YAML here", 405)
        if request.headers.get("content-type", "").partition(";")[0] != "application/yaml":
            return text("the content type must be application/yaml", 415)
        try:
            return text((await self._explain(request.body.decode())).removesuffix("\n"))
        except UnicodeDecodeError:
            return text("this is no UTF-8 text", 400)
        except InvalidInput as error:
            return text(str(error), 400)

    async def _why_waits(self, request: Request) -> Response:
        """`tessera why`; the cluster is read, so that only the page itself may ask: browsers say where a POST comes from."""
        if request.method != "POST":
            return text("POST here, with ?namespace=…&pod=…", 405)
        namespace, pod = request.query.get("namespace", ""), request.query.get("pod", "")
        if not namespace or not pod:
            return text("name the pod: ?namespace=…&pod=…", 400)
        if self._why is None:
            return text("This page shows files. `tessera why` answers where a cluster can be asked.", 404)
        try:
            async with self._asking:
                return text(await self._why(namespace, pod))
        except TesseraError as error:
            return text(str(error), 502)


def _from_elsewhere(request: Request, names: Collection[str]) -> str | None:
    """Why this is not from the page itself, or from a person or program that calls it by its name."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if (called := _split(f"//{host}")) is None or called.hostname not in names:
        return (
            "this page is for this machine: call it by 127.0.0.1 or localhost, "
            "or start it with --allow-host and the name that you call it by"
        )
    if origin is not None and ((page := _split(origin)) is None or page.netloc != host):
        return "asked by another page"
    return None


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _object(parts: Parts) -> bytes:
    """Parts as one JSON object; each is JSON already."""
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + part for name, part in parts.items()) + b"}"


def _message(event: str, parts: Parts, gone: list[str]) -> bytes:
    data = b'{"set":' + _object(parts) + b',"gone":' + msgspec.json.encode(gone) + b"}"
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)


def _read_files() -> Mapping[str, Response]:
    folder = importlib.resources.files(__package__) / "page"
    files = {
        f"/{file.name}": Response(file.read_bytes(), content_type=_KINDS[Path(file.name).suffix])
        for file in folder.iterdir()
    }
    return {**files, "/": files["/index.html"]}
