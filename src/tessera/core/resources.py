"""Names of resources: which are GPUs or MIG profiles, and how records and messages name them.

Kubernetes' values and MIG's both go by them.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from tessera.core.errors import InvalidInput
from tessera.core.text import quoted

WHOLE_GPU: Final = "nvidia.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"

# digits are bounded: no card has a thousand slices or a million gigabytes
_PROFILE: Final = re.compile(
    r"(?P<compute>[1-9]\d{0,2})g\.(?P<memory>[1-9]\d{0,5})gb(?P<extras>(?:[+.-][a-z][a-z0-9.]{0,15})?)",
    re.ASCII,
)
_LONGEST_PROFILE: Final = 31  # characters that this can match; longer ones are not even remembered
_SHARE: Final = ("+shared", ".shared", "-shared")


class ProfileName(NamedTuple):
    compute: int
    memory_gb: int
    extras: str  # "+me", "+me.all", "-me"; empty for a plain slice


def profile_name(text: str) -> ProfileName | None:
    """The parts of `1g.10gb`, `1g.10gb+me` or, as resource names have it, `1g.10gb.me`; None for what is no profile, as a share is none."""
    return _parse(text) if len(text) <= _LONGEST_PROFILE else None


def is_profile(resource: str) -> bool:
    """Whether a resource is a MIG profile: `nvidia.com/mig-1g.10gb`; a `+` may stand in no resource's name."""
    return (
        resource.startswith(MIG_PREFIX)
        and "+" not in resource
        and profile_name(resource[len(MIG_PREFIX) :]) is not None
    )


@lru_cache(maxsize=1024)
def _parse(text: str) -> ProfileName | None:
    match = _PROFILE.fullmatch(text)
    if match is None or match["extras"].endswith(_SHARE):
        return None
    extras = match["extras"]
    extras = "+" + extras[1:] if extras.startswith(".") else extras
    return ProfileName(int(match["compute"]), int(match["memory"]), extras)


PODS: Final = "pods"  # a node's places for pods; every pod takes one, and none says so
SHARED: Final = ".shared"  # what NVIDIA's plugin puts behind the name of what it shares (time slicing, MPS)
_DOMAIN: Final = "nvidia.com/"
_LONGEST: Final = len(MIG_PREFIX) + _LONGEST_PROFILE + len(SHARED)  # characters of a name that can be a GPU's

# apimachinery's IsQualifiedName: an optional DNS subdomain and a slash, then up to 63 letters, digits, - _ .
_QUALIFIED_NAME: Final = re.compile(
    r"(?:(?P<domain>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*)/)?"
    r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
)
# what a container can have without a domain, and `hugepages-<size>`
OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")


def is_whole_or_mig(resource: str) -> bool:
    """Whether fallback may choose it: a whole GPU or a MIG profile."""
    return resource == WHOLE_GPU or is_profile(resource)


def is_share(resource: str) -> bool:
    """Whether it is a share of a GPU or of a MIG device, which several containers use in turns: no profile."""
    base = resource.removesuffix(SHARED)
    return base != resource and is_whole_or_mig(base)


def is_any_gpu(resource: str) -> bool:
    """Whether it is a GPU or a part of one, shared ones too: what capacity counts."""
    return resource.startswith(_DOMAIN) and len(resource) <= _LONGEST and _is_any_gpu(resource)


@lru_cache(maxsize=1024)  # every amount of every pod is asked about
def _is_any_gpu(resource: str) -> bool:
    return is_whole_or_mig(resource) or is_share(resource)


def is_extended(resource: str) -> bool:
    """Whether it is defined outside Kubernetes: those come in whole numbers, and limits equal requests."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def is_qualified_name(text: str) -> bool:
    """Whether it can name a resource or an annotation: `cpu`, `nvidia.com/gpu`."""
    match = _QUALIFIED_NAME.fullmatch(text)
    return match is not None and len(match["domain"] or "") <= 253  # as DNS has it


def is_of_containers(resource: str) -> bool:
    """Whether the API server accepts it in a container's resources."""
    if "/" in resource:  # a quota puts `requests.` before it, and that must be a name too
        return is_qualified_name("requests." + resource) and not resource.startswith("requests.")
    return resource in OF_CONTAINERS or (resource.startswith("hugepages-") and is_qualified_name(resource))


@lru_cache(maxsize=512)  # the few resources that nodes offer, said again with every decision
def short(resource: str) -> str:
    """A resource as records and messages name it: `1g.10gb`, `gpu`, `1g.10gb.shared`."""
    if not is_any_gpu(resource):
        return resource
    return resource.removeprefix(MIG_PREFIX).removeprefix(_DOMAIN)


def of_short(name: str) -> str:
    """The resource behind `gpu`, a profile, a share of either, or a resource's full name."""
    for resource in (name, _DOMAIN + name, MIG_PREFIX + name):
        if is_any_gpu(resource):
            return resource
    if profile_name(name) is None:
        raise InvalidInput(f"{quoted(name)} is not a MIG profile such as 1g.10gb or 1g.10gb+me")
    return MIG_PREFIX + name.replace("+", ".")
