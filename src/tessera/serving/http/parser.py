"""Bytes to requests, without a socket."""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import httptools

from tessera.serving.http.messages import Limits, Request, Response, text

READ: Final = 64 * 1024  # bytes that a parser is given at once, at most


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
        # the second: of a head that has no end yet, or of chunks, httptools has not told
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
