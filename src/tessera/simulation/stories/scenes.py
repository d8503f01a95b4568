"""What came of a story's steps, and what of that is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.core.devices.capacity import Usages
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.core.requests.record import RECORD_ANNOTATION
from tessera.protocol.mig.miglayout import HistoryRow, RecutRow
from tessera.protocol.mig.nodes import GpuNode
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.pods import Counts, annotations_of, why_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What came of a step."""

    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesCame(Scene):
    """Nodes are there."""

    offers: Mapping[str, Counts]


@dataclass(frozen=True, slots=True)
class NamespaceAnnotated(Scene):
    """A namespace has an annotation."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class PodEnded(Scene):
    """What became of a pod."""

    asked: Document  # the pod as it was written
    pod: Document | None = None  # as it is; None: refused
    refusal: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    seen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    claimed: Mapping[str, Counts] = field(default_factory=dict)  # what its claim got: container → devices

    @property
    def record(self) -> str:
        return str(annotations_of(self.pod).get(RECORD_ANNOTATION, ""))

    @property
    def is_claim(self) -> bool:
        """Whether its request became a claim."""
        return ALTERNATIVES_ANNOTATION in annotations_of(self.pod)

    @property
    def node(self) -> str:
        return str(self.pod["spec"].get("nodeName", "")) if self.pod else ""

    @property
    def phase(self) -> str:
        return str(self.pod["status"].get("phase", "")) if self.pod else ""

    @property
    def waiting(self) -> str:
        return why_waiting(self.pod)


@dataclass(frozen=True, slots=True)
class ManyEnded(Scene):
    """What became of many pods that are all alike."""

    ended: tuple[PodEnded, ...]


@dataclass(frozen=True, slots=True)
class PodDeleted(Scene):
    """A pod is gone, and what became of another."""

    name: str
    then: PodEnded | None = None


@dataclass(frozen=True, slots=True)
class LayoutChanged(Scene):
    """What became of a layout."""

    node: str
    asked: str | None
    before: Counts
    after: Counts
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecutsPlanned(Scene):
    """What an autopilot would do, and why. Nothing is changed."""

    layout: Document  # the MigLayout as it was written
    summary: str
    recuts: tuple[RecutRow, ...]


@dataclass(frozen=True, slots=True)
class RecutsDone(Scene):
    """What an autopilot did, and what became of pods that waited."""

    name: str
    done: tuple[HistoryRow, ...]
    before: Counts
    after: Counts
    then: tuple[PodEnded, ...]


@dataclass(frozen=True, slots=True)
class Measured(Scene):
    """What there is and what is taken."""

    uses: Mapping[str, Usages]
    gpus: Mapping[str, GpuNode]
    held: frozenset[str]  # the ids of devices that pods hold
