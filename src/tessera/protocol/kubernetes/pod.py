"""Pods as the API server stores them: everything that some reader needs, decoded once.

`lean_pod` has the part of it that decisions read; `lean_pod.pod_of` reads this one too.
"""

from typing import Final

import msgspec

from tessera.protocol.kubernetes.lean_pod import MANAGED_LABEL, QUEUE_LABEL, LeanSpec
from tessera.protocol.kubernetes.metadata import (
    Condition,
    OwnerReference,
    Texts,
    controller_in,
    seconds,
)
from tessera.protocol.kubernetes.objects import ABSENT, AmountsIn, Part, ResourcesIn, decoder, reader


class PodMetadata(Part):
    """A pod's metadata; its annotations unread."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Texts = None
    annotations: msgspec.Raw = ABSENT
    owner_references: list[OwnerReference] | None = None

    @property
    def queued(self) -> bool:
        """Whether Kueue manages the pod itself."""
        return self.labels is not None and (QUEUE_LABEL in self.labels or MANAGED_LABEL in self.labels)

    @property
    def created(self) -> float | None:
        """When it was created, as Unix time."""
        return seconds(self.creation_timestamp)

    @property
    def controller(self) -> OwnerReference | None:
        """The controller that made it, if one did."""
        return controller_in(self.owner_references)


class SchedulingGate(Part):
    """What keeps the scheduler from looking at a pod."""

    name: str = ""


class PodClaim(Part):
    """A resource claim of a pod: named, or made for it from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(LeanSpec):
    """A pod's spec."""

    node_name: str = ""
    scheduling_gates: list[SchedulingGate] | None = None


class Waiting(Part):
    """Why a container does not run."""

    reason: str = ""
    message: str = ""


class Terminated(Part):
    """How a container ended."""

    reason: str = ""
    exit_code: int = 0


class ContainerState(Part):
    """What a container does."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class AllocatedDevice(Part):
    """A device that the kubelet gave to a container."""

    id: str = msgspec.field(default="", name="resourceID")


class AllocatedResource(Part):
    """The devices of one resource that the kubelet gave to a container."""

    name: str = ""
    resources: list[AllocatedDevice] | None = None


class ActualResources(Part):
    """What the kubelet says of the resources of a container, or of the pod as a whole."""

    name: str = ""
    resources: ResourcesIn | None = None
    allocated_resources: AmountsIn = None


class ContainerStatus(ActualResources):
    """A container as the kubelet sees it."""

    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)
    allocated_resources_status: list[AllocatedResource] | None = None


_NO_CONDITION: Final = Condition()


class PodStatus(ActualResources):
    """A pod's status."""

    phase: str = ""
    conditions: list[Condition] | None = None
    message: str = ""
    reason: str = ""
    start_time: str | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaim] | None = None

    def condition(self, kind: str) -> Condition:
        """A condition, empty where there is none."""
        for one in self.conditions or ():
            if one.type == kind:
                return one
        return _NO_CONDITION

    @property
    def waiting(self) -> Waiting | None:
        """Why the first container that waits does so; that it is only being made is no reason."""
        every = (*(self.init_container_statuses or ()), *(self.container_statuses or ()))
        found = (one.state.waiting for one in every)
        return next(
            (one for one in found if one and one.reason not in ("PodInitializing", "ContainerCreating")), None
        )


class PodIn(Part):
    """A pod."""

    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def ready(self) -> bool:
        """Whether it is to be sent requests."""
        return self.status.condition("Ready").status == "True"

    @property
    def claims(self) -> dict[str, str | None]:
        """The claims that it has, by the names that it gives them; None for one that was not made yet."""
        made = {one.name: one.resource_claim_name for one in self.status.resource_claim_statuses or ()}
        return {one.name: one.resource_claim_name or made.get(one.name) for one in self._claims()}

    @property
    def claim_templates(self) -> dict[str, str]:
        """The templates of its claims, by the names that it gives the claims; empty for a claim without one."""
        return {one.name: one.resource_claim_template_name or "" for one in self._claims()}

    def _claims(self) -> list[PodClaim]:
        return _claims_of(self.spec.resource_claims, "spec.resourceClaims")


_claims_of: Final = reader(list[PodClaim], [])
decode_pod: Final = decoder(PodIn)
