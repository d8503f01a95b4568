"""ResourceClaimTemplates and ResourceClaims (`resource.k8s.io/v1`) as JSON: the template written, what became of a claim read."""

from typing import Any, Final

import msgspec

from tessera.core.admission.alternatives import Alternative, Alternatives, DeviceRequest, request_name
from tessera.protocol.kubernetes.objects import decoder

API_VERSION: Final = "resource.k8s.io/v1"
# what the controller in kube-controller-manager writes on a claim that it made for a pod: the claim's name in that pod
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"


def template_spec(alternatives: Alternatives) -> dict[str, Any]:
    """The `spec` of the template that stands for these alternatives."""
    requests = [_request(number, one) for number, one in enumerate(alternatives.requests)]
    return {"spec": {"devices": {"requests": requests}}}


def _request(number: int, request: DeviceRequest) -> dict[str, Any]:
    return {
        "name": request_name(number),
        "firstAvailable": [_alternative(one, request.count) for one in request.alternatives],
    }


def _alternative(one: Alternative, count: int) -> dict[str, Any]:
    # all that the API server would fill in is written out: what is read again can be compared
    document: dict[str, Any] = {
        "name": one.name,
        "deviceClassName": one.device_class,
        "allocationMode": "ExactCount",
        "count": count,
    }
    if one.expression:
        document["selectors"] = [{"cel": {"expression": one.expression}}]
    return document


class _OwnerIn(msgspec.Struct, gc=False):
    kind: str = ""
    uid: str = ""
    controller: bool | None = None


class _ClaimMetaIn(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None
    ownerReferences: list[_OwnerIn] | None = None  # noqa: N815 # as in the API


class _ResultIn(msgspec.Struct, gc=False):
    request: str = ""


class _DevicesIn(msgspec.Struct, gc=False):
    results: list[_ResultIn] | None = None


class _AllocationIn(msgspec.Struct, gc=False):
    devices: _DevicesIn | None = None


class _StatusIn(msgspec.Struct, gc=False):
    allocation: _AllocationIn | None = None


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
        allocation = self.status.allocation if self.status else None
        devices = allocation.devices if allocation else None
        return tuple(one.request for one in (devices.results if devices else None) or ())


decode_claim: Final = decoder(ClaimIn)
