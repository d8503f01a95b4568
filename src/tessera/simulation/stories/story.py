"""What a story is: nodes, pods, and how it must end. Data alone; `table` has them all, `playing` plays one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.simulation.control_plane.store import Document

Counts = Mapping[str, int]  # resource → how many


@dataclass(frozen=True, slots=True)
class Runs:
    """The pod runs. What is not said is not compared, but for the record, which is there or not."""

    on: str
    fallback: str = ""  # the record of the fallback; empty: as asked
    holds: Mapping[str, Counts] = field(default_factory=dict)  # container → devices, by resource
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # container → resource → amount
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waits:
    """The pod is admitted and Pending, for this reason of the scheduler's."""

    because: str
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod is not admitted, and the message has these words."""

    words: tuple[str, ...]


Ending = Runs | Waits | Refused


@dataclass(frozen=True, slots=True)
class Nodes:
    """The cluster has exactly these nodes, which offer this."""

    offers: Mapping[str, Counts]  # node (a name of `nodes.yaml`) → devices


@dataclass(frozen=True, slots=True)
class Annotate:
    """The operator annotates the namespace, until the story is over."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Submit:
    """A user creates a pod."""

    pod: Document
    ends: Ending


@dataclass(frozen=True, slots=True)
class SubmitMany:
    """A user creates pods that are all alike; so many run, and the others wait."""

    pods: tuple[Document, ...]
    fallback: str
    running: int
    because: str  # why the scheduler keeps the others waiting


@dataclass(frozen=True, slots=True)
class Delete:
    """A pod ends, and what that does to another one."""

    name: str
    then: tuple[str, Ending] | None = None


@dataclass(frozen=True, slots=True)
class Relayout:
    """The operator changes a node's layout (or a pod ends that kept one from changing), and what becomes of it."""

    node: str
    layout: str | None  # None: it stays as it was written before, and goes on
    state: str
    offers: Counts
    reason: str = ""  # words in the reason that the node gives


@dataclass(frozen=True, slots=True)
class Use:
    """What a node has of a resource, and what of that is taken."""

    allocatable: int
    allocated: int

    @property
    def available(self) -> int:
        """What is left."""
        return self.allocatable - self.allocated


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the cluster has, and how much of it is taken."""

    uses: Mapping[str, Mapping[str, Use]]  # node → resource


Step = Nodes | Annotate | Submit | SubmitMany | Delete | Relayout | Capacity


@dataclass(frozen=True, slots=True)
class Story:
    """Steps, one after the other, and what they are about."""

    name: str
    title: str
    text: str
    steps: tuple[Step, ...]
