"""ResourceClaims as JSON: which devices a claim holds."""

from typing import Final, NamedTuple

import msgspec

from tessera.core.dra.slices import PoolId
from tessera.protocol.kubernetes.objects import decoder


class Claim(NamedTuple):
    """A claim, and the devices that it keeps others from: by pool and name."""

    namespace: str
    name: str
    holds: tuple[tuple[PoolId, str], ...] = ()


class _ResultIn(msgspec.Struct, gc=False):
    driver: str = ""
    pool: str = ""
    device: str = ""
    adminAccess: bool | None = None  # noqa: N815 # as in the API: it sees the device, and holds nothing


class _DevicesIn(msgspec.Struct, gc=False):
    results: list[_ResultIn] | None = None


class _AllocationIn(msgspec.Struct, gc=False):
    devices: _DevicesIn | None = None


class _StatusIn(msgspec.Struct, gc=False):
    allocation: _AllocationIn | None = None


class _MetaIn(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""


class _ClaimIn(msgspec.Struct, gc=False):
    metadata: _MetaIn
    status: _StatusIn | None = None


_decode: Final = decoder(_ClaimIn)


def read_claim(raw: bytes) -> Claim:
    """A ResourceClaim."""
    one = _decode(raw)
    allocation = one.status.allocation if one.status else None
    results = (allocation.devices.results if allocation and allocation.devices else None) or ()
    return Claim(
        one.metadata.namespace,
        one.metadata.name,
        tuple((PoolId(each.driver, each.pool), each.device) for each in results if not each.adminAccess),
    )
