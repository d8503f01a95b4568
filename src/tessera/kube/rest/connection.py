"""A connection to an API server: opened straight or through a proxy, plain or with TLS, and read as it comes.

The parser is llhttp (httptools). This module adds what the parser leaves open: bounds, truncation, lines.
"""

import asyncio
import base64
import os
import socket
import ssl
import sys
from functools import lru_cache
from typing import Final

import httptools

from tessera.kube.access.cluster import Cluster, Credential, Proxy, read_material
from tessera.kube.errors import BadResponse, CredentialsFailed, Unreachable

_READ: Final = 256 * 1024
_MAX_HEAD: Final = 64 * 1024  # Go's servers send a few hundred bytes
# etcd takes objects of 1.5 MiB, some clusters raise that a few times; twice that again is no object but a fault
MAX_LINE: Final = 16 * 1024 * 1024
# 500 objects of a list are a few MiB; what comes in one piece (no paging, no streaming) must end somewhere
MAX_BODY: Final = 64 * 1024 * 1024


class Connection:
    """A connection that carries one request and its response at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self.peer = peer
        self.idle_since = 0.0  # when it went back to the pool
        self.identity: tuple[bytes | None, bytes | None] = (None, None)  # whom the other side takes us for
        self.read_timeout: float | None = (
            None  # seconds to wait for any next bytes; None: that is the reader's
        )
        self._reader = reader
        self._writer = writer
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self.headers: dict[str, str] = {}  # of the response, names in lower case
        self._head_done = False
        self._complete = False
        self._keep = False
        self._surplus = False
        self._body: list[bytes] = []
        self.status = 0
        self.answered = False  # whether any byte of the response has come

    # what the parser calls
    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete:
            key, text = name.decode("latin-1").lower(), value.decode(errors="replace")
            if key == "warning" and key in self.headers:  # a line for each; of other headers the last counts
                text = f"{self.headers[key]}, {text}"
            self.headers[key] = text

    def on_headers_complete(self) -> None:
        if not self._complete:
            self.status = self._parser.get_status_code()
            self._head_done = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._complete:
            return
        if self.status >= 200:
            self._complete = True
            self._keep = self._parser.should_keep_alive()  # known only now: the parser forgets it
        else:
            self.headers.clear()  # 100 Continue and its kin: the real response follows

    @property
    def reusable(self) -> bool:
        """Whether the response was read whole and the connection may carry another."""
        return self._keep and not self._surplus and not self._body and self.alive

    @property
    def alive(self) -> bool:
        """Whether the other side still seems to be there."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def send(self, request: bytes) -> None:
        """Send one request; the response before it must have been read."""
        self._reset()
        try:
            async with asyncio.timeout(self.read_timeout):
                self._writer.write(request)
                await self._writer.drain()
        except OSError as error:
            raise self._lost(error) from error

    async def read_head(self) -> None:
        while not self._head_done:
            if self._head_bytes > _MAX_HEAD:
                raise BadResponse(f"{self.peer} sent more than {_MAX_HEAD // 1024} KiB of headers")
            await self._feed()

    async def read(self) -> bytes:
        """The next piece of the body, empty at its end."""
        while not self._body:
            if self._complete:
                return b""
            await self._feed()
        pieces, self._body = self._body, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_all(self, most: int = MAX_BODY) -> bytes:
        """The whole body, if it is not larger than `most`."""
        body = bytearray()
        while piece := await self.read():
            if len(body) + len(piece) > most:
                raise BadResponse(f"{self.peer} sent a body of more than {most // 2**20} MiB")
            body += piece
        return bytes(body)

    async def _feed(self) -> None:
        try:
            async with asyncio.timeout(self.read_timeout):
                data = await self._reader.read(_READ)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            if self._head_done and not {"content-length", "transfer-encoding"} & self.headers.keys():
                self._complete = True  # a body that ends with the connection
                return
            raise Unreachable("closed", f"{self.peer} closed the connection in the middle of an answer")
        self.answered = True
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadResponse(f"{self.peer} does not speak HTTP/1.1: {error}") from error

    def _lost(self, error: OSError) -> Unreachable:
        if isinstance(error, ssl.SSLError):
            return Unreachable("tls", f"TLS with {self.peer} failed: {error.reason or error}")
        if isinstance(error, TimeoutError):
            waited = f" within {self.read_timeout:g} s" if self.read_timeout is not None else ""
            return Unreachable("timeout", f"{self.peer} did not answer{waited}")
        return Unreachable("closed", f"the connection to {self.peer} was lost: {error.strerror or error}")

    def abort(self) -> None:
        """Close at once; nothing is waited for."""
        self._writer.transport.abort()


