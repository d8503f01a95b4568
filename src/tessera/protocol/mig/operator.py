"""What NVIDIA's GPU operator says about mig-manager: the ClusterPolicy names a ConfigMap, and that has the configurations.

mig-manager reads mig-parted's file from the ConfigMap's key `config.yaml`; a node's label `nvidia.com/mig.config` names one of the
configurations in it. The operator puts its default ConfigMap back when it is changed; one of another name it leaves alone.
"""

from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.objects import Metadata, NameOnly, Part, decoder
from tessera.protocol.kubernetes.webhook import ConfigMap
from tessera.protocol.mig import documents
from tessera.protocol.mig.documents import Format, MigDocument

CLUSTER_POLICY: Final = (
    "ClusterPolicy"  # nvidia.com/v1, of the whole cluster; there is one at most that counts
)
DEFAULT_NAMESPACE: Final = "gpu-operator"
DEFAULT_CONFIG: Final = "default-mig-parted-config"
CONFIG_KEY: Final = "config.yaml"


@dataclass(frozen=True, slots=True)
class MigManagerConfig:
    """The ConfigMap that mig-manager reads, or why it could not be read."""

    namespace: str  # empty: from a file
    name: str
    owned: bool = False  # the operator restores it, so nothing may be written into it
    resource_version: str = ""
    document: MigDocument | None = field(default=None, compare=False)  # None: see `error`
    text: str = ""
    error: str = ""
    passes: bool = False  # the error: the API server could not answer, and may do so later
    policy: str = "cluster-policy"  # the ClusterPolicy's name: as the operator's chart calls it

    def __str__(self) -> str:
        """`ConfigMap gpu-operator/default-mig-parted-config`, or the file."""
        return f"ConfigMap {self.namespace}/{self.name}" if self.namespace else self.name


class _MigManagerIn(Part):
    config: NameOnly | None = None


class _SpecIn(Part):
    mig_manager: _MigManagerIn | None = None


class _StatusIn(Part):
    namespace: str = ""
    state: str = ""


class ClusterPolicyIn(Part):
    """The part of a ClusterPolicy that says where mig-manager's configurations are."""

    metadata: Metadata
    spec: _SpecIn = msgspec.field(default_factory=_SpecIn)
    status: _StatusIn = msgspec.field(default_factory=_StatusIn)

    @property
    def config_map(self) -> tuple[str, str]:
        """Namespace and name of the ConfigMap."""
        manager = self.spec.mig_manager
        name = manager.config.name if manager and manager.config else ""
        return self.status.namespace or DEFAULT_NAMESPACE, name or DEFAULT_CONFIG

    @property
    def counts(self) -> bool:
        """Whether the operator follows it: it ignores every one but the first."""
        return self.status.state != "ignored"


class ClusterPoliciesIn(Part):
    items: list[ClusterPolicyIn] = msgspec.field(default_factory=list)


def config_of(one: ConfigMap) -> MigManagerConfig:
    """mig-manager's configurations, as a ConfigMap has them."""
    metadata = one.metadata
    owners = metadata.owner_references or ()
    owned = metadata.name == DEFAULT_CONFIG or any(owner.kind == CLUSTER_POLICY for owner in owners)
    found = MigManagerConfig(metadata.namespace, metadata.name, owned, metadata.resource_version)
    text = (one.data or {}).get(CONFIG_KEY)
    if text is None:
        return replace(found, error=f"{found} has no key {CONFIG_KEY}")
    try:
        return replace(found, document=config_in(text, str(found)).document, text=text)
    except InvalidInput as error:
        return replace(found, text=text, error=str(error))


def config_in(text: str, where: str) -> MigManagerConfig:
    """mig-manager's configurations, as a file has them; `InvalidInput` where it is no such file."""
    document = documents.read(text, where)
    if document.format is not Format.MIG_PARTED:
        raise InvalidInput(f"{where}: expected mig-parted's format: mig-configs with counts of mig-devices")
    return MigManagerConfig("", where, document=document, text=text)


decode_policy: Final = decoder(ClusterPolicyIn)
decode_policies: Final = decoder(ClusterPoliciesIn)
