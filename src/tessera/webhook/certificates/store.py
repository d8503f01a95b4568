"""What replicas share: the Secret with the authorities and the webhook configuration with the bundle. Read and written here.

With them goes the API server's clock, by which this machine's is judged: a clock that is wrong by years would see every
authority as ended, or not begun, and replace it again and again.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from tessera.core.errors import TesseraError
from tessera.kube.clock import offset_in_words
from tessera.kube.errors import ApiError, BadResponse
from tessera.kube.rest.client import Client, PatchType, path_of
from tessera.protocol.kubernetes.webhook import Secret, WebhookConfiguration
from tessera.webhook.certificates.rotation import RotationPolicy

T = TypeVar("T")

_CONFIGURATIONS: Final = ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
_RESOLUTION: Final = 2.0  # seconds: the API server says whole ones, and its answer takes a moment


class Conflict(TesseraError):
    """Another replica was faster: read again."""


class WrongClock(TesseraError):
    """This machine's clock and the API server's differ by more than certificates allow."""


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


class KubeStore:
    """The two objects, by their names. Writing raises `Conflict` when the version is not the last any more."""

    def __init__(self, client: Client, namespace: str, secret: str, configuration: str) -> None:
        self.secret_name = f"Secret {namespace}/{secret}"
        self.client, self.namespace = client, namespace
        self._secret = secret
        self._secrets = path_of("v1", "secrets", namespace=namespace)
        self._secret_path = path_of("v1", "secrets", namespace=namespace, name=secret)
        self._configuration_path = path_of(*_CONFIGURATIONS, name=configuration)

    def server_date(self) -> float | None:
        """What the API server's clock said when it last answered, Unix time; None if it did not say."""
        return self.client.server_date

    async def read_bundles(self) -> StoredBundles | None:
        found = await read_object(self.client, self._configuration_path, WebhookConfiguration)
        if found is None:
            return None
        bundles = {one.name: one.client_config.ca_bundle or b"" for one in found.webhooks or ()}
        return StoredBundles(found.metadata.resource_version, bundles)

    async def read_secret(self) -> StoredSecret | None:
        found = await read_object(self.client, self._secret_path, Secret)
        return None if found is None else StoredSecret(found.metadata.resource_version, found.data or {})

    async def create_secret(self, data: Mapping[str, bytes | None]) -> None:
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
            if not error.is_forbidden:
                raise
            raise TesseraError(
                f"{self.secret_name} does not exist, and the right to create it is not given; create it empty, and it is "
                f"filled: kubectl create secret generic {self._secret} -n {self.namespace}"
            ) from error

    async def write_secret(self, version: str, data: Mapping[str, bytes | None]) -> None:
        """Change these keys (None removes one); labels and whatever else is there stays."""
        body = {"metadata": {"resourceVersion": version}, "data": data}
        await _racing(self.client.patch(self._secret_path, body, PatchType.MERGE))

    async def publish(self, found: StoredBundles, bundle: bytes) -> None:
        """Put the bundle into every webhook of the configuration; webhooks are merged by their names."""
        body = {
            "metadata": {"resourceVersion": found.version},
            "webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in found.bundles],
        }
        await _racing(self.client.patch(self._configuration_path, body, PatchType.STRATEGIC))


async def read_object(client: Client, path: str, kind: type[T]) -> T | None:
    """An object, as far as it is needed; None if there is none."""
    raw = await client.find(path)
    try:
        return None if raw is None else msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadResponse(f"the API server sent an unexpected object: {error}") from error


async def _racing(call: Awaitable[bytes]) -> None:
    try:
        await call
    except ApiError as error:
        if error.is_conflict or error.is_not_found:  # changed, made or deleted by another client meanwhile
            raise Conflict(str(error)) from error
        raise


def check_clock(offset: float, policy: RotationPolicy) -> None:
    """Raise `WrongClock` beyond what is tolerated: half of what any two replicas may differ by."""
    if abs(offset) > policy.skew / 2 + _RESOLUTION:
        raise WrongClock(f"{offset_in_words(offset)}: this process writes and signs nothing until they agree")
