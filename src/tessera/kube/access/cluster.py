"""Where a cluster is and how to get in: the values that configuration ends in and the client begins with."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from tessera.kube.errors import InvalidKubeconfig

_PORTS: Final = {"http": 80, "https": 443}  # of servers and of proxies, where a URL names none

# a name or an address; more is the resolver's business
_HOST: Final = re.compile(r"(?!\.)(?!.*\.\.)[\w.:%-]{1,253}")

_NO_EXTRA: Final[Mapping[str, Sequence[str]]] = {}

Material = bytes | Path  # PEM given inline, or a file that may be renewed while we run


def is_host(text: str) -> bool:
    """Whether a text can be the name or the address of a machine."""
    return _HOST.fullmatch(text) is not None


def is_there(file: Path) -> bool:
    """Whether there is a file; one in a folder that we may not look into is not there for us."""
    try:
        file.stat()
    except OSError:
        return False
    return True


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """An API server's address; `prefix` is what gateways put before `/api`."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, text: str, *, where: str, default_scheme: str = "https") -> "ServerAddress":
        """Read `https://host:6443/prefix`; `where` names the field in errors."""
        try:
            parts = urlsplit(text if "://" in text else f"{default_scheme}://{text}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidKubeconfig(f'{where}: "{text}" is not a URL: {error}') from error
        if parts.scheme not in _PORTS or not host or not is_host(host):
            raise InvalidKubeconfig(f'{where}: "{text}" is not a URL such as https://10.0.0.1:6443')
        if parts.username or parts.query or parts.fragment:
            raise InvalidKubeconfig(f"{where}: a server is a host, a port and a path, nothing else")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return _authority(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is asked to CONNECT; `user` is `name:password` when it wants to know."""

    scheme: str
    host: str
    port: int
    user: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, *, where: str) -> "Proxy":
        """Read `http://user:password@proxy:3128`; without a scheme it is http, as everywhere."""
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidKubeconfig(f"{where}: not a URL: {error}") from error
        if parts.scheme not in _PORTS or not host or not is_host(host):
            raise InvalidKubeconfig(f"{where}: a proxy is http://host:port or https://host:port")
        user = None
        if parts.username:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], user)

    def __str__(self) -> str:
        return f"{self.scheme}://{_authority(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server proves itself."""

    ca: Material | None = None  # None: the machine's own authorities
    insecure: bool = False
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Credential:
    """How we prove ourselves, at one moment; equal when nothing changed."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)  # PEM, with its chain
    key: bytes | None = field(default=None, repr=False)


class Credentials(Protocol):
    """Where credentials come from, for as long as the process lives."""

    async def current(self) -> Credential:
        """What to use now."""
        ...

    async def renewed(self, refused: Credential) -> Credential | None:
        """What to use after a 401 for `refused`; None when there is nothing else to try."""
        ...


@dataclass(frozen=True, slots=True)
class Anonymous:
    """No credentials: a server behind `kubectl proxy`, or one for tests."""

    async def current(self) -> Credential:
        return Credential()

    async def renewed(self, refused: Credential) -> Credential | None:
        return None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that can be called."""

    endpoint: ServerAddress
    tls: Tls = Tls()
    credentials: Credentials = Anonymous()
    proxy: Proxy | None = None
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = ()  # impersonation
    source: str = ""  # for people: where all this was found


def impersonation(
    user: str,
    groups: Sequence[str],
    where: str,
    uid: str = "",
    extra: Mapping[str, Sequence[str]] = _NO_EXTRA,
) -> tuple[tuple[str, str], ...]:
    """The headers by which we act as another user; `where` names the field in errors."""
    headers = [("Impersonate-User", user)] if user else []
    headers += [("Impersonate-Uid", uid)] if uid else []
    headers += [("Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        headers += [(f"Impersonate-Extra-{quote(key, safe='')}", one) for one in values]
    if headers and not user:
        raise InvalidKubeconfig(f"{where}: missing; groups and extra fields need a user")
    if not all(text.isascii() and text.isprintable() for header in headers for text in header):
        raise InvalidKubeconfig(f"{where}: printable ASCII characters only")
    return tuple(headers)