class BodyLines:
    """The complete lines of a response's body, however they were cut on the way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest = bytearray()

    async def batch(self) -> list[bytes]:
        """At least one line, and all that have come with it; an empty list at the end."""
        while piece := await self._connection.read():
            start, lines = 0, []
            while (end := piece.find(b"\n", start)) >= 0:
                line = piece[start:end]
                if self._rest:
                    line = bytes(self._rest) + line
                    self._rest.clear()
                if line:
                    lines.append(line)
                start = end + 1
            self._rest += piece[start:]
            if len(self._rest) > MAX_LINE:
                raise BadResponse(f"{self._connection.peer} sent a line of more than {MAX_LINE // 2**20} MiB")
            if lines:
                return lines
        if self._rest:
            raise Unreachable("closed", f"{self._connection.peer} ended a stream in the middle of a line")
        return []

    def abort(self) -> None:
        """Cut the stream: a reader that waits for its next line gets an error."""
        self._connection.abort()


# the kernel notices a peer that has vanished silently within a minute, whatever else watches it
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 30_000),
)


class Dialer:
    """Opens connections to a cluster's API server, each within `timeout` seconds."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self._cluster = cluster
        self._timeout = timeout
        # a fresh one when something has changed: changing a live one would break handshakes under way
        self._context = lru_cache(maxsize=1)(_make_context)

    async def dial(self, credential: Credential) -> Connection:
        """A new connection, on which we show the credential's certificate."""
        cluster = self._cluster
        context = self._tls_context(credential) if cluster.endpoint.scheme == "https" else None
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await _open(cluster, context)
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from error
        _keep_alive(writer)
        connection = Connection(reader, writer, cluster.endpoint.authority)
        connection.identity = (credential.certificate, credential.key)
        return connection

    def _tls_context(self, credential: Credential) -> ssl.SSLContext:
        """The same context again until something changed; files are read now, so that a renewed CA counts from now on."""
        tls = self._cluster.tls
        ca = read_material(tls.ca, "certificate authority") if tls.ca is not None else None
        return self._context(ca, tls.insecure, credential.certificate, credential.key)

    def _unreachable(self, error: OSError | ValueError) -> Unreachable:
        peer = self._cluster.endpoint.authority
        via = self._cluster.proxy or peer
        match error:
            case TimeoutError():
                return Unreachable(
                    "timeout", f"{peer} did not accept a connection within {self._timeout:g} s"
                )
            case ssl.SSLCertVerificationError():
                return Unreachable("tls", f"the certificate of {peer} is not trusted: {error.verify_message}")
            case ssl.SSLError():
                return Unreachable("tls", f"TLS with {peer} failed: {error.reason or error}")
            case socket.gaierror():
                return Unreachable("dns", f"the name of {via} cannot be resolved: {error.strerror}")
            case ConnectionRefusedError():
                return Unreachable("refused", f"{via} refused the connection")
            case OSError():
                return Unreachable("network", f"no connection to {via}: {error.strerror or error}")
        # a name that cannot be encoded, or that TLS takes for none
        return Unreachable("dns", f"{self._cluster.tls.server_name or via} is not a host name: {error}")


async def _open(
    cluster: Cluster, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect; `context` is None for a plain connection."""
    endpoint, proxy = cluster.endpoint, cluster.proxy
    server_name = (cluster.tls.server_name or endpoint.host) if context else None
    if proxy is None:
        return await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=context, server_hostname=server_name
        )
    outer = ssl.create_default_context() if proxy.scheme == "https" else None
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port, ssl=outer)
    if context is None:
        return reader, writer  # plain HTTP is asked of the proxy itself, with the whole URL
    try:
        await _tunnel(reader, writer, proxy, endpoint.authority)
        await writer.start_tls(context, server_hostname=server_name)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _tunnel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: Proxy, authority: str
) -> None:
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *proxy_headers(proxy), "", ""]
    writer.write("\r\n".join(lines).encode("latin-1"))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Unreachable("proxy", f"the proxy {proxy} did not answer CONNECT {authority}") from error
    status_line = head.split(b"\r\n", 1)[0].decode("latin-1")
    if status_line.split(" ")[1:2] != ["200"]:
        raise Unreachable("proxy", f'the proxy {proxy} answered CONNECT {authority} with "{status_line}"')


def proxy_headers(proxy: Proxy) -> list[str]:
    """What a proxy wants to know of us."""
    if proxy.user is None:
        return []
    return ["Proxy-Authorization: Basic " + base64.b64encode(proxy.user.encode()).decode("ascii")]


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)  # not every system has every one of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _make_context(
    ca: bytes | None, insecure: bool, certificate: bytes | None, key: bytes | None
) -> ssl.SSLContext:
    """A client context that speaks HTTP/1.1, trusts `ca` alone when given, and shows our certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Python 3.13 made RFC 5280 strictness the default; many clusters' own authorities lack a key identifier
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))  # comments: in any language
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsFailed("certificate authority: there is no PEM certificate in it") from error
    if certificate is not None and key is not None:
        _load_identity(context, certificate, key)
    return context


def _load_identity(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL reads a key from a file only: one in memory where there is such a thing, so no key stays on a disk."""
    pem = certificate.rstrip() + b"\n" + key
    try:
        if sys.platform == "linux":
            descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
            with os.fdopen(descriptor, "wb") as file:
                file.write(pem)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")  # empty: never ask
        else:
            import tempfile  # a webhook has no use for it, nor for the megabyte that it takes

            with tempfile.NamedTemporaryFile() as file:
                file.write(pem)
                file.flush()
                context.load_cert_chain(file.name, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not a PEM certificate and its unencrypted key"
        raise CredentialsFailed(f"client certificate and key: {reason}") from error
