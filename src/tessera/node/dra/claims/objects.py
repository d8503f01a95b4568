"""ResourceClaims: what a claim was given of our devices."""

from dataclasses import dataclass

from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.node.dra.names import API_VERSION, DRIVER, UNHEALTHY
from tessera.protocol.kubelet.dra_messages import ClaimName
from tessera.protocol.kubernetes.dra import AllocationResult, decode_claim, decode_claims


class WrongClaim(TesseraError):
    """A claim that cannot be prepared as it is, however long one waits."""


class ReplacedClaim(WrongClaim):
    """A claim of that name that is another one: the one that is meant is gone."""


@dataclass(frozen=True, slots=True)
class Given:
    """One device that a claim was given."""

    request: str  # `gpu`, or `gpu/smaller` where an alternative was taken
    device: str
    admin: bool = False  # sees the device, and does not own it
    tolerates_illness: bool = False


async def given(client: Client, claim: ClaimName, pool: str) -> tuple[Given, ...]:
    """What the claim was given from our pool; none at all is fine: other drivers have claims too."""
    body = await client.get(
        path_of(API_VERSION, "resourceclaims", namespace=claim.namespace, name=claim.name)
    )
    try:
        found = decode_claim(body)
    except InvalidInput as error:
        raise InvalidInput(f"claim {claim} cannot be read: {error}") from error
    if found.metadata.uid != claim.uid:
        raise ReplacedClaim(f"claim {claim} was deleted and made anew; the pod's claim has uid {claim.uid}")
    if found.status.allocation is None:
        raise WrongClaim(f"claim {claim} is not allocated")
    ours = [result for result in found.status.results if result.driver == DRIVER]
    if strange := next((result for result in ours if result.pool != pool), None):
        raise WrongClaim(f"claim {claim} has devices of pool {strange.pool}; this node's pool is {pool}")
    return tuple(
        Given(result.request, result.device, bool(result.admin_access), _tolerates(result)) for result in ours
    )


async def allocated(client: Client, pool: str) -> dict[str, str]:
    """The devices of a pool that claims have, prepared or not, and the claims."""
    body = await client.get(path_of(API_VERSION, "resourceclaims"), {"resourceVersion": "0"})
    try:
        claims = decode_claims(body).items
    except InvalidInput as error:
        raise InvalidInput(f"the list of claims cannot be read: {error}") from error
    return {
        result.device: f"{claim.metadata.namespace}/{claim.metadata.name}"
        for claim in claims
        for result in claim.status.results
        if result.driver == DRIVER and result.pool == pool and not result.admin_access
    }


def _tolerates(result: AllocationResult) -> bool:
    return any(
        one.key in ("", UNHEALTHY) and one.effect in ("", "NoSchedule", "NoExecute")
        for one in result.tolerations or ()
    )
