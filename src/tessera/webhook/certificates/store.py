"""What replicas share: the Secret with the authorities and the webhook configuration with the bundle. Read and written here.

`Store` is what the manager needs of them; `KubeStore` is a cluster's.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from tessera.core.errors import TesseraError
from tessera.kube.errors import ApiError, BadResponse
from tessera.kube.rest.client import Client, PatchType
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.webhook import Secret, WebhookConfiguration

T = TypeVar("T")

_CONFIGURATIONS: Final = ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")


class Conflict(TesseraError):
    """Another replica was faster: look again."""


class MissingSecret(TesseraError):
    """The Secret is not there, and only another can make it."""


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


class KubeStore:
    """Both, by their names."""

    def __init__(self, client: Client, namespace: str, secret: str, configuration: str) -> None:
        self.secret_name = f"Secret {namespace}/{secret}"
        self.client, self.namespace = client, namespace
        self._secret = secret
        self._secrets = path_of("v1", "secrets", namespace=namespace)
        self._secret_path = path_of("v1", "secrets", namespace=namespace, name=secret)
        self._configuration_path = path_of(*_CONFIGURATIONS, name=configuration)

    def server_date(self) -> float | None:
        """The API server's clock at its last answer."""
        return self.client.server_date

    async def read_bundles(self) -> StoredBundles | None:
        """The webhook configuration, if there is one."""
        raw = await self._get(self._configuration_path)
        if raw is None:
            return None
        found = decode(raw, WebhookConfiguration)
        bundles = {one.name: one.client_config.ca_bundle or b"" for one in found.webhooks or ()}
        return StoredBundles(found.metadata.resource_version, bundles)

    async def read_secret(self) -> StoredSecret | None:
        """The Secret, if there is one."""
        raw = await self._get(self._secret_path)
        if raw is None:
            return None
        found = decode(raw, Secret)
        return StoredSecret(found.metadata.resource_version, found.data or {})

    async def create_secret(self, data: Mapping[str, bytes | None]) -> None:
        """Be the first."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self._secret},
            "type": "Opaque",
            "data": {name: value for name, value in data.items() if value is not None},
        }
        try:
            await _racing(self.client.create(self._secrets, body))
        except ApiError as error:
            if error.code != 403:
                raise
            raise MissingSecret(
                f"{self.secret_name} does not exist, and the right to create it is not given; create it empty, and it is "
                f"filled: kubectl create secret generic {self._secret} -n {self.namespace}"
            ) from error

    async def write_secret(self, version: str, data: Mapping[str, bytes | None]) -> None:
        """Change these keys; labels and whatever else is there stays."""
        body = {"metadata": {"resourceVersion": version}, "data": data}
        await _racing(self.client.patch(self._secret_path, body, PatchType.MERGE))

    async def publish(self, found: StoredBundles, bundle: bytes) -> None:
        """Put the bundle into every webhook of the configuration; webhooks are merged by their names."""
        body = {
            "metadata": {"resourceVersion": found.version},
            "webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in found.bundles],
        }
        await _racing(self.client.patch(self._configuration_path, body, PatchType.STRATEGIC))

    async def _get(self, path: str) -> bytes | None:
        try:
            return await self.client.get(path)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise


async def _racing(call: Awaitable[bytes]) -> None:
    try:
        await call
    except ApiError as error:
        if error.is_conflict or error.is_not_found:  # changed, made or deleted by another client meanwhile
            raise Conflict(str(error)) from error
        raise


def decode(raw: bytes, kind: type[T]) -> T:
    """An object, as far as it is needed."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadResponse(f"the API server sent an unexpected object: {error}") from error
