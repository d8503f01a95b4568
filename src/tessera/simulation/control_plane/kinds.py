"""The kinds of objects that the stand-in API server knows, in one table."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource of the API: `pods` in `v1`, `leases` in `coordination.k8s.io/v1`."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: str = ""

    @property
    def prefix(self) -> str:
        """`/api/v1` or `/apis/<group>/<version>`."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"

    @property
    def group(self) -> str:
        """The API group, empty for the core one."""
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NODES: Final = Kind("v1", "nodes", "Node", namespaced=False, short="no")
NAMESPACES: Final = Kind("v1", "namespaces", "Namespace", namespaced=False, short="ns")
PODS: Final = Kind("v1", "pods", "Pod", short="po")
SECRETS: Final = Kind("v1", "secrets", "Secret")
CONFIG_MAPS: Final = Kind("v1", "configmaps", "ConfigMap", short="cm")
EVENTS: Final = Kind("v1", "events", "Event", short="ev")
SERVICES: Final = Kind("v1", "services", "Service", short="svc")
DEPLOYMENTS: Final = Kind("apps/v1", "deployments", "Deployment", short="deploy")
JOBS: Final = Kind("batch/v1", "jobs", "Job")
LEASES: Final = Kind("coordination.k8s.io/v1", "leases", "Lease")
MUTATING_WEBHOOKS: Final = Kind(
    "admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
RESOURCE_SLICES: Final = Kind("resource.k8s.io/v1", "resourceslices", "ResourceSlice", namespaced=False)

KINDS: Final = (
    NODES, NAMESPACES, PODS, SECRETS, CONFIG_MAPS, EVENTS, SERVICES,
    DEPLOYMENTS, JOBS, LEASES, MUTATING_WEBHOOKS, RESOURCE_SLICES,
)  # fmt: skip
