"""What kube-controller-manager does: it makes a claim for each pod that names a template, and removes it with the pod."""

import contextlib

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.dra import POD_CLAIM_NAME, decode_claim
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.simulation.control_plane.store import Document, StatusError, Store, Stored, has_ended


def claim_names(pod: Document) -> dict[str, str]:
    """The names of a pod's claims by their names in the pod; empty where a claim is not made from its template yet."""
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


class ClaimController:
    """Reconciles all pods and claims whenever one of them, or a template, has changed."""

    def __init__(self, store: Store, events: Events) -> None:
        self._store = store
        self._events = events

    async def run(self) -> None:
        await self._store.call_on_changes((PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS), self.reconcile)

    def reconcile(self) -> None:
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
                reason, problem = (
                    "FailedResourceClaimCreation",
                    f'resource claim template "{template}": {error}',
                )
                message = f"PodResourceClaim {name}: {problem}"
                self._events.record("resourceclaim-controller", pod, reason, message, warning=True)
                continue
            claim = self._store.create(RESOURCE_CLAIMS, _claim(pod, name, found), space)
            made.append({"name": name, "resourceClaimName": claim.key[1]})
        if made:
            status = pod.get("status") or {}
            statuses = [*(status.get("resourceClaimStatuses") or ()), *made]
            status = {**status, "resourceClaimStatuses": statuses}
            self._store.set_status(PODS, pod["metadata"]["name"], status, space)

    def _release(self, claim: Stored, living: set[str]) -> None:
        """Remove a claim whose own pod has ended; deallocate any other that no pod uses any more."""
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
    spec = template.get("spec") or {}
    given = spec.get("metadata") or {}
    metadata = {
        "generateName": f"{pod['metadata']['name']}-{name}-",
        "labels": given.get("labels") or {},
        "annotations": {**(given.get("annotations") or {}), POD_CLAIM_NAME: name},
        "ownerReferences": [owned_by(pod)],
    }
    return {"metadata": metadata, "spec": spec.get("spec")}
