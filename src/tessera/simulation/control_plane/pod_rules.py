"""What an API server itself does to a pod that is created: defaults before admission, checks after it."""

from collections.abc import Iterator
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.resources import is_extended
from tessera.simulation.control_plane.store import Document, StatusError

_CONTAINERS: Final = ("initContainers", "containers")


def with_defaults(pod: Document) -> Document:
    """The pod with what Kubernetes fills in: a limit without a request is one, a new pod is pending."""
    spec = dict(pod.get("spec") or {})
    for field in _CONTAINERS:
        if isinstance(spec.get(field), list):
            spec[field] = [_with_requests(one) for one in spec[field]]
    return {**pod, "spec": spec, "status": {**(pod.get("status") or {}), "phase": "Pending"}}


def _with_requests(container: Any) -> Any:
    resources = container.get("resources") if isinstance(container, dict) else None
    limits = resources.get("limits") if isinstance(resources, dict) else None
    if not isinstance(resources, dict) or not isinstance(limits, dict):
        return container
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def check(pod: Document) -> None:
    """Refuse a pod for what admission left in it, in the words of the real API server."""
    name = (pod.get("metadata") or {}).get("name", "")
    spec = pod.get("spec") or {}
    if not isinstance(spec.get("containers"), list) or not spec["containers"]:
        raise _invalid(name, "spec.containers: Required value")
    for field in _CONTAINERS:
        for index, container in enumerate(spec.get(field) or ()):
            for complaint in _complaints(container.get("resources") or {}):
                raise _invalid(name, f"spec.{field}[{index}].resources.{complaint}")


def _complaints(resources: dict[str, Any]) -> Iterator[str]:
    requests, limits = (_amounts(resources.get(section) or {}, section) for section in ("requests", "limits"))
    for resource, amount in requests.items():
        limit = limits.get(resource)
        if not is_extended(resource):
            if limit is not None and amount > limit:
                yield (
                    f'requests: Invalid value: "{amount}": must be less than or equal to {resource} limit of {limit}'
                )
        elif limit is None:
            yield "limits: Required value: Limit must be set for non overcommitable resources"
        elif amount != limit:
            yield f'requests: Invalid value: "{amount}": must be equal to {resource} limit of {limit}'
        elif not amount.is_whole:
            yield f'requests[{resource}]: Invalid value: "{amount}": must be an integer'


def _amounts(section: dict[str, Any], name: str) -> dict[str, Quantity]:
    try:
        return {resource: Quantity.parse(amount) for resource, amount in section.items()}
    except InvalidInput as error:
        raise StatusError(
            400, "BadRequest", f"Pod in version v1 cannot be handled: {name}: {error}"
        ) from error


def _invalid(name: str, complaint: str) -> StatusError:
    return StatusError(422, "Invalid", f'Pod "{name}" is invalid: {complaint}')
