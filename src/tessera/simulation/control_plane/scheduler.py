"""A scheduler: puts pods onto nodes that have room for them, and says why it cannot.

It checks what the real one checks first: cordons, taints, selectors and node affinity, requests against allocatable, devices for
claims. It knows no preemption, pod affinity, volumes or priorities. It prefers the node with the better alternatives of a claim, then
the emptiest node. The real one does so with `DynamicResources` at weight 20 (examples/scheduler.yaml), unless nodes are nearly full.

What the scheduler does with claims: it finds devices for a pod's claims on a node, and writes the allocation.

Where a DeviceClass serves an extended resource, and the node's kubelet reports none of it, the scheduler makes a claim for it.
"""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import msgspec

from tessera.core.dra.slices import DeviceClass, serving
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.pod import Pod, requested
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import CORDONED, Taint
from tessera.protocol.dra.objects import read_claim, read_class
from tessera.protocol.kubernetes.dra import EXACT_COUNT, ClaimSpec, ExactRequest, decode_claim
from tessera.protocol.kubernetes.lean_pod import NodeSelectorIn, decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tessera.simulation.control_plane import allocating, kinds
from tessera.simulation.control_plane.allocating import (
    Alternative,
    Given,
    Request,
    Unschedulable,
    readable,
)
from tessera.simulation.control_plane.claims import claim_names, owned_by
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera.simulation.control_plane.store import Document, StatusError, Store, Stored, has_ended

_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"  # annotation of such a claim
Served = dict[str, DeviceClass]  # extended resources, and the classes that serve them


class NotMade(TesseraError):
    """A claim that the pod waits for: kube-controller-manager has not made it yet."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a pod gets on a node: devices for each of its claims that has none yet."""

    parts: tuple[tuple[Document, tuple[Given, ...]], ...] = ()
    mappings: tuple[Document, ...] = ()  # of the last claim, where that stands for extended resources

    @property
    def score(self) -> int:
        """What it is worth between nodes."""
        return sum(allocating.score(given) for _, given in self.parts)


class Round:
    """One round of scheduling. Objects of DRA are read when the first pod needs them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _classes(self) -> dict[str, DeviceClass]:
        return {one.name: one for one in readable(self._store.list(DEVICE_CLASSES), read_class)}

    @cached_property
    def _serving(self) -> Served:
        return serving(self._classes)

    @cached_property
    def _devices(self) -> allocating.Devices:
        return allocating.Devices(self._store.list(RESOURCE_SLICES))

    @cached_property
    def _taken(self) -> set[allocating.DeviceId]:
        claims = readable(self._store.list(RESOURCE_CLAIMS), read_claim)
        return {device for one in claims for device in one.holds}

    def claims(self, pod: Document) -> list[Document]:
        """A pod's claims; `NotMade` while one is missing, `Unschedulable` when one is another pod's."""
        found = []
        for name in claim_names(pod).values():
            try:
                claim = self._store.get(RESOURCE_CLAIMS, name, pod["metadata"]["namespace"])
            except StatusError as error:
                raise NotMade(f"resourceclaim {name} not found") from error
            if decode_claim(claim.encoded).pod_uid not in ("", pod["metadata"]["uid"]):
                raise Unschedulable(f"ResourceClaim {name} was not created for the pod")
            found.append(claim.document)
        return found

    def served(self, asks: Pod, node: Node) -> Served:
        """The extended resources of a pod that a node has from DRA, if it has them."""
        asked = {resource for one in asks.containers for resource in one.resources()}
        return {
            resource: one
            for resource, one in self._serving.items()
            if resource in asked and not node.allocatable.get(resource)
        }

    def find(
        self, pod: Document, asks: Pod, claims: list[Document], served: Served, node: Node
    ) -> Claimed | list[str]:
        """The devices that a node has for a pod's claims, or why it has none, in the scheduler's words."""
        if not all(_is_there(allocation, node) for one in claims if (allocation := _allocation_of(one))):
            return ["resourceclaim not available on the node"]
        open_ = [one for one in claims if _allocation_of(one) is None]
        own, mappings = _extended(pod, asks, served)
        if mappings:
            open_.append(own)
        if not open_:
            return Claimed()
        wanted = [(one, tuple(_requests_of(one, self._classes))) for one in open_]
        stock = self._devices.on(node)
        taken = [one for one in stock.devices if one.id in self._taken]
        given = allocating.allocate([one for _, requests in wanted for one in requests], stock, taken)
        if given is None:
            return ["cannot allocate all claims"]
        parts = tuple(
            (claim, tuple(each for each in given if any(each.alternative in one for one in requests)))
            for claim, requests in wanted
        )
        return Claimed(parts, tuple(mappings))

    def take(self, claimed: Claimed, claims: list[Document], pod: Document, node: str) -> None:
        """Write a pod's claims down as allocated, and as reserved for it."""
        shared = [one for one in claims if _allocation_of(one) is not None]
        for claim, given in claimed.parts:
            made = claim if "uid" in claim["metadata"] else self._make(claim, claimed, pod)
            self._reserve(made, pod, {"allocation": _allocation(given, node)})
            self._taken.update(one.device.id for one in given)
        for claim in shared:
            self._reserve(claim, pod, {})

    def _make(self, claim: Document, claimed: Claimed, pod: Document) -> Document:
        """Make the claim that stands for extended resources, and have the pod's status say so."""
        made = self._store.create(RESOURCE_CLAIMS, claim)
        status = {"resourceClaimName": made.key[1], "requestMappings": list(claimed.mappings)}
        pod.setdefault("status", {})["extendedResourceClaimStatus"] = status
        return made.document

    def _reserve(self, claim: Document, pod: Document, given: Document) -> None:
        status = {**(claim.get("status") or {}), **given}
        holder = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        status["reservedFor"] = [*(status.get("reservedFor") or ()), holder]
        space, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        self._store.set_status(RESOURCE_CLAIMS, name, status, space)


