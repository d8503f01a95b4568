"""A scheduler: puts pods onto nodes that have room for them, and says why it cannot.

It checks what the real one checks first: cordons, taints, selectors and node affinity, requests against allocatable, devices for
claims. It knows no preemption, pod affinity, volumes or priorities. It prefers the node with the better alternatives of a claim, then
the emptiest node. The real one does so with `DynamicResources` at weight 20 (examples/scheduler.yaml), unless nodes are nearly full.
"""

import contextlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.pod import Pod, requested
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import CORDONED, Taint
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.dra.allocating import Unschedulable
from tessera.simulation.control_plane.dra.scheduling import Claimed, NotMade, Round
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.store import Document, Store, Stored, has_ended

NAME: Final = "default-scheduler"


@dataclass(slots=True)
class Room:
    """A node and what is left of it."""

    node: Node
    free: dict[str, Fraction]

    def take(self, pod: Pod) -> None:
        for resource, amount in _needs(pod):
            self.free[resource] = self.free.get(resource, Fraction(0)) - amount

    def why_not(self, pod: Pod, claimed: Collection[str]) -> list[str]:
        """Why a pod cannot go there, in the scheduler's words; empty when it can. What is `claimed` need not be allocatable."""
        node = self.node
        if CORDONED in node.taints and _repels(CORDONED, pod):
            return ["node(s) were unschedulable"]
        taint = next((one for one in node.taints if _repels(one, pod)), None)
        if taint is not None:
            return [f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"]
        selected = all(node.labels.get(key) == value for key, value in pod.node_selector.items())
        terms = pod.required_terms
        if not selected or (terms is not None and not any(t.matches(node.name, node.labels) for t in terms)):
            return ["node(s) didn't match Pod's node affinity/selector"]
        lacking = [
            resource
            for resource, amount in _needs(pod)
            if amount > self.free.get(resource, 0) and resource not in claimed
        ]
        return ["Too many pods" if resource == "pods" else f"Insufficient {resource}" for resource in lacking]

    @property
    def load(self) -> tuple[Fraction, str]:
        """How full it is by its CPUs: the emptiest node is the best."""
        whole = self.node.allocatable.get("cpu", Quantity(Fraction(1))).value or Fraction(1)
        return (1 - self.free.get("cpu", Fraction(0)) / whole, self.node.name)


class Scheduler:
    """Tries every pod that waits, again whenever a node, a pod or an object of DRA has changed."""

    def __init__(self, store: Store, events: Events) -> None:
        self._store = store
        self._events = events

    async def run(self) -> None:
        of_dra = (kinds.DEVICE_CLASSES, kinds.RESOURCE_SLICES, kinds.RESOURCE_CLAIMS)
        await self._store.call_on_changes((kinds.PODS, kinds.NODES, *of_dra), self.schedule)

    def schedule(self) -> None:
        """Try every pod that waits, the oldest first."""
        pods = [(stored, stored.document) for stored in self._store.list(kinds.PODS)]
        waiting = [(stored, pod) for stored, pod in pods if _waits(pod)]
        if not waiting:
            return
        rooms = {
            room.node.name: room for one in self._store.list(kinds.NODES) if (room := _room(one)) is not None
        }
        for stored, pod in pods:
            name = (pod.get("spec") or {}).get("nodeName")
            if name in rooms and not has_ended(pod):
                with contextlib.suppress(InvalidInput):  # what it takes is not known
                    rooms[name].take(read_pod(stored))
        round_ = Round(self._store)
        for stored, document in sorted(waiting, key=lambda one: one[0].made):
            try:
                self._schedule(document, read_pod(stored), tuple(rooms.values()), round_)
            except NotMade:
                pass  # kube-controller-manager makes the claim, and the pod is tried again
            except Unschedulable as error:
                none = f"0/{len(rooms)} nodes are available: {error}."
                self._unschedulable(document, none if rooms else "no nodes available to schedule pods")
            except InvalidInput as error:
                self._unschedulable(document, f"the pod cannot be read: {error}")

    def _schedule(self, document: Document, pod: Pod, rooms: Collection[Room], round_: Round) -> None:
        claims = round_.claims(document)
        reasons: Counter[str] = Counter()
        fitting: list[tuple[Room, Claimed]] = []
        for room in rooms:
            served = round_.served(pod, room.node)
            found = room.why_not(pod, served) or round_.find(document, pod, claims, served, room.node)
            if isinstance(found, Claimed):
                fitting.append((room, found))
            else:
                reasons.update(found)
        if not fitting:  # the reasons are counted, and sorted as texts, as the real scheduler does
            raise Unschedulable(", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items())))
        best, claimed = min(fitting, key=lambda one: (-one[1].score, one[0].load))
        best.take(pod)
        round_.take(claimed, claims, document, best.node.name)
        document["spec"]["nodeName"] = best.node.name
        self._write(document, {"type": "PodScheduled", "status": "True"})
        assigned = f"Successfully assigned {pod.namespace}/{pod.name} to {best.node.name}"
        self._events.record(NAME, document, "Scheduled", assigned)

    def _unschedulable(self, document: Document, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if condition not in ((document.get("status") or {}).get("conditions") or ()):
            self._write(document, condition)
            self._events.record(NAME, document, "FailedScheduling", message, warning=True)

    def _write(self, pod: Document, condition: Document) -> None:
        """Write a pod with one condition replaced."""
        metadata, status = pod["metadata"], pod.setdefault("status", {})
        others = [one for one in status.get("conditions") or () if one["type"] != condition["type"]]
        status["conditions"] = [*others, condition]
        self._store.update(kinds.PODS, metadata["name"], pod, metadata["namespace"])


def read_pod(stored: Stored) -> Pod:
    """A stored pod as decisions see it."""
    return pod_of(decode_lean_pod(stored.encoded), stored.key[0])


def _room(stored: Stored) -> Room | None:
    """A node without any pods on it; None when its object makes no sense."""
    try:
        node = node_of(decode_node(stored.encoded))
    except InvalidInput:
        return None
    return Room(node, {name: amount.value for name, amount in node.allocatable.items()})


def _waits(pod: Document) -> bool:
    spec = pod.get("spec") or {}
    placed = spec.get("nodeName") or pod["metadata"].get("deletionTimestamp") or has_ended(pod)
    ours = spec.get("schedulerName", NAME) == NAME and not spec.get("schedulingGates")
    return ours and not placed and bool(spec.get("containers"))


def _needs(pod: Pod) -> list[tuple[str, Fraction]]:
    """What a pod takes of a node; itself is one of so many pods."""
    return [("pods", Fraction(1))] + [(name, q.value) for name, q in requested(pod).items() if q.value]


def _repels(taint: Taint, pod: Pod) -> bool:
    excludes = taint.effect in ("NoSchedule", "NoExecute")
    return excludes and not any(one.tolerates(taint) for one in pod.tolerations)
