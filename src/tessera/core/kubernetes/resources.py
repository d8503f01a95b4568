"""Names of resources: which are GPUs, and how records and messages name them.

`MIG_PREFIX`, which makes a profile a resource name, is in `mig.profile`.
"""

import re
from typing import Final

from tessera.core.mig.profile import MIG_PREFIX, MigProfile

WHOLE_GPU: Final = "nvidia.com/gpu"
# what the time-slicing of NVIDIA's plugin calls whole GPUs that are shared
SHARED_GPU: Final = WHOLE_GPU + ".shared"

# apimachinery's IsQualifiedName: an optional DNS subdomain and a slash, then up to 63 letters, digits, - _ .
_QUALIFIED_NAME: Final = re.compile(
    r"(?:(?P<domain>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*)/)?"
    r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
)
# what a container can have without a domain, and `hugepages-<size>`
OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
# a domain has 253 characters at most, also with the `requests.` that quotas put before it
_LONGEST_DOMAIN: Final = 253 - len("requests.")


def is_whole_or_mig(resource: str) -> bool:
    """Whether fallback may choose it: a whole GPU or a MIG profile."""
    return resource == WHOLE_GPU or (
        resource.startswith(MIG_PREFIX) and MigProfile.of_resource(resource) is not None
    )


def is_any_gpu(resource: str) -> bool:
    """Whether it is a GPU or a part of one, shared ones too: what capacity counts."""
    return is_whole_or_mig(resource) or resource == SHARED_GPU


def is_extended(resource: str) -> bool:
    """Whether it is defined outside Kubernetes: those come in whole numbers, and limits equal requests."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def is_qualified_name(text: str) -> bool:
    """Whether it can name a resource or an annotation: `cpu`, `nvidia.com/gpu`."""
    match = _QUALIFIED_NAME.fullmatch(text)
    return match is not None and len(match["domain"] or "") <= _LONGEST_DOMAIN


def is_of_containers(resource: str) -> bool:
    """Whether the API server accepts it in a container's resources."""
    if not is_qualified_name(resource) or resource.startswith("requests."):
        return False
    return "/" in resource or resource in OF_CONTAINERS or resource.startswith("hugepages-")


def short(resource: str) -> str:
    """A resource as records and messages name it: `1g.10gb`, `gpu`."""
    profile = MigProfile.of_resource(resource)
    if profile is not None:
        return profile.label
    return "gpu" if resource == WHOLE_GPU else resource


def of_short(name: str) -> str:
    """The resource behind `gpu`, a profile or a resource's full name."""
    if name in ("gpu", WHOLE_GPU):
        return WHOLE_GPU
    return name if is_whole_or_mig(name) else MigProfile.parse(name).resource
