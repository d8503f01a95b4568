"""gRPC over unix sockets, as the kubelet speaks it."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from tessera.core.errors import TesseraError
from tessera.protocol.kubelet.messages import Method, Request, Response

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

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
    """The gRPC target of a unix socket."""
    if len(str(path).encode()) > MAX_SOCKET_PATH:
        raise TesseraError(
            f"{path}: longer than the {MAX_SOCKET_PATH} bytes that a unix socket's path may have"
        )
    return f"unix:{path}"


async def serve(path: Path, handlers: "Iterable[grpc.GenericRpcHandler[Any, Any]]") -> grpc.aio.Server:
    """A server at a unix socket, started; the caller stops it."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(handlers))
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


def remove_dead_sockets(folder: Path, pattern: str, own: "Collection[Path]" = ()) -> None:
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
