"""Pods as capacity sees them: where they are, how far they have come, and what they request.

Only that is decoded, and of the resources only those that the reader asked about.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from tessera.core.admission.decision import RECORD_ANNOTATION
from tessera.core.devices.capacity import PodUse, in_effect, pod_use, resized
from tessera.core.kubernetes.pod import Amounts, Container, Pod
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.objects import AmountsIn, ResourcesIn
from tessera.protocol.kubernetes.pod import (
    ContainerIn,
    PodMetaIn,
    PodSpecIn,
    annotations_of,
    claims_of,
    container_of,
    overhead_of,
    placement_of,
    pod_resources_of,
    resources_of,
)

Keep = Callable[[str], bool]

_DOMAIN: Final = b"gpu-webhook.k8s.io/"  # of the annotations that say more of what a pod asks for


class _Meta(PodMetaIn, gc=False):
    creationTimestamp: str | None = None  # noqa: N815 # as in the API
    deletionTimestamp: str | None = None  # noqa: N815


class _Actual(msgspec.Struct, gc=False):
    """What the kubelet says of a container's resources, or of the pod's."""

    name: str = ""
    resources: ResourcesIn | None = None
    allocatedResources: AmountsIn = None  # noqa: N815


class _Condition(msgspec.Struct, gc=False):
    type: str = ""
    reason: str | None = None


class _Status(_Actual, gc=False):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    containerStatuses: list[_Actual] | None = None  # noqa: N815
    initContainerStatuses: list[_Actual] | None = None  # noqa: N815

    @property
    def resize_infeasible(self) -> bool:
        pending = next((one for one in self.conditions or () if one.type == "PodResizePending"), None)
        return pending is not None and pending.reason == "Infeasible"


class _Pod(msgspec.Struct, gc=False):
    metadata: _Meta
    spec: PodSpecIn | None = None
    status: _Status | None = None


_decode: Final = objects.decoder(_Pod)


def decode_pod_use(raw: bytes, keep: Keep, *, where: Callable[[PodUse], bool] | None = None) -> PodUse:
    """What a pod uses of the resources to keep; `where` says of which pods to read where they may go."""
    one = _decode(raw)
    metadata, status = one.metadata, one.status or _Status()
    try:
        pod = _pod(one, keep)
    except objects.InvalidObject as error:
        raise objects.InvalidObject(f"pod {metadata.namespace}/{metadata.name}: {error}") from error
    use = pod_use(pod, status.phase or "", deleted=bool(metadata.deletionTimestamp), keep=keep)
    record = pod.annotations.get(RECORD_ANNOTATION, "")
    use = replace(use, created=metadata.creationTimestamp or "", record=record)
    return replace(use, where=placement_of(one.spec or PodSpecIn())) if where and where(use) else use


def _pod(one: _Pod, keep: Keep) -> Pod:
    metadata, spec, status = one.metadata, one.spec or PodSpecIn(), one.status or _Status()
    known = {actual.name: actual for actual in status.containerStatuses or ()}
    known |= {actual.name: actual for actual in status.initContainerStatuses or ()}
    infeasible = status.resize_infeasible

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
        namespace=metadata.namespace or "",
        name=metadata.name or "",
        annotations=annotations_of(metadata.annotations) if marked else {},
        claims=claims_of(spec) if marked else (),
        init_containers=tuple(
            container(given, f"spec.initContainers[{number}]", init=True)
            for number, given in enumerate(spec.initContainers or ())
        ),
        containers=tuple(
            container(given, f"spec.containers[{number}]", init=False)
            for number, given in enumerate(spec.containers or ())
        ),
        node_name=spec.nodeName or "",
        overhead=overhead_of(spec),
        pod_requests=pod_requests,
    )


def _kept(resources: ResourcesIn, keep: Keep) -> ResourcesIn:
    return ResourcesIn(_some(resources.requests, keep), _some(resources.limits, keep))


def _some(amounts: AmountsIn, keep: Keep) -> AmountsIn:
    return {resource: amount for resource, amount in amounts.items() if keep(resource)} if amounts else None


def _actual(actual: _Actual, keep: Keep, where: str) -> tuple[Amounts, Amounts]:
    """What is there, and what was promised."""
    requests = actual.resources.requests if actual.resources else None
    return (
        objects.amounts_of(_some(requests, keep), f"{where}: resources.requests"),
        objects.amounts_of(_some(actual.allocatedResources, keep), f"{where}: allocatedResources"),
    )
