"""How GPUs are called: a whole one, and the profiles of MIG. What Kubernetes' values and MIG's both go by."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

WHOLE_GPU: Final = "nvidia.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"

# digits are bounded: no card has a thousand slices or a million gigabytes
_PROFILE: Final = re.compile(
    r"(?P<compute>[1-9]\d{0,2})g\.(?P<memory>[1-9]\d{0,5})gb(?P<extras>(?:[+.-][a-z][a-z0-9.]{0,15})?)",
    re.ASCII,
)
_LONGEST: Final = 31  # characters that this can match; longer ones are not even remembered
_SHARE: Final = ("+shared", ".shared", "-shared")


class ProfileName(NamedTuple):
    compute: int
    memory_gb: int
    extras: str  # "+me", "+me.all", "-me"; empty for a plain slice


def profile_name(text: str) -> ProfileName | None:
    """The parts of `1g.10gb`, `1g.10gb+me` or, as resource names have it, `1g.10gb.me`; None for what is no profile, as a share is none."""
    return _parse(text) if len(text) <= _LONGEST else None


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
