"""gRPC over unix sockets, as the kubelet speaks it."""

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeAlias, TypeVar

import grpc
import grpc.aio

from tessera.core.errors import TesseraError
from tessera.kube.clock import either
from tessera.protocol.kubelet.messages import Method, Request, Response

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handlers: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"
Message = TypeVar("Message")

MAX_SOCKET_PATH: Final = 107  # bytes: sockaddr_un has 108 with the closing zero
# A channel lives for one call, and takes nothing over from an earlier one that failed
_CHANNEL_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


class CallFailed(TesseraError):
    """The kubelet did not answer, or said no."""

    def __init__(self, message: str, status: grpc.StatusCode) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refused(self) -> bool:
        """Whether it answered, and the answer is no."""
        return self.status not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def address(path: Path) -> str:
    if len(str(path).encode()) > MAX_SOCKET_PATH:
        raise TesseraError(
            f"{path}: longer than the {MAX_SOCKET_PATH} bytes that a unix socket's path may have"
        )
    return f"unix:{path}"


def handlers(answers: Mapping[Method[Any, Any], Callable[..., Any]]) -> Handlers:
    """What a server needs to answer the calls of one service; an answer that yields its messages is a stream."""
    found = {}
    for method, answer in answers.items():
        stream = inspect.isasyncgenfunction(answer)
        kind = grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
        found[method.name] = kind(answer, method.request.FromString, method.response.SerializeToString)
    return grpc.method_handlers_generic_handler(next(iter(answers)).service, found)


class Streams(Generic[Message]):
    """The open streams of one call: each sends the current message at once, and again whenever it changes."""

    def __init__(self, message: Callable[[], Message], again: float | None = None) -> None:
        """`again`: seconds after which a stream sends the message once more though it has not changed."""
        self._message = message
        self._again = again
        self._open: set[asyncio.Event] = set()  # one per stream

    def __bool__(self) -> bool:
        return bool(self._open)

    def send(self) -> None:
        for changed in self._open:
            changed.set()

    def close(self) -> None:
        ending, self._open = self._open, set()
        for changed in ending:
            changed.set()

    async def watch(self, _: object, context: Context) -> AsyncIterator[Message]:
        changed = asyncio.Event()
        self._open.add(changed)
        try:
            while changed in self._open:
                changed.clear()
                yield self._message()
                await either(changed, self._again)
        finally:
            self._open.discard(changed)


async def serve(path: Path, services: Iterable[Handlers]) -> grpc.aio.Server:
    """A server at a unix socket, started; the caller stops it."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(services))
    try:
        server.add_insecure_port(address(path))
    except RuntimeError as error:
        raise TesseraError(f"{path}: cannot listen: {error}") from error
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        # grpcio cannot be stopped while it starts: it would report an InvalidStateError (seen with 1.85)
        await _finished(starting)
        await _finished(asyncio.ensure_future(server.stop(None)))
        path.unlink(missing_ok=True)
        raise
    return server


async def _finished(work: "asyncio.Future[None]") -> None:
    """Wait for the end of this, however often the waiting task is cancelled."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait((work,))


async def call(path: Path, method: Method[Request, Response], request: Request, timeout: float) -> Response:
    """One call on a connection of its own."""
    async with grpc.aio.insecure_channel(address(path), options=_CHANNEL_OPTIONS) as channel:
        try:
            answer: Response = await channel.unary_unary(method.path, **method.codec)(
                request, timeout=timeout
            )
        except grpc.aio.AioRpcError as error:
            details = (error.details() or error.code().name).strip()
            raise CallFailed(f"{path}: {method.name}: {details}", error.code()) from error
        return answer


def remove_dead_sockets(folder: Path, pattern: str, own: Collection[Path] = ()) -> None:
    """Remove sockets that a killed process of ours left: no server listens there any more.

    `own` are this process's: a socket that is just being made does not listen yet either.
    """
    for path in folder.glob(pattern):
        if path in own:
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # gone meanwhile, or not ours to judge
