"""ResourceClaims as JSON: which devices a claim holds, whose it is, and which of its requests were served."""

from typing import Final, NamedTuple

import msgspec

from tessera.core.dra.slices import PoolId
from tessera.protocol.kubernetes.objects import decoder


class Claim(NamedTuple):
    """A claim, and the devices that it keeps others from: by pool and name."""

    namespace: str
    name: str
    holds: tuple[tuple[PoolId, str], ...] = ()
    pods: tuple[str, ...] = ()  # by name, of its namespace: those that it is reserved for

    @property
    def holder(self) -> str:
        """Who has its devices, as the page names it: the pod, the first of several, or the claim alone."""
        return f"{self.namespace}/{self.pods[0]}" if self.pods else f"claim {self.namespace}/{self.name}"


class _ResultIn(msgspec.Struct, gc=False):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    adminAccess: bool | None = None  # noqa: N815 # as in the API: it sees the device, and holds nothing


class _DevicesIn(msgspec.Struct, gc=False):
    results: list[_ResultIn] | None = None


class _AllocationIn(msgspec.Struct, gc=False):
    devices: _DevicesIn | None = None


class _ConsumerIn(msgspec.Struct, gc=False):
    resource: str = ""
    name: str = ""


class _StatusIn(msgspec.Struct, gc=False):
    allocation: _AllocationIn | None = None
    reservedFor: list[_ConsumerIn] | None = None  # noqa: N815 # as in the API

    @property
    def results(self) -> list[_ResultIn]:
        """What was given; nothing before it is allocated."""
        devices = self.allocation.devices if self.allocation else None
        return (devices.results if devices else None) or []


_UNALLOCATED: Final = _StatusIn()


class _MetaIn(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""


class _ClaimIn(msgspec.Struct, gc=False):
    metadata: _MetaIn
    status: _StatusIn | None = None


# what the controller in kube-controller-manager writes on a claim that it made for a pod: the claim's name in that pod
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"


class _OwnerIn(msgspec.Struct, gc=False):
    kind: str = ""
    uid: str = ""
    controller: bool | None = None


class _ClaimMetaIn(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None
    ownerReferences: list[_OwnerIn] | None = None  # noqa: N815 # as in the API


class ClaimIn(msgspec.Struct, gc=False):
    """A ResourceClaim: whose it is, and which of its requests were served."""

    metadata: _ClaimMetaIn
    status: _StatusIn | None = None

    @property
    def pod_claim(self) -> str:
        """The claim's name in the pod that it was made for."""
        return (self.metadata.annotations or {}).get(POD_CLAIM_NAME, "")

    @property
    def pod_uid(self) -> str:
        """The pod that it was made for."""
        owners = self.metadata.ownerReferences or ()
        return next((one.uid for one in owners if one.kind == "Pod" and one.controller), "")

    @property
    def results(self) -> tuple[str, ...]:
        """The requests that were served, with the alternative: `gpu-0/1g-10gb`; none before it is allocated."""
        return tuple(one.request for one in (self.status or _UNALLOCATED).results)


decode_claim: Final = decoder(ClaimIn)
_decode: Final = decoder(_ClaimIn)


def read_claim(raw: bytes) -> Claim:
    """A ResourceClaim."""
    one = _decode(raw)
    status = one.status or _UNALLOCATED
    return Claim(
        one.metadata.namespace,
        one.metadata.name,
        tuple(
            (PoolId(each.driver, each.pool), each.device) for each in status.results if not each.adminAccess
        ),
        tuple(each.name for each in status.reservedFor or () if each.resource == "pods"),
    )
