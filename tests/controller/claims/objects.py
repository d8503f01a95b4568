"""Short ways to write bridged pods, templates and claims."""

from typing import Any

from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, template_name
from tessera.core.requests.tickets import TICKET_ANNOTATION, TicketKey, TicketKeys, TicketMaker, hour_of
from tests.build import claim_document

TEXT = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
TEMPLATE = template_name(TEXT)
RECORD = "gpu-webhook.k8s.io/fallback"
KEYS = TicketKeys(TicketKey(b"c" * 32), TicketKey(b"n" * 32), TicketKey(b"p" * 32))
CREATED, CREATED_AT = 1_800_000_000.0, "2027-01-15T08:00:00Z"


def pod(
    name: str = "p",
    text: str = TEXT,
    template: str | None = None,
    *,
    namespace: str = "a",
    node: str = "",
    uid: str = "",
    ticket: str | None = None,
    **annotations: str,
) -> dict[str, Any]:
    """A pod as the webhook leaves it: with a ticket, if `ticket` says nothing else (empty: none)."""
    maker = TicketMaker(KEYS.current, hour_of(CREATED))
    signed = maker.ticket(namespace, text) if ticket is None else ticket
    if signed:
        annotations[TICKET_ANNOTATION] = signed
    spec: dict[str, Any] = {
        "containers": [
            {"name": "main", "resources": {"claims": [{"name": "tessera-gpu", "request": "gpu-0"}]}}
        ],
        "resourceClaims": [
            {"name": "tessera-gpu", "resourceClaimTemplateName": template or template_name(text)}
        ],
    }
    if node:
        spec["nodeName"] = node
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "creationTimestamp": CREATED_AT,
        "annotations": {ALTERNATIVES_ANNOTATION: text, **annotations},
    }
    return {"metadata": metadata, "spec": spec}


def claim(pod_uid: str, *results: str, name: str = "p-tessera-gpu-x", namespace: str = "a") -> dict[str, Any]:
    """A claim as kube-controller-manager makes it, allocated where there are results."""
    document = claim_document(
        name,
        *({"request": one, "driver": "d", "pool": "p", "device": "x"} for one in results),
        namespace=namespace,
        annotations={"resource.kubernetes.io/pod-claim-name": "tessera-gpu"},
    )
    document["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": pod_uid, "controller": True}]
    return document
