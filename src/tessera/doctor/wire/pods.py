"""Pods: where and how they are."""

import msgspec

from tessera.doctor.wire.metadata import In, Meta


class Waiting(In):
    """Why a container does not run."""

    reason: str = ""
    message: str = ""


class Terminated(In):
    """How a container ended."""

    reason: str = ""
    exit_code: int = 0


class ContainerState(In):
    """What a container does."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(In):
    """A container as the kubelet sees it."""

    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)


class Condition(In):
    """A condition of a pod."""

    type: str = ""
    status: str = ""
    message: str = ""


class PodStatus(In):
    """A pod's status."""

    phase: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None

    def condition(self, kind: str) -> Condition:
        """A condition, empty where there is none."""
        return next((one for one in self.conditions or () if one.type == kind), Condition())


class PodPlace(In):
    """Where a pod is."""

    node_name: str = ""


class PodState(In):
    """A pod: where and how it is."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodPlace = msgspec.field(default_factory=PodPlace)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def ready(self) -> bool:
        """Whether it is to be sent requests."""
        return self.status.condition("Ready").status == "True"
