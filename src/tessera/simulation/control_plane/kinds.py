"""The kinds of objects that the stand-in API server knows, in one table, and how clients learn of them (discovery)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.dra.slices import API_VERSION
from tessera.protocol.mig.miglayout import API_VERSION as MIG_LAYOUT_API
from tessera.protocol.mig.miglayout import KIND, PLURAL

_VERSION: Final = {"major": "1", "minor": "36", "gitVersion": "v1.36.1+tessera", "platform": "linux/amd64"}
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True)
class ResourceType:
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


NODES: Final = ResourceType("v1", "nodes", "Node", namespaced=False, short="no")
NAMESPACES: Final = ResourceType("v1", "namespaces", "Namespace", namespaced=False, short="ns")
PODS: Final = ResourceType("v1", "pods", "Pod", short="po")
SECRETS: Final = ResourceType("v1", "secrets", "Secret")
CONFIG_MAPS: Final = ResourceType("v1", "configmaps", "ConfigMap", short="cm")
EVENTS: Final = ResourceType("v1", "events", "Event", short="ev")
SERVICES: Final = ResourceType("v1", "services", "Service", short="svc")
DEPLOYMENTS: Final = ResourceType("apps/v1", "deployments", "Deployment", short="deploy")
JOBS: Final = ResourceType("batch/v1", "jobs", "Job")
ENDPOINT_SLICES: Final = ResourceType("discovery.k8s.io/v1", "endpointslices", "EndpointSlice")
LEASES: Final = ResourceType("coordination.k8s.io/v1", "leases", "Lease")
MUTATING_WEBHOOKS: Final = ResourceType(
    "admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
RESOURCE_SLICES: Final = ResourceType(API_VERSION, "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASSES: Final = ResourceType(API_VERSION, "deviceclasses", "DeviceClass", namespaced=False)
RESOURCE_CLAIMS: Final = ResourceType(API_VERSION, "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES: Final = ResourceType(API_VERSION, "resourceclaimtemplates", "ResourceClaimTemplate")
MIG_LAYOUTS: Final = ResourceType(MIG_LAYOUT_API, PLURAL, KIND, namespaced=False)

KINDS: Final = (
    NODES, NAMESPACES, PODS, SECRETS, CONFIG_MAPS, EVENTS, SERVICES, DEPLOYMENTS, JOBS, ENDPOINT_SLICES, LEASES,
    MUTATING_WEBHOOKS, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES,
    MIG_LAYOUTS,
)  # fmt: skip


def discover(path: str, kinds: Iterable[ResourceType]) -> dict[str, Any] | None:
    """The document at a discovery path; None for any other path."""
    match path := path.rstrip("/"):
        case "/version":
            return _VERSION
        case "/livez" | "/readyz" | "/healthz":
            return {"status": "ok"}
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        case "/apis":
            versions = sorted({kind.api_version for kind in kinds if kind.group})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(map(_group, versions))}
    found = [kind for kind in kinds if kind.prefix == path]
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].api_version,
        "resources": [_resource(kind) for kind in found],
    }


def _group(api_version: str) -> dict[str, Any]:
    group, _, version = api_version.rpartition("/")
    served = {"groupVersion": api_version, "version": version}
    return {"name": group, "versions": [served], "preferredVersion": served}


def _resource(kind: ResourceType) -> dict[str, Any]:
    return {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "shortNames": [kind.short] if kind.short else [],
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
    }
