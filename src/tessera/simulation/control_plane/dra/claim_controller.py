"""kube-controller-manager's part: a claim for each pod that names a template, and its end with the pod's."""

import asyncio
import contextlib
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.dra import POD_CLAIM_NAME, decode_claim
from tessera.simulation.control_plane.dra.claims import claim_names, owned_by
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.simulation.control_plane.store import Document, StatusError, Store, Stored

_COMPONENT: Final = "resourceclaim-controller"
_ENDED: Final = frozenset({"Succeeded", "Failed"})


class ClaimController:
    """Looks at all pods and claims whenever one of them, or a template, has changed."""

    def __init__(self, store: Store, events: Events) -> None:
        self._store = store
        self._events = events
        self._look = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        version = self._store.version
        kinds = (PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS)
        with contextlib.ExitStack() as stops:
            for kind in kinds:
                stops.callback(self._store.follow(kind, version, lambda _: self._look.set()))
            while True:
                self.look()
                await self._look.wait()
                self._look.clear()

    def look(self) -> None:
        """Make the claims that pods wait for; take devices from pods that have ended."""
        pods = [one.document for one in self._store.list(PODS)]
        living = [one for one in pods if (one.get("status") or {}).get("phase") not in _ENDED]
        for pod in living:
            self._make(pod)
        uids = {one["metadata"]["uid"] for one in living}
        for stored in self._store.list(RESOURCE_CLAIMS):
            with contextlib.suppress(InvalidInput):  # one that makes no sense stays as it is
                self._release(stored, uids)

    def _make(self, pod: Document) -> None:
        names, space = claim_names(pod), pod["metadata"]["namespace"]
        statuses = list((pod.get("status") or {}).get("resourceClaimStatuses") or ())
        before = len(statuses)
        for one in (pod.get("spec") or {}).get("resourceClaims") or ():
            name, template = one.get("name", ""), one.get("resourceClaimTemplateName", "")
            if names[name]:
                continue
            try:
                found = self._store.get(RESOURCE_CLAIM_TEMPLATES, template, space).document
            except StatusError as error:
                message = f'PodResourceClaim {name}: resource claim template "{template}": {error}'
                self._events.record(_COMPONENT, pod, "FailedResourceClaimCreation", message, warning=True)
                continue
            made = self._store.create(RESOURCE_CLAIMS, _claim(pod, name, found), space)
            statuses.append({"name": name, "resourceClaimName": made.key[1]})
        if len(statuses) > before:
            status = {**(pod.get("status") or {}), "resourceClaimStatuses": statuses}
            self._store.update(PODS, pod["metadata"]["name"], {"status": status}, space, status=True)

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
            self._store.update(RESOURCE_CLAIMS, name, {"status": kept}, space, status=True)


def _claim(pod: Document, name: str, template: Document) -> Document:
    """A pod's claim, from the template that it names."""
    spec = template.get("spec") or {}
    given = spec.get("metadata") or {}
    metadata = {
        "generateName": f"{pod['metadata']['name']}-{name}-",
        "labels": given.get("labels") or {},
        "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME: name},
        "ownerReferences": [owned_by(pod)],
    }
    return {"metadata": metadata, "spec": spec.get("spec")}
