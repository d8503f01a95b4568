"""ResourceClaimTemplates as JSON, written."""

from typing import Any

from tessera.core.requests.alternatives import Alternative, Alternatives, DeviceRequest, request_name
from tessera.protocol.kubernetes.dra import EXACT_COUNT


def template_spec(alternatives: Alternatives) -> dict[str, Any]:
    """The `spec` of the template that stands for these alternatives."""
    requests = [_request(number, one) for number, one in enumerate(alternatives.requests)]
    return {"spec": {"devices": {"requests": requests}}}


def _request(number: int, request: DeviceRequest) -> dict[str, Any]:
    return {
        "name": request_name(number),
        "firstAvailable": [_alternative(one, request.count) for one in request.alternatives],
    }


def _alternative(one: Alternative, count: int) -> dict[str, Any]:
    # all that the API server would fill in is written out: what is read again can be compared
    document: dict[str, Any] = {
        "name": one.name,
        "deviceClassName": one.device_class,
        "allocationMode": EXACT_COUNT,
        "count": count,
    }
    if one.expression:
        document["selectors"] = [{"cel": {"expression": one.expression}}]
    return document
