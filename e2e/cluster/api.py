"""A small client of the API server, for tests: JSON in, JSON out, and waiting by watching."""

import http.client
import json
import select
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from e2e.cluster.errors import ClusterError

Object = dict[str, Any]

_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
_REQUEST_TIMEOUT = 30.0


class ApiError(ClusterError):
    """The API server's own refusal: its status code, reason and message."""

    def __init__(self, method: str, path: str, code: int, body: str) -> None:
        try:
            status = json.loads(body)
        except ValueError:
            status = {}
        self.code = code
        self.reason: str = status.get("reason", "") if isinstance(status, dict) else ""
        self.message: str = (status.get("message", "") if isinstance(status, dict) else "") or body.strip()
        super().__init__(f"{method} {path}: {code} {self.reason}: {self.message}")


class Api:
    """Requests to one API server; safe to use from several threads. Idle connections are kept for the next request."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self._address = urlsplit(url).netloc
        self._tls = tls
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Close idle connections."""
        while (connection := self._take_idle()) is not None:
            connection.close()

    def get(self, path: str, **query: str) -> Object:
        """GET, decoded."""
        return self._json("GET", _with(path, query))

    def text(self, path: str) -> str:
        """GET, as it came: for /metrics, /readyz and logs."""
        return self._request("GET", path)

    def create(self, path: str, body: Object, **query: str) -> Object:
        """POST to a collection (or to a subresource such as a pod's `binding`)."""
        return self._json("POST", _with(path, query), body)

    def replace(self, path: str, body: Object, **query: str) -> Object:
        """PUT."""
        return self._json("PUT", _with(path, query), body)

    def patch(self, path: str, body: object, *, kind: str = "merge", **query: str) -> Object:
        """PATCH: kind `merge`, `strategic` or `json`."""
        return self._json("PATCH", _with(path, query), body, content_type=_PATCH_TYPES[kind])

    def delete(self, path: str, **query: str) -> None:
        """DELETE; what is not there counts as deleted."""
        try:
            self._request("DELETE", _with(path, query))
        except ApiError as error:
            if error.code != http.client.NOT_FOUND:
                raise

    def find(self, path: str) -> Object | None:
        """GET, or None where there is nothing."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == http.client.NOT_FOUND:
                return None
            raise

    def watch(self, collection: str, *, timeout: float, **query: str) -> Iterator[Object]:
        """Watch events of a collection, until the timeout."""
        deadline = time.monotonic() + timeout
        query = {"watch": "true", "timeoutSeconds": str(max(1, round(timeout))), **query}
        connection = self._connect()
        try:
            connection.request("GET", _with(collection, query), headers={"Accept": "application/json"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ApiError("WATCH", collection, response.status, response.read().decode(errors="replace"))
            while (remaining := deadline - time.monotonic()) > 0:
                if connection.sock is not None:
                    connection.sock.settimeout(max(remaining, 0.001))
                line = response.readline()
                if not line:
                    return
                yield json.loads(line)
        except TimeoutError:
            return
        finally:
            connection.close()

    def wait_for(
        self,
        collection: str,
        name: str,
        condition: Callable[[Object | None], object],
        *,
        timeout: float,
        what: str,
    ) -> Object | None:
        """Follow one object (None while there is none) until the condition holds, and return it as it is then.

        Survives a restart of the API server on the way.
        """
        deadline = time.monotonic() + timeout
        current: Object | None = None
        selector = {"fieldSelector": f"metadata.name={name}"}
        while (remaining := deadline - time.monotonic()) > 0:
            try:
                listed = self.get(collection, **selector)
                current = next(iter(listed["items"]), None)
                if condition(current):
                    return current
                version = listed["metadata"]["resourceVersion"]
                for event in self.watch(collection, timeout=remaining, resourceVersion=version, **selector):
                    if event["type"] == "ERROR":
                        break  # the version is too old: list again
                    current = None if event["type"] == "DELETED" else event["object"]
                    if condition(current):
                        return current
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)  # the server is away: nothing can be watched until it is back
        shown = json.dumps(current.get("status"), indent=1) if current else "there is no such object"
        raise ClusterError(f"not within {timeout:g} s: {what}; last seen: {shown}")

    def _json(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Object:
        answer: Object = json.loads(self._request(method, path, body, content_type))
        return answer

    def _request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> str:
        headers = {"Accept": "application/json, */*"}
        payload = None
        if body is not None:
            payload, headers["Content-Type"] = json.dumps(body).encode(), content_type
        connection = self._usable()
        try:
            connection.request(method, path, body=payload, headers=headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if response.status >= http.client.BAD_REQUEST:
            raise ApiError(method, path, response.status, text)
        return text

    def _usable(self) -> http.client.HTTPConnection:
        while (connection := self._take_idle()) is not None:
            if not _has_been_closed(connection):
                return connection
            connection.close()
        return self._connect()

    def _take_idle(self) -> http.client.HTTPConnection | None:
        try:
            return self._idle.pop()  # one step for other threads
        except IndexError:
            return None

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._address, timeout=_REQUEST_TIMEOUT)
        return http.client.HTTPSConnection(self._address, timeout=_REQUEST_TIMEOUT, context=self._tls)


def _has_been_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has hung up on an idle connection: it is readable although nothing was asked."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])


def _with(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
