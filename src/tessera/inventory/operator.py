"""Where mig-manager's configurations are, read from a cluster of NVIDIA's operator, or from objects in files."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tessera.kube.errors import ApiError
from tessera.kube.object_files import FileObject, naming
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.webhook import decode_config_map
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

_POLICIES: Final = path_of("nvidia.com/v1", "clusterpolicies")


async def read_mig_manager(client: "Client") -> MigManagerConfig | None:
    """The configurations that mig-manager has; None where there is no ClusterPolicy. What may not be read is reported as an error."""
    try:
        policies = decode_policies(await client.get(_POLICIES)).items
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


def mig_manager_in(found: Iterable[FileObject]) -> MigManagerConfig | None:
    """The same from objects in files: the ConfigMap that a ClusterPolicy names; without one, the only one of that kind."""
    policies, maps = [], {}
    for one in found:
        with naming(one.where):
            if one.kind == CLUSTER_POLICY:
                policies.append(decode_policy(one.raw))
            elif one.kind == "ConfigMap":
                found_map = decode_config_map(one.raw)
                maps[found_map.metadata.namespace, found_map.metadata.name] = found_map
    policy = _in_force(policies)
    if policy is not None:
        namespace, name = policy.config_map
        named = maps.get((namespace, name)) or maps.get(("", name))
        missing = f"ConfigMap {namespace}/{name}, which the ClusterPolicy names, is not among the objects"
        return config_of(named) if named else MigManagerConfig(namespace, name, error=missing)
    likely = [some for some in maps.values() if "mig-configs" in (some.data or {}).get(CONFIG_KEY, "")]
    return config_of(likely[0]) if len(likely) == 1 else None


def _in_force(policies: Iterable[ClusterPolicyIn]) -> ClusterPolicyIn | None:
    return next((one for one in policies if one.counts), None)
