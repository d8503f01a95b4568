"""Calls to an API server: where objects live in it, and one method per verb, bodies as bytes.

Short calls share kept-alive connections; a watch has a connection of its own. What to do with the bytes is the
caller's: a typed decoder that skips what is not needed is many times cheaper than object trees.

Evictions: the API server deletes a pod where its PodDisruptionBudget allows it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tessera.kube.access.cluster import Cluster, Credential
from tessera.kube.clock import SYSTEM_CLOCK, Clock, offset_between
from tessera.kube.errors import ApiError, Unreachable, error_of
from tessera.kube.rest.connection import BodyLines, Connection, Dialer, proxy_headers

T = TypeVar("T")
Query = Mapping[str, str | int | None]  # None: not given

_MAX_CALLS: Final = 32  # short calls at a time, each on a connection of its own; further ones wait
_IDLE_SECONDS: Final = 60.0  # the API server closes idle connections after 90 s: leave first
_MAX_ERROR: Final = 1024 * 1024
_MOST_RETRIES: Final = 5
_LONGEST_WAIT: Final = 30.0  # a Retry-After beyond that is not waited for in one go
# repeating these does no harm when the first try may have gone through
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})


class PatchType(Enum):
    """How a patch is to be understood."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Client:
    """A client of one cluster; close it, or use it as an async context manager.

    Timeouts are in seconds; a watch is bounded by its reader. Whatever works with this client goes by its clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        connect_timeout: float = 10.0,  # name, TCP, proxy and TLS together
        answer_timeout: float = 35.0,  # the API server itself gives up at 34 s for most requests, and says so
        clock: Clock = SYSTEM_CLOCK,
        user_agent: str = "tessera",
    ) -> None:
        self.cluster = cluster
        self._answer_timeout = answer_timeout
        self.clock = clock
        self._dialer = Dialer(cluster, connect_timeout)
        self._idle: list[Connection] = []
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._closed = False
        self._date = ""  # the header of the last response that has it
        self._between = 0.0, 0.0  # when that was asked for, and when it came, by a clock that never jumps
        fixed = [
            f"Host: {cluster.endpoint.authority}",
            f"User-Agent: {user_agent}",
            "Accept-Encoding: identity",
        ]
        fixed += [f"{name}: {value}" for name, value in cluster.headers]
        self._target = cluster.endpoint.prefix
        if cluster.proxy is not None and cluster.endpoint.scheme == "http":
            self._target = str(cluster.endpoint)
            fixed += proxy_headers(cluster.proxy)
        self._fixed_headers = "\r\n".join(fixed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is idle; calls under way close theirs when they end."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    @property
    def server_date(self) -> float | None:
        """What the API server's clock said last, in whole seconds since 1970; None if it never did."""
        try:
            return parsedate_to_datetime(self._date).timestamp()
        except ValueError:
            return None

    @property
    def clock_offset(self) -> float:
        """By how many seconds the API server's clock is ahead of this machine's as it is now, by what it said last; 0 if it never did.

        A clock that has jumped since then shows.
        """
        date = self.server_date
        if date is None:
            return 0.0
        now, wall = self.clock.now(), self.clock.wall()
        asked, answered = (wall - (now - one) for one in self._between)
        return offset_between(date, asked, answered)

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """One object, or whatever else is at the path."""
        return await self.request("GET", path, query)

    async def find(self, path: str) -> bytes | None:
        """One object; None where there is none."""
        try:
            return await self.get(path)
        except ApiError as error:
            if not error.is_not_found:
                raise
            return None

    async def serves(self, version: str) -> bool:
        """Whether the cluster knows a group and version: a client that may not read its objects gets 403 either way."""
        try:
            return await self.find(f"/apis/{version}") is not None
        except ApiError:
            return True  # a client may be forbidden even to ask that

    async def create(self, path: str, body: object, query: Query | None = None) -> bytes:
        """POST an object to its collection; `ApiError.is_conflict` when the name is taken."""
        return await self.request("POST", path, query, body=body)

    async def update(self, path: str, body: object, query: Query | None = None) -> bytes:
        """PUT an object; `ApiError.is_conflict` when its resourceVersion is no longer the last."""
        return await self.request("PUT", path, query, body=body)

    async def patch(
        self, path: str, body: object, patch_type: PatchType = PatchType.MERGE, query: Query | None = None
    ) -> bytes:
        return await self.request("PATCH", path, query, body=body, content_type=patch_type.value)

    async def delete(self, path: str, query: Query | None = None, body: object = None) -> bytes:
        """DELETE an object; `body` may be DeleteOptions."""
        return await self.request("DELETE", path, query, body=body)

    async def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: object = None,
        content_type: str = "application/json",
        again: bool = True,
    ) -> bytes:
        """One call; when the server answers with Retry-After, it is called again, a few times (unless `again` is False)."""

        async def once() -> bytes:
            async with (
                self._calls,
                self.stream(method, path, query, body=body, content_type=content_type) as answer,
            ):
                return await answer.read_all()

        return await (self.with_retries(once) if again else once())

    async def with_retries(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and all of it again, a few times, when the server answers with Retry-After."""
        attempt = 0
        while True:
            try:
                return await work()
            except ApiError as error:
                if error.retry_after is None or attempt >= _MOST_RETRIES:
                    raise
                attempt += 1
                await self.clock.sleep(min(error.retry_after, _LONGEST_WAIT))

    @asynccontextmanager
    async def watch(self, path: str, query: Query | None = None) -> AsyncIterator[BodyLines]:
        """The lines of a watch, on a connection of its own; how long to wait for the next is the caller's."""
        async with self.stream("GET", path, {**(query or {}), "watch": "true"}, fresh=True) as answer:
            answer.read_timeout = None
            yield BodyLines(answer)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: object = None,
        content_type: str = "application/json",
        fresh: bool = False,
    ) -> AsyncIterator[Connection]:
        """One call whose good answer is read by the caller; a bad one is raised as ApiError."""
        if query:
            path += "?" + urlencode({name: value for name, value in query.items() if value is not None})
        payload = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        head = [f"{method} {self._target}{path} HTTP/1.1", self._fixed_headers, "Accept: application/json"]
        if payload:
            head.append(f"Content-Type: {content_type}")
        if payload or method in {"POST", "PUT", "PATCH"}:
            head.append(f"Content-Length: {len(payload)}")
        connection = await self._exchange(method, head, payload, fresh=fresh)
        try:
            if connection.status >= 300:
                body, headers = await connection.read_all(_MAX_ERROR), connection.headers
                raise error_of(
                    connection.status, body, headers.get("retry-after"), headers.get("warning", "")
                )
            yield connection
        finally:
            if fresh:
                connection.abort()
            else:
                self._give_back(connection)

    async def _exchange(self, method: str, head: list[str], payload: bytes, *, fresh: bool) -> Connection:
        """Send, and read the response's head; new credentials after a 401, once."""
        credential = await self.cluster.credentials.current()
        connection = await self._send(method, head, payload, credential, fresh=fresh)
        if connection.status == 401:
            try:
                renewed = await self.cluster.credentials.renewed(credential)
            except BaseException:
                connection.abort()
                raise
            if renewed is not None:
                connection.abort()
                connection = await self._send(method, head, payload, renewed, fresh=fresh)
        return connection

    async def _send(
        self, method: str, head: list[str], payload: bytes, credential: Credential, *, fresh: bool
    ) -> Connection:
        token = [] if credential.token is None else [f"Authorization: Bearer {credential.token}"]
        request = "\r\n".join([*head, *token, "", ""]).encode("latin-1") + payload
        connection = None if fresh else self._take_idle(credential)
        if connection is not None:
            try:
                return await self._converse(connection, request)
            except Unreachable as error:
                # the server closed a kept connection just as we used it: not an error, but only where
                # asking twice cannot mean doing twice
                if error.kind != "closed" or connection.answered or method not in _REPEATABLE:
                    raise
        return await self._converse(await self._dialer.dial(credential), request)

    async def _converse(self, connection: Connection, request: bytes) -> Connection:
        connection.read_timeout = self._answer_timeout
        asked = self.clock.now()
        try:
            await connection.send(request)
            await connection.read_head()
            if date := connection.headers.get("date"):
                self._date, self._between = date, (asked, self.clock.now())
        except BaseException:
            connection.abort()
            raise
        return connection

    def _take_idle(self, credential: Credential) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if (
                connection.alive
                and self.clock.now() - connection.idle_since < _IDLE_SECONDS
                and connection.identity == (credential.certificate, credential.key)
            ):
                return connection
            connection.abort()
        return None

    def _give_back(self, connection: Connection) -> None:
        if connection.reusable and not self._closed and len(self._idle) < _MAX_CALLS:
            connection.idle_since = self.clock.now()
            self._idle.append(connection)
        else:
            connection.abort()


