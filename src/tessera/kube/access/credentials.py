"""How we prove who we are: a token, a client certificate, or both.

A service account's token lives for an hour and is replaced in its file long before; a client that reads it once is
locked out later. Files are looked at with every call (a stat costs microseconds) and read again when they changed, and at
least once a minute, for file systems whose times cannot be trusted.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import CredentialsFailed
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
