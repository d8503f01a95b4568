"""Pods as capacity sees them: where they are, how far they have come, and what they request.

Only that is decoded, and of the resources only those that the reader asked about.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tessera.core.devices.capacity import PodUse, in_effect, pod_use, resized
from tessera.core.kubernetes.pod import Amounts, Container, Pod
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.lean_pod import (
    ContainerIn,
    annotations_of,
    claims_of,
    container_of,
    overhead_of,
    placement_of,
    pod_resources_of,
    resources_of,
)
from tessera.protocol.kubernetes.objects import AmountsIn, ResourcesIn
from tessera.protocol.kubernetes.pod import ActualResources, PodIn, decode_pod

Keep = Callable[[str], bool]

_DOMAIN: Final = b"gpu-webhook.k8s.io/"  # of the annotations that say more of what a pod asks for


def decode_pod_use(raw: bytes, keep: Keep) -> PodUse:
    """What a pod uses of the resources to keep."""
    return pod_use_of(decode_pod(raw), keep)


def pod_use_of(one: PodIn, keep: Keep, *, where: Callable[[PodUse], bool] | None = None) -> PodUse:
    """What a pod uses of the resources to keep; `where` says of which pods to read where they may go."""
    metadata, status = one.metadata, one.status
    try:
        pod = _pod(one, keep)
    except objects.InvalidObject as error:
        raise objects.InvalidObject(f"pod {metadata.namespace}/{metadata.name}: {error}") from error
    deleted, created = bool(metadata.deletion_timestamp), metadata.creation_timestamp or ""
    use = pod_use(pod, status.phase, deleted=deleted, created=created, keep=keep)
    return replace(use, where=placement_of(one.spec)) if where and where(use) else use


def _pod(one: PodIn, keep: Keep) -> Pod:
    metadata, spec, status = one.metadata, one.spec, one.status
    known = {actual.name: actual for actual in status.container_statuses or ()}
    known |= {actual.name: actual for actual in status.init_container_statuses or ()}
    infeasible = status.condition("PodResizePending").reason == "Infeasible"

    def container(given: ContainerIn, where: str, *, init: bool) -> Container:
        resources = resources_of(given.resources, where)
        read = container_of(given, where, _kept(resources, keep))
        actual = known.get(given.name)
        if actual is None or actual.resources is None or (init and not read.restartable):
            return read
        has, promised = _actual(actual, keep, f"status of container {given.name}")
        return resized(read, has, promised, infeasible=infeasible)

    whole = _kept(pod_resources_of(spec), keep)
    pod_requests = objects.amounts_of(whole.requests, "spec.resources.requests")
    if status.resources is not None:
        has, promised = _actual(status, keep, "status")
        effective = in_effect(pod_requests, has, promised, infeasible=infeasible)
        pod_requests = {resource: effective[resource] for resource in pod_requests if resource in effective}
    marked = _DOMAIN in bytes(metadata.annotations)  # nearly no pod is
    return Pod(
        namespace=metadata.namespace,
        name=metadata.name,
        annotations=annotations_of(metadata.annotations) if marked else {},
        claims=claims_of(spec) if marked else (),
        init_containers=tuple(
            container(given, f"spec.initContainers[{number}]", init=True)
            for number, given in enumerate(spec.init_containers or ())
        ),
        containers=tuple(
            container(given, f"spec.containers[{number}]", init=False)
            for number, given in enumerate(spec.containers or ())
        ),
        node_name=spec.node_name,
        overhead=overhead_of(spec),
        pod_requests=pod_requests,
    )


def _kept(resources: ResourcesIn, keep: Keep) -> ResourcesIn:
    return ResourcesIn(_some(resources.requests, keep), _some(resources.limits, keep))


def _some(amounts: AmountsIn, keep: Keep) -> AmountsIn:
    return {resource: amount for resource, amount in amounts.items() if keep(resource)} if amounts else None


def _actual(actual: ActualResources, keep: Keep, where: str) -> tuple[Amounts, Amounts]:
    """What is there, and what was promised."""
    requests = actual.resources.requests if actual.resources else None
    return (
        objects.amounts_of(_some(requests, keep), f"{where}: resources.requests"),
        objects.amounts_of(_some(actual.allocated_resources, keep), f"{where}: allocatedResources"),
    )
