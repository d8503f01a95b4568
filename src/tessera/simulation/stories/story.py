"""What a story is: nodes, pods, and how it must end. Only data; `table` has the stories, `playing` plays one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.core.devices.capacity import Usages
from tessera.simulation.control_plane.store import Document

Counts = Mapping[str, int]  # resource → how many


@dataclass(frozen=True, slots=True)
class Runs:
    """The pod runs. What is left out is not compared, except for the record: without one, the pod must have none."""

    on: str
    fallback: str = ""  # the record of the fallback; empty: as asked
    holds: Mapping[str, Counts] = field(default_factory=dict)  # container → devices, by resource
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # container → resource → amount
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waits:
    """The pod is admitted and Pending, and the scheduler gives this reason."""

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
    """A user creates pods that are all alike, one after the other."""

    submits: tuple[Submit, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """A pod ends, and what that does to another one."""

    name: str
    then: tuple[str, Ending] | None = None


@dataclass(frozen=True, slots=True)
class Relayout:
    """The operator changes a node's layout (or a pod ends that kept one from changing), and what becomes of it."""

    node: str
    layout: str | None  # None: the operator changes nothing, and the layout that was pending goes on
    state: str
    offers: Counts
    reason: str = ""  # words in the reason that the node gives


@dataclass(frozen=True, slots=True)
class Measure:
    """What the nodes have, and how much of it is taken."""

    uses: Mapping[str, Usages]


Step = Nodes | Annotate | Submit | SubmitMany | Delete | Relayout | Measure


@dataclass(frozen=True, slots=True)
class Story:
    """Steps, one after the other, and what they are about."""

    name: str
    title: str
    text: str
    steps: tuple[Step, ...]
