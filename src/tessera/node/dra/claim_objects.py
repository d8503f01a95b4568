"""ResourceClaims: what a claim was given of our devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.core.devices.device import Device
from tessera.core.dra.slices import API_VERSION, DRIVER
from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.rest.client import Client, path_of
from tessera.node.cdi import cdi_names
from tessera.node.dra.prepared_claims import HeldDevice, PreparedClaim
from tessera.node.dra.slice_documents import UNHEALTHY
from tessera.protocol.kubelet.dra_messages import ClaimName
from tessera.protocol.kubernetes.dra import AllocationResult, decode_claim, decode_claims


class WrongClaim(TesseraError):
    """A claim that cannot be prepared as it is, however long one waits."""


class ReplacedClaim(WrongClaim):
    """A claim of that name that is another one: the one that is meant is gone."""


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """One device that a claim was given."""

    request: str  # `gpu`, or `gpu/smaller` where an alternative was taken
    device: str
    admin: bool = False  # sees the device, and does not own it
    tolerates_unhealthy: bool = False


async def given(client: Client, claim: ClaimName, pool: str) -> tuple[GivenDevice, ...]:
    """What the claim was given from our pool; none at all is fine: other drivers have claims too."""
    body = await client.get(
        path_of(API_VERSION, "resourceclaims", namespace=claim.namespace, name=claim.name)
    )
    try:
        found = decode_claim(body)
    except InvalidInput as error:
        raise InvalidInput(f"claim {claim} cannot be read: {error}") from error
    if found.metadata.uid != claim.uid:
        raise ReplacedClaim(
            f"claim {claim} was deleted and created again; the pod's claim has uid {claim.uid}"
        )
    if found.status.allocation is None:
        raise WrongClaim(f"claim {claim} is not allocated")
    ours = [result for result in found.status.results if result.driver == DRIVER]
    if strange := next((result for result in ours if result.pool != pool), None):
        raise WrongClaim(f"claim {claim} has devices of pool {strange.pool}; this node's pool is {pool}")
    return tuple(map(_given, ours))


async def claims_with(client: Client, pool: str) -> dict[ClaimName, tuple[GivenDevice, ...]]:
    """The claims that have devices of a pool, prepared or not, and which."""
    body = await client.get(path_of(API_VERSION, "resourceclaims"), {"resourceVersion": "0"})
    try:
        claims = decode_claims(body).items
    except InvalidInput as error:
        raise InvalidInput(f"the list of claims cannot be read: {error}") from error
    found = {}
    for claim in claims:
        ours = [one for one in claim.status.results if one.driver == DRIVER and one.pool == pool]
        if ours:
            meta = claim.metadata
            found[ClaimName(meta.namespace, meta.name, meta.uid)] = tuple(map(_given, ours))
    return found


def owners(claims: Mapping[ClaimName, Sequence[GivenDevice]]) -> dict[str, str]:
    """Which claim has a device, by the device's name; admin access does not own it."""
    return {one.device: str(claim) for claim, given in claims.items() for one in given if not one.admin}


def _given(result: AllocationResult) -> GivenDevice:
    tolerates_unhealthy = any(
        one.key in ("", UNHEALTHY) and one.effect in ("", "NoSchedule", "NoExecute")
        for one in result.tolerations or ()
    )
    return GivenDevice(result.request, result.device, bool(result.admin_access), tolerates_unhealthy)


def held_by(one: GivenDevice, device: Device, claim: ClaimName) -> HeldDevice:
    """What a claim has with a device that it was given."""
    names = cdi_names(claim.uid, one.device, device)
    return HeldDevice.of(device, one.device, one.request, names, admin=one.admin)


def obstacle_to(
    given: Sequence[GivenDevice], devices: Mapping[str, Device], known: PreparedClaim | None
) -> str:
    """Why these devices cannot be handed out now."""
    before = {one.device for one in known.devices} if known else set()
    for one in given:
        device = devices.get(one.device)
        if device is None:
            return f"{one.device} is not on this node now ({len(devices)} devices in all)"
        if device.problem and not (
            device.leaving or one.admin or one.tolerates_unhealthy or one.device in before
        ):
            return f"{one.device} is unhealthy: {device.problem}"
    return ""