async def evict(client: Client, namespace: str, name: str, preconditions: dict[str, str]) -> bool:
    """Evict a pod that still is as it was seen; False where it is not. `ApiError.is_too_many`: its budget allows no eviction now.

    Asked once: a moment later the pod may have started, or another process may lead.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": preconditions},
    }
    path = path_of("v1", "pods", namespace=namespace, name=name, subresource="eviction")
    try:
        await client.request("POST", path, body=body, again=False)
    except ApiError as error:
        if error.is_conflict or error.is_not_found:
            return False
        raise
    return True


_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def is_name(text: str) -> bool:
    """Whether a node, or another object, can have this name: what people have edited may name anything, `..` too."""
    return _NAME.fullmatch(text) is not None


def path_of(
    api_version: str,
    plural: str,
    *,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> str:
    """The path of a collection, or of one object in it; every part is quoted, so a name stays a name."""
    parts = ["", "api" if "/" not in api_version else "apis", *api_version.split("/")]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    if name is not None:
        parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
    return "/".join(parts)


class PodKind(NamedTuple):
    """Pods, or what makes pods."""

    kind: str  # as objects have it
    version: str
    plural: str
    short: tuple[str, ...] = ()  # what else kubectl calls it


_APPS: Final = "apps/v1"
POD_KINDS: Final[Mapping[str, PodKind]] = {
    one.kind.lower(): one
    for one in (
        PodKind("Pod", "v1", "pods", ("po",)),
        PodKind("Deployment", _APPS, "deployments", ("deploy",)),
        PodKind("ReplicaSet", _APPS, "replicasets", ("rs",)),
        PodKind("StatefulSet", _APPS, "statefulsets", ("sts",)),
        PodKind("DaemonSet", _APPS, "daemonsets", ("ds",)),
        PodKind("ReplicationController", "v1", "replicationcontrollers", ("rc",)),
        PodKind("Job", "batch/v1", "jobs"),
    )
}
CALLED: Final = {name: kind for kind, one in POD_KINDS.items() for name in (kind, one.plural, *one.short)}


def collection(kind: str, namespace: str, name: str | None = None) -> str:
    """Where the objects of such a kind are, by any of its names, or one of them; empty for a kind that is not known."""
    known = CALLED.get(kind.lower())
    if known is None:
        return ""
    return path_of(POD_KINDS[known].version, POD_KINDS[known].plural, namespace=namespace, name=name)
