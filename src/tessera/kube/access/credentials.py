"""Credentials that change while we run: tokens and certificates in files.

A service account's token lives for an hour and is replaced in its file long before; a client that reads it once is
locked out later. Files are looked at with every call (a stat costs microseconds) and read again when they changed, and at
least once a minute, for file systems whose times cannot be trusted.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.kube.access.cluster import Credential, Material
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import CredentialsFailed
from tessera.kube.files import WatchedFiles

_REREAD_SECONDS: Final = 60.0


class RenewedFile:
    """A small file's content, as of now; the last good one when it cannot be read any more."""

    def __init__(self, path: Path, what: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._what = what
        self._clock = clock
        self._content: bytes | None = None
        self._watched = WatchedFiles(path)
        self._read_at = 0.0

    def read(self, *, again: bool = False) -> bytes:
        """The content; `again` reads the file whether or not it seems changed."""
        due = self._clock.now() - self._read_at >= _REREAD_SECONDS
        if not (self._watched.changed() or again or due) and self._content is not None:
            return self._content
        try:
            content = self._path.read_bytes()
        except OSError as error:
            if self._content is None:
                raise CredentialsFailed(
                    f"{self._what}: cannot read {self._path}: {error.strerror}"
                ) from error
            return self._content
        if content.strip() or self._content is None:  # an empty file is one being written
            self._content = content
        self._read_at = self._clock.now()
        return self._content


def token_text(token: bytes | str, where: str) -> str:
    """A token as it may stand in a header."""
    text = (token.decode("latin-1") if isinstance(token, bytes) else token).strip()
    if not text:
        raise CredentialsFailed(f"{where}: empty")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise CredentialsFailed(f"{where}: a token is one word of printable ASCII characters")
    return text


@dataclass(slots=True)
class _Source:
    """PEM or a token, given or in a file."""

    given: bytes | None
    file: RenewedFile | None

    def read(self, *, again: bool) -> bytes | None:
        return self.file.read(again=again) if self.file is not None else self.given


class StoredCredentials:
    """A token, a client certificate, or both, each given inline or in a file. A token's file wins over a token."""

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

        def source(material: Material | None, field: str) -> _Source:
            if isinstance(material, Path):
                return _Source(None, RenewedFile(material, self._where + field, clock))
            return _Source(material, None)

        given = token.encode("utf-8") if token is not None else None
        self._token = source(token_file or given, "tokenFile")
        self._spare_token = given  # until the file can be read
        self._certificate = source(certificate, "client-certificate")
        self._key = source(key, "client-key")

    async def current(self) -> Credential:
        """What the files hold now."""
        return self._read(again=False)

    async def renewed(self, refused: Credential) -> Credential | None:
        """The files read once more; None when they hold what was refused."""
        credential = self._read(again=True)
        return credential if credential != refused else None

    def _read(self, *, again: bool) -> Credential:
        try:
            token = self._token.read(again=again)
        except CredentialsFailed:
            if self._spare_token is None:
                raise
            token = self._spare_token
        return Credential(
            token_text(token, self._where + "token") if token is not None else None,
            self._certificate.read(again=again),
            self._key.read(again=again),
        )
