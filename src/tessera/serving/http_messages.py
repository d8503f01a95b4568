"""Requests, responses and streams, what a server takes of each, and how bytes become requests: all without a socket."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import httptools

READ: Final = 64 * 1024  # bytes that a parser is given at once, at most
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
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode()  # UTF-8, as Go writes warnings


class Parser:
    """One connection's requests, in order; a client may send several at once."""

    def __init__(self, limits: Limits, certificate: Mapping[str, object] | None = None) -> None:
        self.idle = True  # between two requests
        self._limits = limits
        self._certificate = certificate
        self._parser = httptools.HttpRequestParser(self)
        self._done: list[Request | Response] = []
        self._given = 0  # bytes of this call
        self.on_message_begin()
        self.idle = True

    def feed(self, data: bytes) -> Iterator[Request | Response]:
        """What is whole now. A response is a refusal: the last thing to send on this connection."""
        self._given = len(data)
        self._size += len(data)
        refusal: Response | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            refusal = text("only HTTP/1.1 is spoken here", 400)
        except httptools.HttpParserError as error:
            refusal = text(f"not HTTP/1.1: {error}", 400)
        yield from self._done
        self._done.clear()
        if refusal is None and not self.idle:
            refusal = self._too_large()
        if refusal is not None:
            yield refusal

    # What httptools calls

    def on_message_begin(self) -> None:
        self.idle = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head = 0
        self._head_done = False
        self._body = bytearray()
        self._size = self._given  # an earlier request may have had a part of these bytes

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if not self._head_done:  # trailers after a body are no headers
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_done = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.idle = True
        if not self._parser.should_upgrade():
            self._done.append(self._too_large() or self._request())

    def _too_large(self) -> Response | None:
        limits = self._limits
        if len(self._body) > limits.body:
            return text(f"more than {limits.body // 1024} KiB", 413)
        # the second: of a head that has no end yet, or of chunks, httptools has not reported it
        if self._head > limits.head or self._size - len(self._body) > limits.head + READ:
            return text("the headers are too large", 431)
        return None

    def _request(self) -> Request | Response:
        parser = self._parser
        try:
            url = urlsplit(self._url.decode("latin-1"))
        except ValueError as error:
            return text(f"not a path: {error}", 400)
        return Request(
            parser.get_method().decode("ascii"),
            unquote(url.path),
            dict(parse_qsl(url.query, keep_blank_values=True)),
            self._headers,
            bytes(self._body),
            self._certificate,
            parser.get_http_version(),
            parser.should_keep_alive(),
        )
