"""ResourceClaims: those that a pod names, what they ask for, and kube-controller-manager's part.

The controller makes a claim for each pod that names a template, and ends it with the pod.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tessera.core.dra.slices import DeviceClass
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.pod import Pod
from tessera.protocol.kubernetes.dra import EXACT_COUNT, POD_CLAIM_NAME, ClaimSpec, ExactRequest, decode_claim
from tessera.simulation.control_plane.dra.allocating import Alternative, Request, score_of
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.simulation.control_plane.store import Document, StatusError, Store, Stored, has_ended

EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"  # annotation of such a claim


class Unschedulable(TesseraError):
    """Why no node can have a pod, in the scheduler's words."""


class NotMade(TesseraError):
    """A claim that the pod waits for: kube-controller-manager has not made it yet."""


def claim_names(pod: Document) -> dict[str, str]:
    """The names of a pod's claims by their names in the pod; empty where a claim is not made from its template yet."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    made = {one.get("name", ""): one.get("resourceClaimName") for one in statuses}
    return {
        (name := one.get("name", "")): one.get("resourceClaimName") or made.get(name) or ""
        for one in (pod.get("spec") or {}).get("resourceClaims") or ()
    }


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
        "ownerReferences": [_owned_by(pod)],
    }
    return {"metadata": metadata, "spec": {"devices": {"requests": requests}}}, mappings


def _owned_by(pod: Document) -> Document:
    """The reference that makes a claim a pod's own."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}


class ClaimController:
    """Looks at all pods and claims whenever one of them, or a template, has changed."""

    def __init__(self, store: Store, events: Events) -> None:
        self._store = store
        self._events = events

    async def run(self) -> None:
        """Work until cancelled."""
        await self._store.call_on_changes((PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS), self.look)

    def look(self) -> None:
        """Make the claims that pods wait for; take devices from pods that have ended."""
        living = [pod for one in self._store.list(PODS) if not has_ended(pod := one.document)]
        for pod in living:
            self._make(pod)
        uids = {one["metadata"]["uid"] for one in living}
        for stored in self._store.list(RESOURCE_CLAIMS):
            with contextlib.suppress(InvalidInput):  # one that makes no sense stays as it is
                self._release(stored, uids)

    def _make(self, pod: Document) -> None:
        names, space = claim_names(pod), pod["metadata"]["namespace"]
        made = []
        for one in (pod.get("spec") or {}).get("resourceClaims") or ():
            name, template = one.get("name", ""), one.get("resourceClaimTemplateName", "")
            if names[name]:
                continue
            try:
                found = self._store.get(RESOURCE_CLAIM_TEMPLATES, template, space).document
            except StatusError as error:
                self._events.record(
                    "resourceclaim-controller",
                    pod,
                    "FailedResourceClaimCreation",
                    f'PodResourceClaim {name}: resource claim template "{template}": {error}',
                    warning=True,
                )
                continue
            claim = self._store.create(RESOURCE_CLAIMS, _claim(pod, name, found), space)
            made.append({"name": name, "resourceClaimName": claim.key[1]})
        if made:
            status = pod.get("status") or {}
            statuses = [*(status.get("resourceClaimStatuses") or ()), *made]
            status = {**status, "resourceClaimStatuses": statuses}
            self._store.set_status(PODS, pod["metadata"]["name"], status, space)

    def _release(self, claim: Stored, living: set[str]) -> None:
        """A claim that was made for a pod goes with it; any other is free when no pod has it any more."""
        space, name = claim.key
        owner = decode_claim(claim.encoded).pod_uid
        if owner and owner not in living:
            self._store.delete(RESOURCE_CLAIMS, name, space)
            return
        status = claim.document.get("status") or {}
        held = status.get("reservedFor") or []
        left = [one for one in held if one.get("uid") in living]
        if left != held:
            kept = {**status, "reservedFor": left} if left else {}
            self._store.set_status(RESOURCE_CLAIMS, name, kept, space)


def _claim(pod: Document, name: str, template: Document) -> Document:
    """A pod's claim, from the template that it names."""
    spec = template.get("spec") or {}
    given = spec.get("metadata") or {}
    metadata = {
        "generateName": f"{pod['metadata']['name']}-{name}-",
        "labels": given.get("labels") or {},
        "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME: name},
        "ownerReferences": [_owned_by(pod)],
    }
    return {"metadata": metadata, "spec": spec.get("spec")}
