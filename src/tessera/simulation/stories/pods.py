"""How a pod is to end, what it says about itself, and what is wrong about it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, read, request_name
from tessera.core.requests.record import RECORD_ANNOTATION
from tessera.protocol.kubelet.dra_messages import main_request
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
class Rejected:
    """The pod is not admitted, and the message has these words."""

    words: tuple[str, ...]


Ending = Runs | Waits | Rejected


def annotations_of(pod: Document | None) -> dict[str, Any]:
    return (pod or {}).get("metadata", {}).get("annotations") or {}


def why_waiting(pod: Document | None) -> str:
    """Why no node has a pod yet, in the scheduler's words; empty when one has."""
    for one in (pod or {}).get("status", {}).get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message", ""))
    return ""


def _held_counts(pod: Document) -> dict[str, dict[str, int]]:
    """Container → resource → devices, by the containers' statuses."""
    return {
        status["name"]: {
            one["name"]: len(one.get("resources") or ())
            for one in status.get("allocatedResourcesStatus") or ()
        }
        for status in pod["status"].get("containerStatuses") or ()
    }


def claimed_counts(pod: Document, results: Iterable[str]) -> dict[str, dict[str, int]]:
    """Container → resource → devices that it has from the pod's claim; a result names its alternative: `gpu-0/1g-10gb`."""
    requests = read(annotations_of(pod)[ALTERNATIVES_ANNOTATION]).requests
    resources = {
        f"{request_name(number)}/{one.name}": one.resource
        for number, request in enumerate(requests)
        for one in request.alternatives
    }
    given = [(main_request(result), resources[result]) for result in results]
    found = {}
    for container in pod["spec"]["containers"]:
        uses = {use.get("request") for use in (container.get("resources") or {}).get("claims") or ()}
        found[container["name"]] = dict(Counter(resource for request, resource in given if request in uses))
    return found


def refusal_wrong(ends: Ending, message: str) -> tuple[str, ...]:
    if not isinstance(ends, Rejected):
        return ("expected the pod to be admitted, but it was refused",)
    return tuple(f'expected the message to contain "{words}"' for words in ends.words if words not in message)


def pod_wrong(
    ends: Ending, pod: Document, claimed: Mapping[str, Counts], *, kubelets: bool
) -> tuple[str, ...]:
    """What is wrong about an admitted pod.

    Without kubelets, a pod that has its node counts as running, and holds no devices but those of claims.
    """
    if isinstance(ends, Rejected):
        return ("expected the pod to be refused, but it was admitted",)
    wrong: list[str] = []
    record = annotations_of(pod).get(RECORD_ANNOTATION, "")
    if record != ends.fallback:
        wrong.append(f"expected fallback {ends.fallback or 'none'}, got {record or 'none'}")
    if isinstance(ends, Waits):
        waiting = why_waiting(pod)
        if _first_sentence(waiting) != ends.because:
            wrong.append(f'expected it to wait because "{ends.because}", but it waits because "{waiting}"')
        return tuple(wrong)
    node, phase = pod["spec"].get("nodeName"), pod["status"].get("phase")
    if node != ends.on or (kubelets and phase != "Running"):
        wrong.append(f"expected it to run on {ends.on}, but it is {phase} on {node or 'no node'}")
    held = claimed or _held_counts(pod)
    return (*wrong, *_contents_wrong(ends, pod), *(_devices_wrong(ends, held) if claimed or kubelets else ()))


def _devices_wrong(ends: Runs, held: Mapping[str, Counts]) -> Iterator[str]:
    for container, counts in ends.holds.items():
        has = held.get(container, {})
        if has != counts:
            yield f"expected container {container} to hold {dict(counts)}, but it holds {has}"


def _contents_wrong(ends: Runs, pod: Document) -> Iterator[str]:
    limits = {one["name"]: one.get("resources", {}).get("limits") or {} for one in pod["spec"]["containers"]}
    for name, wanted in ends.limits.items():
        if _plain(limits[name]) != _plain(wanted):
            yield f"expected container {name} to have limits {dict(wanted)}, but it has {limits[name]}"
    annotations = annotations_of(pod)
    for key, value in ends.annotations.items():
        if annotations.get(key) != value:
            yield f"expected annotation {key} to be {value}, got {annotations.get(key)}"


def _first_sentence(text: str) -> str:
    """A scheduler's reason, without what it says about preemption and about claims that it could free."""
    for after in (" preemption:", " no new claims", " still not schedulable"):
        text = text.partition(after)[0]
    return text


def _plain(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(Quantity.parse(amount)) for name, amount in amounts.items()}
