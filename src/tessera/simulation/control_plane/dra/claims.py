"""ResourceClaims as documents: those that a pod names, what they ask for, and the one that extended resources become."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tessera.core.dra.slices import DeviceClass
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.pod import Pod
from tessera.protocol.kubernetes.dra import EXACT_COUNT, ClaimSpec, ExactRequest
from tessera.simulation.control_plane.dra.allocating import Alternative, Request, score_of
from tessera.simulation.control_plane.store import Document

EXTENDED: Final = (
    "resource.kubernetes.io/extended-resource-claim"  # annotation of a claim for extended resources
)


class Unschedulable(TesseraError):
    """Why no node can have a pod, in the scheduler's words."""


class NotMade(TesseraError):
    """A claim that the pod waits for: kube-controller-manager has not made it yet."""


def claim_names(pod: Document) -> dict[str, str]:
    """The names of a pod's claims by their names in the pod; those that are yet to be made from a template are empty."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    made = {one.get("name", ""): one.get("resourceClaimName") for one in statuses}
    return {
        (name := one.get("name", "")): one.get("resourceClaimName") or made.get(name) or ""
        for one in (pod.get("spec") or {}).get("resourceClaims") or ()
    }


def owned_by(pod: Document) -> Document:
    """The reference that makes a claim a pod's own."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}


def allocation_of(claim: Document) -> Document | None:
    """What a claim was given; None before that."""
    return (claim.get("status") or {}).get("allocation")


def requests_of(claim: Document, classes: Mapping[str, DeviceClass]) -> Iterator[Request]:
    """What a claim asks for; `Unschedulable` where that is nothing that the scheduler can look for."""
    try:
        spec = msgspec.convert(claim.get("spec"), ClaimSpec)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"its claim: spec: {error}") from error
    for one in spec.devices.requests or ():
        if one.exactly is not None:
            yield (_alternative(one.name, one.exactly, classes, 0),)
        else:
            yield tuple(
                _alternative(f"{one.name}/{each.name}", each, classes, score_of(place))
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


def extended(pod: Document, asks: Pod, served: Mapping[str, DeviceClass]) -> tuple[Document, list[Document]]:
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
        "annotations": {EXTENDED: "true"},
        "ownerReferences": [owned_by(pod)],
    }
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}}, mappings
