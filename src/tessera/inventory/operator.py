"""Where mig-manager's configurations are, read from a cluster of NVIDIA's operator, or from objects in files."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tessera.kube.errors import ApiError
from tessera.kube.rest.client import path_of
from tessera.kube.watch.table import CONFIG_MAPS, Resource, Table, TableEntry
from tessera.protocol.kubernetes.webhook import ConfigMap, decode_config_map
from tessera.protocol.mig.operator import (
    CLUSTER_POLICY,
    CONFIG_KEY,
    ClusterPolicyIn,
    MigManagerConfig,
    config_of,
    decode_policies,
    decode_policy,
)

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client

_CLUSTER_POLICIES: Final = Resource(
    "clusterpolicies", path_of("nvidia.com/v1", "clusterpolicies"), kind=CLUSTER_POLICY
)


async def read_mig_manager(client: "Client") -> MigManagerConfig | None:
    """The configurations that mig-manager has; None where there is no ClusterPolicy. What may not be read is reported as an error."""
    try:
        policies = decode_policies(await client.get(_CLUSTER_POLICIES.path)).items
    except ApiError as error:
        if error.is_not_found:
            return None
        why = f"the ClusterPolicy cannot be read: {error.message}"
        return MigManagerConfig("", "", error=why, passes=not error.is_absent)
    policy = _in_force(policies)
    if policy is None:
        return None
    namespace, name = policy.config_map
    try:
        raw = await client.get(path_of("v1", "configmaps", namespace=namespace, name=name))
        return replace(config_of(decode_config_map(raw)), policy=policy.metadata.name)
    except ApiError as error:
        why = f"ConfigMap {namespace}/{name} cannot be read: {error.message}"
        return MigManagerConfig(namespace, name, error=why, passes=not error.is_absent)


class MigManagerFiles:
    """The same from objects in files: the ConfigMap that a ClusterPolicy names; without one, the only one of that kind."""

    def __init__(self) -> None:
        self._policies: list[ClusterPolicyIn] = []
        self._maps: dict[tuple[str, str], ConfigMap] = {}

    def table(self) -> Table:
        """How the objects are taken."""
        return {
            _CLUSTER_POLICIES: TableEntry(decode_policy, self._policies.append),
            CONFIG_MAPS: TableEntry(decode_config_map, self._put_map),
        }

    def config(self) -> MigManagerConfig | None:
        """What was found, when all objects are taken."""
        policy = _in_force(self._policies)
        if policy is not None:
            namespace, name = policy.config_map
            named = self._maps.get((namespace, name)) or self._maps.get(("", name))
            missing = f"ConfigMap {namespace}/{name}, which the ClusterPolicy names, is not among the objects"
            return config_of(named) if named else MigManagerConfig(namespace, name, error=missing)
        likely = [
            each for each in self._maps.values() if "mig-configs" in (each.data or {}).get(CONFIG_KEY, "")
        ]
        return config_of(likely[0]) if len(likely) == 1 else None

    def _put_map(self, config_map: ConfigMap) -> None:
        self._maps[config_map.metadata.namespace, config_map.metadata.name] = config_map


def _in_force(policies: Iterable[ClusterPolicyIn]) -> ClusterPolicyIn | None:
    return next((one for one in policies if one.counts), None)
