"""Requests, responses and streams, and what a server takes of each."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

TEXT: Final = "text/plain; charset=utf-8"
Headers = tuple[tuple[str, str], ...]


class HangUp(Exception):  # not an error: what a server does that dies
    """Raised by a handler or a stream: the connection is cut, without another byte."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes."""

    connections: int = 64
    streams: int = 48  # of the connections; the rest is for probes and scrapes
    head: int = 16 * 1024
    body: int = 256 * 1024  # a pod's YAML is a few KiB
    request_seconds: float = 10.0  # for a request to arrive whole, or for a client to take what it is sent
    idle_seconds: float = 60.0  # between two requests


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read whole."""

    method: str
    path: str  # decoded
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""
    certificate: Mapping[str, object] | None = None  # the client's, as ssl reports it
    version: str = "1.1"
    keep_alive: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """A response in one piece."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """A response that comes piece by piece, until it ends or the client leaves."""

    pieces: AsyncGenerator[bytes, None]
    content_type: str = "application/json"


Handler = Callable[[Request], Awaitable[Response | Stream]]


def text(sentence: str, status: int = 200) -> Response:
    """A sentence for people."""
    return Response(f"{sentence}\n".encode(errors="replace"), status, TEXT)


def head(status: int, content_type: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """What goes before a body."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode()  # UTF-8, as Go writes warnings
