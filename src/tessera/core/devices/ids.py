"""Names of simulated GPUs and MIG devices that outlive a restart.

A UUID is a hash of what the device is: its node, its card, its place and its profile. The same layout therefore
has the same devices after a restart, and a card that stays as it is keeps its devices when another changes.
"""

import uuid
from typing import Final

from tessera.core.mig.placement import Instance

# any fixed value would do; it keeps these names apart from other hashes of the same texts
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "tessera-gpu")


def gpu_uuid(node: str, card: int) -> str:
    """`GPU-…`, for a card of a node."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{card}')}"


def mig_uuid(node: str, card: int, instance: Instance) -> str:
    """`MIG-…`, for a MIG device of a card of a node."""
    place = f"{instance.position}+{instance.size}"
    return f"MIG-{uuid.uuid5(_NAMESPACE, f'{node}/{card}/{place}/{instance.profile}')}"
