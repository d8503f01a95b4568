"""Where a cluster is and how to get in: the values that configuration ends in and the client begins with.

How we prove who we are: a token, a client certificate, or both.

A service account's token lives for an hour and is replaced in its file long before; a client that reads it once is
locked out later. Files are looked at with every call (a stat costs microseconds) and read again when they changed, and at
least once a minute, for file systems whose times cannot be trusted.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import SplitResult, quote, unquote, urlsplit

from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import CredentialsFailed, InvalidKubeconfig
from tessera.kube.files import WatchedFiles

_REREAD_SECONDS: Final = 60.0

Material = bytes | Path  # PEM or a token, given inline or in a file that may be renewed while we run


@dataclass(frozen=True, slots=True)
class Credential:
    """How we prove ourselves, at one moment; equal when nothing changed."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)  # PEM, with its chain
    key: bytes | None = field(default=None, repr=False)


class Credentials(Protocol):
    """Where credentials come from, for as long as the process lives."""

    async def current(self) -> Credential: ...

    async def renewed(self, refused: Credential) -> Credential | None:
        """What to use after a 401 for `refused`; None when there is nothing else to try."""
        ...


class StoredCredentials:
    """What was given inline or in files. A token's file wins over a token, which serves until the file can be read."""

    def __init__(
        self,
        *,
        token: str | None = None,
        token_file: Path | None = None,
        certificate: Material | None = None,
        key: Material | None = None,
        where: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._where = f"{where}: " if where else ""
        given = token.encode() if token is not None else None
        self._token = _Source(token_file or given, f"{self._where}tokenFile", clock, given)
        self._certificate = _Source(certificate, f"{self._where}client-certificate", clock)
        self._key = _Source(key, f"{self._where}client-key", clock)

    async def current(self) -> Credential:
        """What the files hold now."""
        return self._read(again=False)

    async def renewed(self, refused: Credential) -> Credential | None:
        """The files read once more; None when they hold what was refused."""
        credential = self._read(again=True)
        return credential if credential != refused else None

    def _read(self, *, again: bool) -> Credential:
        token = self._token.read(again=again)
        return Credential(
            token_text(token.decode("latin-1"), self._where + "token") if token is not None else None,
            self._certificate.read(again=again),
            self._key.read(again=again),
        )


class _Source:
    """What was given, or a file's content as of now; the last good one when the file cannot be read any more."""

    def __init__(
        self, material: Material | None, what: str, clock: Clock, until_read: bytes | None = None
    ) -> None:
        self._file = material if isinstance(material, Path) else None
        self._content = until_read if isinstance(material, Path) else material
        self._what = what
        self._clock = clock
        self._watched = WatchedFiles(*([self._file] if self._file else []))
        self._read_at = 0.0

    def read(self, *, again: bool) -> bytes | None:
        """The content; `again` reads the file whether or not it seems changed."""
        if self._file is None:
            return self._content
        due = self._clock.now() - self._read_at >= _REREAD_SECONDS
        if self._watched.changed() or again or due or self._content is None:
            try:
                content = read_material(self._file, self._what)
            except CredentialsFailed:
                if self._content is None:
                    raise
                return self._content
            if content.strip() or self._content is None:  # an empty file is one being written
                self._content = content
            self._read_at = self._clock.now()
        return self._content


def read_material(material: Material, what: str) -> bytes:
    """What was given, or is in the file now."""
    if isinstance(material, bytes):
        return material
    try:
        return material.read_bytes()
    except OSError as error:
        raise CredentialsFailed(f"{what}: cannot read {material}: {error.strerror}") from error


def token_text(token: str, where: str) -> str:
    """A token as it may stand in a header."""
    text = token.strip()
    if not text:
        raise CredentialsFailed(f"{where}: empty")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise CredentialsFailed(f"{where}: a token is one word of printable ASCII characters")
    return text


_PORTS: Final = {"http": 80, "https": 443}  # of servers and of proxies, where a URL names none

# a name or an address; more is the resolver's business
_HOST: Final = re.compile(r"(?!\.)(?!.*\.\.)[\w.:%-]{1,253}")

_NO_EXTRA: Final[Mapping[str, Sequence[str]]] = {}


def is_host(text: str) -> bool:
    """Whether a text can be the name or the address of a machine."""
    return _HOST.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class _Address:
    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True)
class ServerAddress(_Address):
    """An API server's address; `prefix` is what gateways put before `/api`."""

    prefix: str = ""

    @classmethod
    def parse(cls, text: str, *, where: str, default_scheme: str = "https") -> "ServerAddress":
        """Read `https://host:6443/prefix`; `where` names the field in errors."""
        no_url = f'{where}: "{text}" is not a URL'
        parts, host, port = _split(text, default_scheme, no_url, f"{no_url} such as https://10.0.0.1:6443")
        if parts.username or parts.query or parts.fragment:
            raise InvalidKubeconfig(f"{where}: a server is a host, a port and a path, nothing else")
        return cls(parts.scheme, host, port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Proxy(_Address):
    """A proxy that is asked to CONNECT; `user` is `name:password` when it wants to know."""

    user: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, *, where: str) -> "Proxy":
        """Read `http://user:password@proxy:3128`; without a scheme it is http, as everywhere."""
        wanted = f"{where}: a proxy is http://host:port or https://host:port"
        parts, host, port = _split(text, "http", f"{where}: not a URL", wanted)
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
        return cls(parts.scheme, host, port, user)

    @classmethod
    def from_environment(cls, endpoint: ServerAddress, environ: Mapping[str, str]) -> "Proxy | None":
        """The proxy for an API server by HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in either spelling.

        The rules are those of Go's net/http, which kubectl follows.
        """
        name = "HTTPS_PROXY" if endpoint.scheme == "https" else "HTTP_PROXY"
        for spelling in (name, name.lower()):
            if text := environ.get(spelling):
                no_proxy = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
                return None if _is_exempt(endpoint, no_proxy) else cls.parse(text, where=spelling)
        return None


def _split(text: str, default_scheme: str, no_url: str, wanted: str) -> tuple[SplitResult, str, int]:
    """A URL's parts, its host and its port; the last two texts are what errors say."""
    try:
        parts = urlsplit(text if "://" in text else f"{default_scheme}://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidKubeconfig(f"{no_url}: {error}") from error
    if parts.scheme not in _PORTS or not host or not is_host(host):
        raise InvalidKubeconfig(wanted)
    return parts, host, port or _PORTS[parts.scheme]


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server proves itself."""

    ca: Material | None = None  # None: the machine's own authorities
    insecure: bool = False
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that can be called."""

    endpoint: ServerAddress
    tls: Tls = Tls()
    # none at all: a server behind `kubectl proxy`, or one for tests
    credentials: Credentials = field(default_factory=StoredCredentials)
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


def _is_exempt(endpoint: ServerAddress, no_proxy: str) -> bool:
    """Whether NO_PROXY, or being this very machine, keeps a host away from the proxy."""
    host = endpoint.host.lower().rstrip(".")
    address = _ip(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, endpoint.port) for entry in no_proxy.split(","))


_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def _matches(entry: str, host: str, address: _Ip | None, port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if _ip(entry) is None and ":" in entry:
        entry, _, wanted_port = entry.rpartition(":")
        if wanted_port and wanted_port != str(port):
            return False
    entry_address = _ip(entry.strip("[]"))
    if entry_address is not None:
        return address == entry_address
    suffix = entry.removeprefix("*")
    return host.endswith(suffix) if suffix.startswith(".") else host == entry or host.endswith(f".{entry}")


def _ip(text: str) -> _Ip | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
