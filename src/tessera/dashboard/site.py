"""The page's paths: its three files, the state, the stream of changes, and the question about a pod."""

import asyncio
import importlib.resources
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.dashboard.board import Board, Parts
from tessera.dashboard.http import Answer, Request, Server, Stream

Explain = Callable[[str], str]  # YAML → words; InvalidInput for what is no pod

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_JSON: Final = "application/json"
_PACE: Final = 0.1  # seconds: changes within that time are sent together
_IDLE: Final = 4  # for every second of work so many of rest: thousands of nodes take a tenth of one to add up
_SILENCE: Final = 15.0  # seconds, then a word so that both sides know the other is there
_BEHIND: Final = 256  # messages that a listener may be behind; one that reads no more is let go


class Page:
    """The page of one board."""

    def __init__(self, board: Board, explain: Explain) -> None:
        self._board = board
        self._explain = explain
        self._files = _read_files()
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self.server = Server(self._answer)

    async def run(self) -> None:
        """Tell whoever listens what is new, until cancelled."""
        told = -1
        while True:
            began = time.monotonic()
            if told != self._board.version:
                told = self._board.version
                changed, gone = self._board.changes()
                if changed or gone:
                    self._broadcast(_message("change", changed, gone))
            await asyncio.sleep(max(_PACE, _IDLE * (time.monotonic() - began)))

    def _broadcast(self, message: bytes) -> None:
        for queue in tuple(self._listeners):
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._listeners.discard(queue)  # its stream ends, and the browser comes again

    async def _answer(self, request: Request) -> Answer | Stream:
        if request.path == "/explain":
            return self._explained(request)
        if request.method not in ("GET", "HEAD"):
            return Answer(b"only GET here\n", status=405)
        if request.path == "/events":
            return Stream(self._events(), "text/event-stream")
        if request.path == "/state":
            return Answer(_object(self._board.parts()), _JSON)
        found = self._files.get(request.path)
        return found or Answer(b"nothing here\n", status=404)

    async def _events(self) -> AsyncIterator[bytes]:
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

    def _explained(self, request: Request) -> Answer:
        """What would be decided about a pod; nothing is asked of the cluster, and nothing is changed."""
        if request.method != "POST":
            return Answer(b"POST a pod's YAML here\n", status=405)
        if request.headers.get("content-type", "").partition(";")[0] != "application/yaml":
            return Answer(b"the content type must be application/yaml\n", status=415)
        try:
            return Answer(self._explain(request.body.decode()).encode())
        except UnicodeDecodeError:
            return Answer(b"this is no UTF-8 text\n", status=400)
        except InvalidInput as error:
            return Answer(f"{error}\n".encode(errors="replace"), status=400)


def _object(parts: Parts) -> bytes:
    """Parts as one JSON object; each is JSON already."""
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + part for name, part in parts.items()) + b"}"


def _message(event: str, parts: Parts, gone: list[str]) -> bytes:
    data = b'{"set":' + _object(parts) + b',"gone":' + msgspec.json.encode(gone) + b"}"
    return b"event: %b\ndata: %b\n\n" % (event.encode(), data)


def _read_files() -> Mapping[str, Answer]:
    folder = importlib.resources.files(__package__) / "page"
    return {path: Answer((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
