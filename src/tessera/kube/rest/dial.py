"""Opening a connection: straight or through a proxy, plain or with TLS."""

import asyncio
import base64
import socket
import ssl
from typing import Final

from tessera.kube.access.cluster import Cluster, Proxy
from tessera.kube.errors import Unreachable
from tessera.kube.rest.connection import Connection

# a peer that has vanished without a word is noticed by the kernel within a minute, whatever else watches it
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 30_000),
)


async def dial(cluster: Cluster, context: ssl.SSLContext | None, timeout: float) -> Connection:
    """Connect within `timeout` seconds; `context` is None for a plain connection."""
    peer = cluster.endpoint.authority
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await _open(cluster, context)
    except TimeoutError as error:
        raise Unreachable("timeout", f"{peer} did not accept a connection within {timeout:g} s") from error
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(
            "tls", f"the certificate of {peer} is not trusted: {error.verify_message}"
        ) from error
    except ssl.SSLError as error:
        raise Unreachable("tls", f"TLS with {peer} failed: {error.reason or error}") from error
    except socket.gaierror as error:
        raise Unreachable(
            "dns", f"the name of {cluster.proxy or peer} cannot be resolved: {error.strerror}"
        ) from error
    except ConnectionRefusedError as error:
        raise Unreachable("refused", f"{cluster.proxy or peer} refused the connection") from error
    except ValueError as error:  # a name that cannot be encoded, or that TLS takes for none
        raise Unreachable(
            "dns", f"{cluster.tls.server_name or cluster.proxy or peer} is not a host name: {error}"
        ) from error
    except OSError as error:
        raise Unreachable(
            "network", f"no connection to {cluster.proxy or peer}: {error.strerror or error}"
        ) from error
    _keep_alive(writer)
    return Connection(reader, writer, peer)


async def _open(
    cluster: Cluster, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
