"""A pod of a cluster, as a document, as its creator sent it: before fallback, without the bridge's claim and the scheduler's node.

What fallback replaced is undone by the one rule for it (`core.requests.record`). What a claim was made of stands in its
alternatives.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import difference
from tessera.core.requests import alternatives, record
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, DeviceRequest
from tessera.core.requests.record import (
    ASKED_ANNOTATION,
    DECIDED_ANNOTATION,
    MARK_ANNOTATION,
    RECORD_ANNOTATION,
)
from tessera.core.requests.tickets import TICKET_ANNOTATION
from tessera.protocol.admission import patch
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of


def as_created(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod of a cluster, which can be read as one, as its creator sent it, as far as that is known.

    One that was made from a template that was decided about came as it is, but for its node.
    """
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod.get("spec") or {})
    spec.pop("nodeName", None)
    annotations = dict(metadata.get("annotations") or {})
    if DECIDED_ANNOTATION in annotations:
        return {**pod, "spec": spec}
    converted = annotations.pop(ALTERNATIVES_ANNOTATION, None)
    annotations.pop(TICKET_ANNOTATION, None)
    if converted is not None:
        _undo_claim(spec, converted)
    marked = annotations.pop(MARK_ANNOTATION, None) is not None
    replaced = [name for name in (RECORD_ANNOTATION, ASKED_ANNOTATION) if name in annotations]
    found = {**pod, "spec": spec}
    if replaced and converted is None:  # else the record shows what the scheduler chose
        read = pod_of(decode_lean_pod(msgspec.json.encode(pod)))
        edits = difference(read, record.undone(read))
        found = patch.apply(found, patch.build(edits, found))
    if replaced or marked or converted is not None:
        kept = {name: text for name, text in annotations.items() if name not in replaced}
        found["metadata"] = {**metadata, "annotations": kept}
    return found


def _undo_claim(spec: dict[str, Any], text: str) -> None:
    try:
        requests = alternatives.read(text).requests
    except InvalidInput:  # not the webhook's words
        return
    asked = {alternatives.request_name(number): one for number, one in enumerate(requests)}
    spec["resourceClaims"] = [
        one for one in spec.get("resourceClaims") or () if one.get("name") != alternatives.CLAIM
    ]
    for field in ("initContainers", "containers"):
        if field in spec:
            spec[field] = [_asking(one, asked) for one in spec[field] or ()]


def _asking(container: dict[str, Any], asked: Mapping[str, DeviceRequest]) -> dict[str, Any]:
    resources = dict(container.get("resources") or {})
    claims = resources.pop("claims", None)
    claims = [one for one in claims if isinstance(one, dict)] if isinstance(claims, list) else []
    own = [one for one in claims if one.get("name") != alternatives.CLAIM]
    found = [asked[name] for one in claims if isinstance(name := one.get("request"), str) and name in asked]
    if not found:
        return container
    limits = {**(resources.get("limits") or {}), **{one.asked: str(one.count) for one in found}}
    return {**container, "resources": {**resources, "limits": limits, **({"claims": own} if own else {})}}
