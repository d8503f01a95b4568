"""The few fields of pods, workloads and events that a diagnosis looks at, as they are on the wire."""

from datetime import datetime
from typing import Final

import msgspec

from tessera.protocol.kubernetes.objects import decoder


class In(msgspec.Struct, rename="camel"):
    """A part of an object; what is not named is skipped."""


class OwnerReference(In):
    """What an object belongs to."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(In):
    """Metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The controller that made it, if one did."""
        return next((one for one in self.owner_references or () if one.controller), None)


class Condition(In):
    """A condition of a pod or a workload."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class Waiting(In):
    """Why a container does not run."""

    reason: str = ""
    message: str = ""


class ContainerState(In):
    """What a container does."""

    waiting: Waiting | None = None


class ContainerStatus(In):
    """A container as the kubelet sees it."""

    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class Gate(In):
    """What keeps the scheduler from looking at a pod."""

    name: str = ""


class PodClaim(In):
    """A resource claim of a pod: named, or made for it from a template."""

    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(In):
    """What a pod's own spec says about when it may go where."""

    node_name: str = ""
    scheduling_gates: list[Gate] | None = None
    resource_claims: list[PodClaim] | None = None


class PodStatus(In):
    """A pod's status."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    start_time: str | None = None
    conditions: list[Condition] | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None

    def condition(self, kind: str) -> Condition:
        """A condition, empty where there is none."""
        return next((one for one in self.conditions or () if one.type == kind), Condition())

    @property
    def waiting(self) -> Waiting | None:
        """Why the first container that waits does so; that it is only being made is no reason."""
        every = (*(self.init_container_statuses or ()), *(self.container_statuses or ()))
        found = (one.state.waiting for one in every)
        return next(
            (one for one in found if one and one.reason not in ("PodInitializing", "ContainerCreating")), None
        )


class PodState(In):
    """A pod: where and how it is."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def claims(self) -> dict[str, str | None]:
        """The claims that it has, by the names that it gives them; None for one that was not made yet."""
        made = {one.name: one.resource_claim_name for one in self.status.resource_claim_statuses or ()}
        return {
            one.name: one.resource_claim_name or made.get(one.name) for one in self.spec.resource_claims or ()
        }


class WorkloadSpec(In):
    """How many pods a workload wants; a Job says it in another way."""

    replicas: int | None = None
    parallelism: int | None = None
    suspend: bool = False


class WorkloadStatus(In):
    """A workload's status."""

    desired_number_scheduled: int | None = None
    conditions: list[Condition] | None = None


class Workload(In):
    """A controller of pods; its template is read elsewhere."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)

    @property
    def ended(self) -> str:
        """How a Job has ended; empty while it has not."""
        found = (one.type for one in self.status.conditions or () if one.status == "True")
        return next((kind for kind in found if kind in ("Complete", "Failed")), "")

    @property
    def wanted(self) -> int:
        """How many pods it wants; a workload that does not say wants one."""
        for number in (self.status.desired_number_scheduled, self.spec.replicas, self.spec.parallelism):
            if number is not None:
                return number
        return 1


class ObjectReference(In):
    """What an event is about."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Series(In):
    """Of an event that came again."""

    last_observed_time: str | None = None


class Event(In):
    """Something that was told about an object."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None
    series: Series | None = None

    @property
    def last_seen(self) -> float:
        """When it was told last, as Unix time; 0 where it does not say."""
        again = self.series.last_observed_time if self.series else None
        return max(map(seconds, (again, self.last_timestamp, self.event_time)))


class ConfigMap(In):
    """A ConfigMap."""

    data: dict[str, str] | None = None


def seconds(text: str | None) -> float:
    """A time as the API server writes it, as Unix time; 0 where it says none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


decode_pod_state: Final = decoder(PodState)
decode_workload: Final = decoder(Workload)
decode_event: Final = decoder(Event)
decode_config_map: Final = decoder(ConfigMap)
