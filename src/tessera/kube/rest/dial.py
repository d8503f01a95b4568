"""Opening a connection: straight or through a proxy, plain or with TLS."""

import asyncio
import base64
import os
import socket
import ssl
import sys
from functools import lru_cache
from typing import Final

from tessera.kube.access.cluster import Cluster, Credential, Proxy, read_material
from tessera.kube.errors import CredentialsFailed, Unreachable
from tessera.kube.rest.connection import Connection

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
