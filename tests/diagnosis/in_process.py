"""A client of a stand-in API server in the same process: no sockets, so that hundreds of clusters are read in a second or two."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.serving.http_messages import Request, Response
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.store import StatusError

T = TypeVar("T")


class _Body:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body


class InProcess:
    """What gatherers use of a client."""

    find, serves = Client.find, Client.serves  # by `get`

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def get(self, path: str, query: Mapping[str, Any] | None = None) -> bytes:
        given = {name: str(text) for name, text in (query or {}).items() if text is not None}
        try:
            answer = await self._server.route(Request("GET", path, given, {}))
        except StatusError as error:
            raise ApiError(error.code, error.reason, str(error)) from error
        assert isinstance(answer, Response)
        return answer.body

    async def create(self, path: str, body: object, query: Mapping[str, Any] | None = None) -> bytes:
        raise ApiError(403, "Forbidden", "nothing is created here")

    async def with_retries(self, work: Callable[[], Awaitable[T]]) -> T:
        return await work()

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, query: Mapping[str, Any] | None = None
    ) -> AsyncIterator[_Body]:
        yield _Body(await self.get(path, query))


def client_of(server: ApiServer) -> Client:
    """A client, as gatherers take it."""
    return cast(Client, InProcess(server))
