"""ResourceClaims: which devices a claim holds, and for whom."""

from typing import NamedTuple

from tessera.core.dra.slices import PoolId
from tessera.protocol.kubernetes.dra import decode_claim


class Claim(NamedTuple):
    """A claim, and the devices that it keeps others from: by pool and name."""

    namespace: str
    name: str
    holds: tuple[tuple[PoolId, str], ...] = ()
    pods: tuple[str, ...] = ()  # by name, of its namespace: those that it is reserved for

    @property
    def holder(self) -> str:
        """Who has its devices, as the dashboard names it: the pod, the first of several, or the claim alone."""
        return f"{self.namespace}/{self.pods[0]}" if self.pods else f"claim {self.namespace}/{self.name}"


def read_claim(raw: bytes) -> Claim:
    """A ResourceClaim."""
    one = decode_claim(raw)
    return Claim(
        one.metadata.namespace,
        one.metadata.name,
        tuple(
            (PoolId(each.driver, each.pool), each.device)
            for each in one.status.results
            if not each.admin_access
        ),
        tuple(each.name for each in one.status.reserved_for or () if each.resource == "pods"),
    )
