"""What a rollout reads of a node, and what it does to it: values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tessera.core.devices.capacity import PodUse
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig.nodes import GpuNode, gpu_node
from tessera.protocol.mig.rollouts import (
    RESULT,
    Result,
    RolloutEnd,
    RolloutRecord,
    read_end,
    record_of,
)
from tessera.rollout.in_use import Going, Holder, claim_holders, holders
from tessera.rollout.progress import offered_by


@dataclass(frozen=True)
class NodeSnapshot:
    """A node at one moment."""

    node: NodeIn
    uses: Sequence[PodUse] = ()  # what its pods hold of GPUs
    refused: str = ""  # why the API server lately evicted none of them
    sliced: Mapping[str, int] = field(
        default_factory=dict
    )  # what DRA offers on it, where no device plugin does
    claimed: Mapping[str, str] = field(
        default_factory=dict
    )  # of these: the devices that claims hold, and who
    # whether it was read so long after its cordon that pods are there which the scheduler had placed before
    settled: bool = False
    worked: bool = False  # mig-manager was seen at work at the new layout, though it may have ended since

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @cached_property
    def gpus(self) -> GpuNode:
        return gpu_node(self.node)

    @cached_property
    def offered(self) -> Mapping[str, int]:
        return offered_by(self.node) or self.sliced

    @property
    def cordoned(self) -> bool:
        return bool(self.node.spec.unschedulable)

    @property
    def ready(self) -> bool:
        return self.node.status.ready

    @property
    def record(self) -> RolloutRecord | None:
        """The rollout that is under way; `InvalidInput` where the annotation cannot be read."""
        return record_of(self.node.metadata.annotations)

    def holding(self, going: Going) -> list[Holder]:
        """The pods that may hold devices which go, and the claims."""
        return [*holders(self.uses, going, self.gpus), *claim_holders(self.claimed, going)]

    @property
    def end(self) -> RolloutEnd | None:
        """How the last rollout ended, where it did not end well."""
        text = (self.node.metadata.annotations or {}).get(RESULT)
        return None if text is None else read_end(text)


@dataclass(frozen=True, slots=True)
class How:
    """How a node is changed; times in seconds."""

    cordons: bool = True  # the node is cordoned meanwhile
    waits: bool = True  # for pods that hold devices which go; who reads an annotation waits by itself
    drain: bool = False
    drain_timeout: float = 1800.0  # for pods to let go
    timeout: float = 600.0  # for the node to show its layout
    auto: bool = False  # the autopilot decided it: no pod is waited for


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a node's rollout ended."""

    result: Result
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """One write to the node."""

    body: dict[str, Any]
    told: str = ""
    cuts: bool = False  # the node gets its new layout by it
    outcome: Outcome | None = None  # where the rollout ends with it


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict these pods, by namespace/name."""

    pods: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class NotUnderWay:
    """The node has no rollout."""


NextStep = Patch | Evict | Wait
Step = NextStep | NotUnderWay
