"""What the scheduler does with claims: it finds devices for a pod's claims on a node, and writes the allocation.

Where a DeviceClass serves an extended resource, and the node's kubelet reports none of it, the scheduler makes a claim for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from tessera.core.dra.slices import DeviceClass, serving
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.pod import Pod
from tessera.protocol.dra.objects import read_claim, read_class
from tessera.protocol.kubernetes.dra import EXACT_COUNT, ClaimSpec, ExactRequest, decode_claim
from tessera.protocol.kubernetes.lean_pod import NodeSelectorIn
from tessera.simulation.control_plane.dra import allocating
from tessera.simulation.control_plane.dra.allocating import (
    Alternative,
    Given,
    Request,
    Unschedulable,
    readable,
)
from tessera.simulation.control_plane.dra.claims import claim_names, owned_by
from tessera.simulation.control_plane.kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera.simulation.control_plane.store import Document, StatusError, Store

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