def _allocation_of(claim: Document) -> Document | None:
    """What a claim was given; None before that."""
    return (claim.get("status") or {}).get("allocation")


def _requests_of(claim: Document, classes: Mapping[str, DeviceClass]) -> Iterator[Request]:
    """What a claim asks for; `Unschedulable` where this scheduler cannot serve such a request."""
    try:
        spec = msgspec.convert(claim.get("spec"), ClaimSpec)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"its claim: spec: {error}") from error
    for one in spec.devices.requests or ():
        if one.exactly is not None:
            yield (_alternative(one.name, one.exactly, classes, 0),)
        else:
            yield tuple(
                _alternative(f"{one.name}/{each.name}", each, classes, allocating.score_of(place))
                for place, each in enumerate(one.first_available or ())
            )


def _alternative(
    name: str, wanted: ExactRequest, classes: Mapping[str, DeviceClass], score: int
) -> Alternative:
    device_class = classes.get(wanted.device_class_name)
    if device_class is None:
        raise Unschedulable(f"request {name}: device class {wanted.device_class_name} does not exist")
    if wanted.allocation_mode != EXACT_COUNT:
        raise Unschedulable(f"request {name}: allocation mode {wanted.allocation_mode} is not known here")
    own = (one.cel.expression for one in wanted.selectors or ())
    return Alternative(name, (*device_class.selectors, *own), wanted.count, score)


def _extended(pod: Document, asks: Pod, served: Mapping[str, DeviceClass]) -> tuple[Document, list[Document]]:
    """The claim that stands for extended resources which DRA serves, and which container has which of its requests.

    Init containers have none of their own: they use what containers have.
    """
    requests, mappings = [], []
    for index, container in enumerate(asks.containers, len(asks.init_containers)):
        asked = {resource: amount for resource in sorted(served) if (amount := container.asked(resource))}
        for number, (resource, amount) in enumerate(asked.items()):
            name = f"container-{index}-request-{number}"
            exactly = {"deviceClassName": served[resource].name, "count": int(amount.value)}
            requests.append({"name": name, "exactly": exactly})
            mappings.append({"containerName": container.name, "resourceName": resource, "requestName": name})
    metadata = {
        "generateName": f"{pod['metadata']['name']}-extended-resources-",
        "namespace": pod["metadata"]["namespace"],
        "annotations": {_EXTENDED: "true"},
        "ownerReferences": [owned_by(pod)],
    }
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}}, mappings


def _allocation(given: tuple[Given, ...], node: str) -> Document:
    results = [
        {"request": one.alternative.request, "driver": pool.driver, "pool": pool.name, "device": name}
        for one in given
        for pool, name in [one.device.id]
    ]
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]}}


def _is_there(allocation: Document, node: Node) -> bool:
    """Whether a node can use what a claim was given."""
    selector = allocation.get("nodeSelector")
    if selector is None:
        return True
    try:
        terms = msgspec.convert(selector, NodeSelectorIn).terms()
    except msgspec.ValidationError:
        return False
    return any(one.matches(node.name, node.labels) for one in terms)


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
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._store.now()}
        self._write(document, bound)
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
