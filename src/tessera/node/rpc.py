"""gRPC over unix sockets, as the kubelet speaks it."""

from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from tessera.core.errors import TesseraError
from tessera.protocol.kubelet.messages import Method, Request, Response

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


def address(socket: Path) -> str:
    """The gRPC target of a unix socket."""
    if len(str(socket).encode()) > MAX_SOCKET_PATH:
        raise TesseraError(
            f"{socket}: longer than the {MAX_SOCKET_PATH} bytes that a unix socket's path may have"
        )
    return f"unix:{socket}"


async def call(socket: Path, method: Method[Request, Response], request: Request, timeout: float) -> Response:
    """One call on a connection of its own."""
    async with grpc.aio.insecure_channel(address(socket), options=_CHANNEL_OPTIONS) as channel:
        try:
            answer: Response = await channel.unary_unary(method.path, **method.codec)(
                request, timeout=timeout
            )
        except grpc.aio.AioRpcError as error:
            details = (error.details() or error.code().name).strip()
            raise CallFailed(f"{socket}: {method.name}: {details}", error.code()) from error
        return answer
