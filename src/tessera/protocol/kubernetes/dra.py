"""Dynamic resource allocation: DeviceClasses, ResourceSlices, ResourceClaims and their templates."""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from tessera.core.dra.slices import LEAVING
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import Taint, Toleration
from tessera.protocol.kubernetes.lean_pod import NodeSelectorIn
from tessera.protocol.kubernetes.objects import Expression, Metadata, Part, decoded_once, decoder

# what kube-controller-manager writes on a claim that it made for a pod: the claim's name in that pod
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
EXACT_COUNT: Final = "ExactCount"  # the allocation mode of a request that names none


# Classes


class Selector(Part):
    """What a device must be like; of a kind that is newer than this release: nothing that is known."""

    cel: Expression = msgspec.field(default_factory=Expression)


class ClassSpec(Part):
    selectors: list[Selector] | None = None
    extended_resource_name: str = ""


class DeviceClassIn(Part):
    metadata: Metadata
    spec: ClassSpec = msgspec.field(default_factory=ClassSpec)


# Slices


class AttributeIn(Part, rename={"text": "string", "number": "int", "flag": "bool"}):
    """An attribute of a device: of one of these types, or of a newer one."""

    text: str | None = None
    number: int | None = None
    flag: bool | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None

    def value(self) -> tuple[str, object]:
        """Its type and value; what is newer is of no type that is known here."""
        for field, type_ in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            if (found := getattr(self, field)) is not None:
                return type_, sys.intern(found) if field == "text" else found
        return "other", None


class CounterIn(Part):
    value: str | int | float = 0

    def __post_init__(self) -> None:
        Quantity.parse(self.value)  # what is none is an error of the field


class CounterSet(Part):
    name: str = ""
    counters: dict[str, CounterIn] | None = None


class ConsumedCounters(Part):
    counter_set: str = ""
    counters: dict[str, CounterIn] | None = None


class DeviceIn(Part):
    name: str = ""
    attributes: dict[str, AttributeIn] | None = None
    capacity: dict[str, CounterIn] | None = None
    consumes_counters: list[ConsumedCounters] | None = None
    taints: list[Taint] | None = None
    node_name: str | None = None
    node_selector: NodeSelectorIn | None = None
    all_nodes: bool | None = None
    allow_multiple_allocations: bool | None = None

    @property
    def leaving(self) -> bool:
        return any(taint.key == LEAVING for taint in self.taints or ())


class Pool(Part):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Part):
    driver: str
    pool: Pool = msgspec.field(default_factory=Pool)
    node_name: str | None = None
    node_selector: NodeSelectorIn | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[DeviceIn] | None = None
    shared_counters: list[CounterSet] | None = None


class SliceIn(Part):
    metadata: Metadata
    spec: SliceSpec


def count_resources(slices: Iterable[SliceIn]) -> Counter[str]:
    """The devices of Tessera's driver in slices, by what the device plugin would call them; without those that leave."""
    return Counter(
        attribute.text
        for resource_slice in slices
        for device in resource_slice.spec.devices or ()
        if not device.leaving and (attribute := (device.attributes or {}).get("resource")) and attribute.text
    )


# Claims


class ExactRequest(Part):
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
    requests: list[RequestIn] | None = None


class ClaimSpec(Part):
    devices: RequestedDevices = msgspec.field(default_factory=RequestedDevices)

    @property
    def has_alternatives(self) -> bool:
        """Whether one of its requests is "this, else that"."""
        return any(len(one.first_available or ()) > 1 for one in self.devices.requests or ())

    @property
    def classes(self) -> set[str]:
        """The DeviceClasses that its requests name."""
        requests = self.devices.requests or ()
        every = (each for one in requests for each in (one.exactly, *(one.first_available or ())) if each)
        return {one.device_class_name for one in every}


class AllocationResult(Part):
    request: str = ""  # `gpu`, or `gpu/smaller` where an alternative was taken
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None  # it sees the device, and holds nothing
    tolerations: list[Toleration] | None = None


class AllocatedDevices(Part):
    results: list[AllocationResult] | None = None


class Allocation(Part):
    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)


class Consumer(Part):
    resource: str = ""
    name: str = ""


class ClaimStatus(Part):
    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None

    @property
    def results(self) -> list[AllocationResult]:
        return (self.allocation and self.allocation.devices.results) or []


class ClaimIn(Part):
    metadata: Metadata
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def pod_claim(self) -> str:
        return (self.metadata.annotations or {}).get(POD_CLAIM_NAME, "")

    @property
    def pod_uid(self) -> str:
        owner = self.metadata.controller
        return owner.uid if owner is not None and owner.kind == "Pod" else ""

    @property
    def results(self) -> tuple[str, ...]:
        """The requests that were served, with the alternative: `gpu-0/1g-10gb`; none before it is allocated."""
        return tuple(
            sys.intern(one.request) for one in self.status.results
        )  # thousands of claims have the same


class ClaimList(Part):
    items: list[ClaimIn]


class ClaimTemplateSpec(Part):
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)


class ClaimTemplateIn(Part):
    metadata: Metadata
    spec: ClaimTemplateSpec = msgspec.field(default_factory=ClaimTemplateSpec)


decode_claim: Final = decoded_once(decoder(ClaimIn))
decode_claims: Final = decoder(ClaimList)
decode_slice: Final = decoded_once(decoder(SliceIn))
decode_class: Final = decoder(DeviceClassIn)
