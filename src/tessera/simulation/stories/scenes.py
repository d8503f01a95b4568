"""What came of a story's steps, and what pods say about themselves."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, parse, request_name
from tessera.core.requests.record import RECORD_ANNOTATION
from tessera.protocol.kubelet.dra_messages import main_request
from tessera.simulation.control_plane.store import Document
from tessera.simulation.stories.story import Counts, Use


@dataclass(frozen=True, slots=True)
class NodesCame:
    """Nodes are there."""

    offers: Mapping[str, Counts]
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamespaceAnnotated:
    """A namespace has an annotation."""

    namespace: str
    key: str
    value: str
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodEnded:
    """What became of a pod."""

    asked: Document  # the pod as it was written
    pod: Document | None = None  # as it is; None: refused
    refusal: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    seen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    claimed: Mapping[str, Counts] = field(default_factory=dict)  # what its claim got: container → devices
    wrong: tuple[str, ...] = ()

    @property
    def record(self) -> str:
        """The fallback's record."""
        return str(annotations_of(self.pod).get(RECORD_ANNOTATION, ""))

    @property
    def is_claim(self) -> bool:
        """Whether its request became a claim."""
        return ALTERNATIVES_ANNOTATION in annotations_of(self.pod)

    @property
    def node(self) -> str:
        """Where it landed."""
        return str(self.pod["spec"].get("nodeName", "")) if self.pod else ""

    @property
    def waiting(self) -> str:
        """Why no node has it yet."""
        return why_waiting(self.pod)


@dataclass(frozen=True, slots=True)
class ManyEnded:
    """What became of many pods."""

    asked: Document
    ended: tuple[PodEnded, ...]
    wrong: tuple[str, ...] = ()

    @property
    def running(self) -> tuple[PodEnded, ...]:
        """Those that run."""
        return tuple(one for one in self.ended if one.node)

    @property
    def waiting(self) -> tuple[PodEnded, ...]:
        """Those that wait."""
        return tuple(one for one in self.ended if not one.node)


@dataclass(frozen=True, slots=True)
class PodDeleted:
    """A pod is gone, and what became of another."""

    name: str
    then: PodEnded | None = None
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutChanged:
    """What became of a layout."""

    node: str
    asked: str | None
    before: Counts
    after: Counts
    state: str
    reason: str = ""
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What there is and what is taken."""

    uses: Mapping[str, Mapping[str, Use]]
    nodes: Mapping[str, Document] = field(default_factory=dict)
    held: frozenset[str] = frozenset()  # the ids of devices that pods hold
    wrong: tuple[str, ...] = ()


Scene = NodesCame | NamespaceAnnotated | PodEnded | ManyEnded | PodDeleted | LayoutChanged | Measured


def annotations_of(document: Document | None) -> dict[str, Any]:
    """An object's annotations."""
    return (document or {}).get("metadata", {}).get("annotations") or {}


def runs(pod: Document, *, kubelets: bool) -> bool:
    """Whether a pod runs; where there are no kubelets, whether it has its node."""
    return pod["status"].get("phase") == "Running" if kubelets else bool(pod["spec"].get("nodeName"))


def why_waiting(pod: Document | None) -> str:
    """Why no node has a pod yet, in the scheduler's words; empty when one has."""
    for one in (pod or {}).get("status", {}).get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message", ""))
    return ""


def held_counts(pod: Document) -> dict[str, dict[str, int]]:
    """How many devices of what each container has, as its status tells."""
    return {
        status["name"]: {
            one["name"]: len(one.get("resources") or ())
            for one in status.get("allocatedResourcesStatus") or ()
        }
        for status in pod["status"].get("containerStatuses") or ()
    }


def claimed_counts(pod: Document, results: Iterable[str]) -> dict[str, dict[str, int]]:
    """How many devices of what each container has from the pod's claim, as the allocation tells: `gpu-0/1g-10gb`."""
    requests = parse(annotations_of(pod)[ALTERNATIVES_ANNOTATION]).requests
    resources = {
        f"{request_name(number)}/{one.name}": one.resource
        for number, request in enumerate(requests)
        for one in request.alternatives
    }
    given = [(main_request(result), resources[result]) for result in results]
    return {
        container["name"]: dict(
            Counter(
                resource
                for use in (container.get("resources") or {}).get("claims") or ()
                for request, resource in given
                if use.get("request") == request
            )
        )
        for container in pod["spec"]["containers"]
    }


def held_ids(pod: Document) -> Iterator[str]:
    """The ids of the devices that a pod has."""
    for status in pod["status"].get("containerStatuses") or ():
        for one in status.get("allocatedResourcesStatus") or ():
            yield from (device["resourceID"] for device in one.get("resources") or ())


def first_sentence(text: str) -> str:
    """The first sentence of a scheduler's reason; what it says of preemption, and of claims that it could free, comes after that."""
    for after in (" preemption:", " no new claims", " still not schedulable"):
        text = text.partition(after)[0]
    return text
