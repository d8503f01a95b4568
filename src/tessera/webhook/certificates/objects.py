"""The two objects that replicas share, as the manager needs them: the Secret with the authorities, and the webhook configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tessera.core.errors import TesseraError


class Conflict(TesseraError):
    """Another replica was faster: look again."""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """The Secret as it was read."""

    version: str
    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredBundles:
    """The webhook configuration as it was read: a bundle per webhook."""

    version: str
    bundles: Mapping[str, bytes]


class Store(Protocol):
    """The two objects that replicas share. Writing raises `Conflict` when the version is not the last any more."""

    @property
    def secret_name(self) -> str:
        """The Secret as messages name it."""
        ...

    def server_date(self) -> float | None:
        """What the API server's clock said when it last answered, Unix time; None if it did not say."""
        ...

    async def read_bundles(self) -> StoredBundles | None:
        """The webhook configuration, if there is one."""
        ...

    async def read_secret(self) -> StoredSecret | None:
        """The Secret, if there is one."""
        ...

    async def create_secret(self, data: Mapping[str, bytes | None]) -> None:
        """Be the first."""
        ...

    async def write_secret(self, version: str, data: Mapping[str, bytes | None]) -> None:
        """Change these keys; None removes one."""
        ...

    async def publish(self, found: StoredBundles, bundle: bytes) -> None:
        """Put the bundle into every webhook of the configuration."""
        ...
