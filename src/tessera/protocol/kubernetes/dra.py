"""Dynamic resource allocation: DeviceClasses, ResourceSlices, ResourceClaims and their templates."""

import sys
from typing import Final

import msgspec

from tessera.core.dra.slices import LEAVING
from tessera.protocol.kubernetes.lean_pod import NodeSelectorIn
from tessera.protocol.kubernetes.metadata import Metadata
from tessera.protocol.kubernetes.objects import Part, decoder

# what kube-controller-manager writes on a claim that it made for a pod: the claim's name in that pod
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
EXACT_COUNT: Final = "ExactCount"  # the allocation mode of a request that names none


# Classes


class Cel(Part):
    """An expression."""

    expression: str = ""


class Selector(Part):
    """What a device must be like; of a kind that is newer than this release: nothing that is known."""

    cel: Cel = msgspec.field(default_factory=Cel)


class ClassSpec(Part):
    """A DeviceClass's spec."""

    selectors: list[Selector] | None = None
    extended_resource_name: str = ""


class DeviceClassIn(Part):
    """A DeviceClass."""

    metadata: Metadata
    spec: ClassSpec = msgspec.field(default_factory=ClassSpec)


# Slices


class AttributeIn(Part, rename={"number": "int", "flag": "bool", "text": "string"}):
    """An attribute of a device: of one of these types, or of a newer one."""

    number: int | None = None
    flag: bool | None = None
    text: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    def value(self) -> tuple[str, object]:
        """Its type and value; what is newer is of no type that is known here."""
        if self.text is not None:
            return "string", sys.intern(self.text)
        if self.number is not None:
            return "int", self.number
        if self.flag is not None:
            return "bool", self.flag
        if self.version is not None:
            return "version", self.version
        lists = (
            ("ints", self.ints),
            ("bools", self.bools),
            ("strings", self.strings),
            ("versions", self.versions),
        )
        return next((one for one in lists if one[1] is not None), ("other", None))


class CounterIn(Part):
    """A capacity of a device, or a counter."""

    value: str | int | float = 0


class CounterSet(Part):
    """Counters that devices of a pool share."""

    name: str = ""
    counters: dict[str, CounterIn] | None = None


class ConsumedCounters(Part):
    """What a device takes of a counter set."""

    counter_set: str = ""
    counters: dict[str, CounterIn] | None = None


class DeviceTaint(Part):
    """A taint of a device."""

    key: str = ""
    effect: str = ""


class DeviceIn(Part):
    """A device that is offered."""

    name: str = ""
    attributes: dict[str, AttributeIn] | None = None
    capacity: dict[str, CounterIn] | None = None
    consumes_counters: list[ConsumedCounters] | None = None
    taints: list[DeviceTaint] | None = None
    node_name: str | None = None
    node_selector: NodeSelectorIn | None = None
    all_nodes: bool | None = None
    allow_multiple_allocations: bool | None = None

    @property
    def leaving(self) -> bool:
        """Whether it is in use and no longer wanted."""
        return any(taint.key == LEAVING for taint in self.taints or ())


class Pool(Part):
    """What a slice belongs to."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Part):
    """A ResourceSlice's spec."""

    driver: str
    pool: Pool = msgspec.field(default_factory=Pool)
    node_name: str | None = None
    node_selector: NodeSelectorIn | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[DeviceIn] | None = None
    shared_counters: list[CounterSet] | None = None


class SliceIn(Part):
    """A ResourceSlice."""

    metadata: Metadata
    spec: SliceSpec


# Claims


class ExactRequest(Part):
    """Devices of one class."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[Selector] | None = None
    allocation_mode: str = EXACT_COUNT
    count: int = 1


class RequestIn(Part):
    """One request of a claim: exactly this, or the first of several that is available."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[ExactRequest] | None = None


class RequestedDevices(Part):
    """All requests of a claim."""

    requests: list[RequestIn] | None = None


class ClaimSpec(Part):
    """A ResourceClaim's spec."""

    devices: RequestedDevices = msgspec.field(default_factory=RequestedDevices)

    @property
    def has_alternatives(self) -> bool:
        """Whether one of its requests is "this, else that"."""
        return any(len(one.first_available or ()) > 1 for one in self.devices.requests or ())


class AllocatedToleration(Part):
    """A taint of a device that the claim puts up with."""

    key: str = ""
    effect: str = ""


class AllocationResult(Part):
    """One device that a claim was given."""

    request: str = ""  # `gpu`, or `gpu/smaller` where an alternative was taken
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None  # it sees the device, and holds nothing
    tolerations: list[AllocatedToleration] | None = None


class AllocatedDevices(Part):
    """All devices that a claim was given."""

    results: list[AllocationResult] | None = None


class Allocation(Part):
    """What a claim was given."""

    devices: AllocatedDevices | None = None


class Consumer(Part):
    """What a claim is reserved for."""

    resource: str = ""
    name: str = ""


class ClaimStatus(Part):
    """A ResourceClaim's status."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None

    @property
    def results(self) -> list[AllocationResult]:
        """What was given; nothing before the claim is allocated."""
        devices = self.allocation.devices if self.allocation else None
        return (devices.results if devices else None) or []


class ClaimIn(Part):
    """A ResourceClaim."""

    metadata: Metadata
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def pod_claim(self) -> str:
        """The claim's name in the pod that it was made for."""
        return (self.metadata.annotations or {}).get(POD_CLAIM_NAME, "")

    @property
    def pod_uid(self) -> str:
        """The pod that it was made for."""
        owner = self.metadata.controller
        return owner.uid if owner is not None and owner.kind == "Pod" else ""

    @property
    def results(self) -> tuple[str, ...]:
        """The requests that were served, with the alternative: `gpu-0/1g-10gb`; none before it is allocated."""
        return tuple(one.request for one in self.status.results)


class ClaimList(Part):
    """A list of ResourceClaims."""

    items: list[ClaimIn]


class ClaimTemplateSpec(Part):
    """A ResourceClaimTemplate's spec."""

    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)


class ClaimTemplateIn(Part):
    """A ResourceClaimTemplate."""

    metadata: Metadata
    spec: ClaimTemplateSpec = msgspec.field(default_factory=ClaimTemplateSpec)


decode_claim: Final = decoder(ClaimIn)
decode_claims: Final = decoder(ClaimList)
decode_slice: Final = decoder(SliceIn)
decode_class: Final = decoder(DeviceClassIn)
