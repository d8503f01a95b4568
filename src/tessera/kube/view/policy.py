"""The configuration to decide by, for who is not the webhook: the file that a person gave, else what the webhook is installed with.

Without either the default values hold. Each answer says in one line which it is: an answer by another configuration than the
webhook's can be wrong.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tessera.core.admission.policy import Mode, Policy
from tessera.core.errors import InvalidInput
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.protocol.configuration import webhook as configuration
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.webhook import decode_config_map

WEBHOOK: Final = "gpu-webhook"  # its namespace and its name, as the chart has them
KEY: Final = "config.yaml"  # of the ConfigMap
_REFUSED: Final = {403: "may not be read", 404: "is not there"}


@dataclass(frozen=True, slots=True)
class UsedPolicy:
    """A policy, and where it is from; `missing` says why it is not the installed one, where the default values stand in for that."""

    policy: Policy = field(default_factory=Policy)
    source: str = "default values"
    missing: str = ""

    def __str__(self) -> str:
        mode = ", whose mode is observe" if self.policy.mode is Mode.OBSERVE else ""
        return f"decided with {self.source}{f': {self.missing}' if self.missing else mode}"


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Where the webhook is installed, by its Deployment or its ConfigMap; or what was given instead."""

    namespace: str = WEBHOOK
    name: str = WEBHOOK
    given: UsedPolicy | None = None

    async def read(self, client: Client) -> UsedPolicy:
        """What a cluster's webhook decides by now."""
        if self.given is not None:
            return self.given
        name = self.name
        with suppress(KubeError, InvalidInput):  # who may not read the Deployment names the ConfigMap
            path = path_of("apps/v1", "deployments", namespace=self.namespace, name=name)
            name = objects.decoder(Workload)(await client.get(path)).config_map() or name
        title, path = self._title(name), path_of("v1", "configmaps", namespace=self.namespace, name=name)
        try:
            return _read(await client.get(path), title)
        except KubeError as error:
            code = error.code if isinstance(error, ApiError) else 0
            return UsedPolicy(missing=f"{title} {_REFUSED.get(code) or f'cannot be read: {error}'}")

    def among(self, config_maps: Iterable[bytes]) -> UsedPolicy:
        """The same of a cluster that files describe, by the ConfigMaps among them."""
        if self.given is not None:
            return self.given
        for raw in config_maps:
            metadata = objects.decode_named(raw).metadata
            if metadata.name == self.name and metadata.namespace in ("", self.namespace):
                return _read(raw, self._title(self.name))
        return UsedPolicy(missing=f"{self._title(self.name)} is not among the files")

    def _title(self, name: str) -> str:
        return f"ConfigMap {self.namespace}/{name}"


def _read(raw: bytes, title: str) -> UsedPolicy:
    try:
        data = decode_config_map(raw).data or {}
        if KEY not in data:
            return UsedPolicy(missing=f"{title} has no key {KEY}")
        return UsedPolicy(configuration.parse(data[KEY], KEY).policy, f"the configuration of {title}")
    except InvalidInput as error:
        return UsedPolicy(missing=f"{title} has mistakes: {'; '.join(error.errors)}")
