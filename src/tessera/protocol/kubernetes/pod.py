"""Pods as the API server stores them: everything that some reader needs, decoded once; and what capacity counts of them.

`lean_pod` has the part of it that decisions read; `lean_pod.pod_of` reads this one too.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.core.cache import ByteCache
from tessera.core.devices.capacity import PodUse, amounts_asked, in_effect, pod_use
from tessera.core.kubernetes.pod import ENDED, Amounts, Container, Pod
from tessera.core.text import shortened
from tessera.protocol.kubernetes.lean_pod import (
    MANAGED_LABEL,
    PODSET_LABEL,
    QUEUE_LABEL,
    ContainerIn,
    LeanSpec,
    PodClaim,
    annotations_of,
    container_of,
)
from tessera.protocol.kubernetes.objects import (
    ABSENT,
    AmountsIn,
    CommonMetadata,
    Condition,
    InvalidObject,
    Keep,
    Part,
    ResourcesIn,
    amounts_of,
    decoded_once,
    decoder,
)

_LONGEST_MAKER: Final = 320  # characters; a pod's author can write any
_DOMAIN: Final = b"gpu-webhook.k8s.io/"  # of the annotations that say more of what a pod asks for

_Template = tuple[Hashable, ...]
_EACH: Final = 120  # bytes of a part of a template, or of an amount, besides its characters
_amounts: Final = ByteCache[_Template, Amounts](
    4 * 2**20, 32 * 1024
)  # some 2,000 templates of the usual size


class PodMetadata(CommonMetadata):
    """A pod's metadata; its annotations unread."""

    generate_name: str = ""
    resource_version: str = ""
    annotations: msgspec.Raw = ABSENT
    finalizers: list[str] | None = None

    @property
    def maker(self) -> str:
        """The controller, `Job night`, or how the pod's name begins. Empty: it was created alone."""
        if (controller := self.controller) is not None:
            return shortened(f"{controller.kind} {controller.name}", _LONGEST_MAKER)
        return f"{self.generate_name}*" if self.generate_name else ""

    @property
    def queued(self) -> bool:
        return self.labels is not None and (QUEUE_LABEL in self.labels or MANAGED_LABEL in self.labels)

    @property
    def counted(self) -> bool:
        return self.labels is not None and PODSET_LABEL in self.labels


class PodSpec(LeanSpec):
    node_name: str = ""
    scheduling_group: dict[str, Any] | None = None  # Kubernetes' own gangs, since 1.36


class WaitingState(Part):
    reason: str = ""
    message: str = ""


class TerminatedState(Part):
    reason: str = ""
    exit_code: int = 0


class ContainerState(Part):
    waiting: WaitingState | None = None
    terminated: TerminatedState | None = None


class AllocatedDevice(Part):
    id: str = msgspec.field(default="", name="resourceID")


class AllocatedResource(Part):
    name: str = ""  # a resource of the container; or `claim:name/request`, for devices of DRA
    resources: list[AllocatedDevice] | None = None

    @property
    def by_claim(self) -> bool:
        return self.name.startswith("claim:")


class ActualResources(Part):
    """What the kubelet says of the resources of a container, or of the pod as a whole."""

    name: str = ""
    resources: ResourcesIn | None = None
    allocated_resources: AmountsIn = None


class ContainerStatus(ActualResources):
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)
    allocated_resources_status: list[AllocatedResource] | None = None


_NO_CONDITION: Final = Condition()


class PodStatus(ActualResources):
    phase: str = ""
    conditions: list[Condition] | None = None
    message: str = ""
    reason: str = ""
    start_time: str | None = None
    nominated_node_name: str = ""
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    # of the claim that the scheduler made for its extended resources
    extended_resource_claim_status: PodClaim | None = None

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    def condition(self, kind: str) -> Condition:
        """A condition, empty where there is none."""
        return next((one for one in self.conditions or () if one.type == kind), _NO_CONDITION)

    @property
    def waiting(self) -> WaitingState | None:
        """Why the first container that waits does so; that it is only being made is no reason."""
        every = (*(self.init_container_statuses or ()), *(self.container_statuses or ()))
        found = (one.state.waiting for one in every)
        return next(
            (one for one in found if one and one.reason not in ("PodInitializing", "ContainerCreating")), None
        )


class PodIn(Part):
    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def ready(self) -> bool:
        return self.status.condition("Ready").status == "True"

    @property
    def claims(self) -> dict[str, str | None]:
        """The claims that it has, by the names that it gives them; None for one that was not made yet."""
        made = {one.name: one.resource_claim_name for one in self.status.resource_claim_statuses or ()}
        return {one.name: one.resource_claim_name or made.get(one.name) for one in self.spec.read_claims()}

    @property
    def has_claims(self) -> bool:
        """Whether it has a claim: of its own, or one that the scheduler made for its extended resources."""
        return self.status.extended_resource_claim_status is not None or bool(self.spec.read_claims())

    @property
    def claim_templates(self) -> dict[str, str]:
        """The templates of its claims, by the names that it gives the claims; empty for a claim without one."""
        return {one.name: one.resource_claim_template_name or "" for one in self.spec.read_claims()}


class MakerSpec(Part):
    template: PodIn = msgspec.field(default_factory=PodIn)


class Maker(Part):
    """A workload, of which only the pods that it makes matter."""

    spec: MakerSpec = msgspec.field(default_factory=MakerSpec)


decode_pod: Final = decoded_once(decoder(PodIn))
decode_maker: Final = decoder(Maker)


def decode_pod_use(raw: bytes, keep: Keep) -> PodUse:
    return pod_use_of(decode_pod(raw), keep)


def pod_use_of(one: PodIn, keep: Keep, *, where: Callable[[PodUse], bool] | None = None) -> PodUse:
    """What a pod uses of the resources to keep, in a bounded number of bytes.

    `where` says of which pods to read where they may go. Of the others it is not kept either when they were created.
    """
    metadata = one.metadata
    pod, amounts = _asking(one, keep)
    deleted, created = bool(metadata.deletion_timestamp), metadata.creation_timestamp or ""
    use = pod_use(
        pod,
        one.status.phase,
        deleted=deleted,
        created=created if where is None else "",
        uid=metadata.uid,
        keep=keep,
        amounts=amounts,
    )
    if where is None or not where(use):
        return use.bounded()
    spec, scheduled = one.spec, one.status.condition("PodScheduled")
    return replace(
        use,
        created=created,
        where=spec.placement(),
        priority=spec.priority or 0,
        gated=bool(spec.scheduling_gates),
        judged=(scheduled.last_transition_time or created) if scheduled.is_refused else "",
    ).bounded()


def _asking(one: PodIn, keep: Keep) -> tuple[Pod, Amounts]:
    """A pod as far as its use goes by it, and the amounts that it asks for: pods of one template share these."""
    metadata, spec = one.metadata, one.spec
    template = None if _DOMAIN in bytes(metadata.annotations) else _template_of(one, keep)
    if template is not None and (known := _amounts.get(template)) is not None:
        return Pod(namespace=metadata.namespace, name=metadata.name, node_name=spec.node_name), known
    try:
        pod = pod_in_effect(one, keep)
    except InvalidObject as error:
        raise InvalidObject(f"pod {metadata.namespace}/{metadata.name}: {error}") from error
    amounts = amounts_asked(pod, keep)
    if template is not None:
        _amounts.put(template, amounts, _bytes_of(template) + _bytes_of(amounts))
    return pod, amounts


def _template_of(one: PodIn, keep: Keep) -> _Template:
    """All that the amounts of a pod go by, unless its annotations say more of them."""
    spec, status = one.spec, one.status
    init, regular = _containers_of(spec.init_containers), _containers_of(spec.containers)
    actual = tuple(
        [
            (part.name, _items_of(part.resources.requests), _items_of(part.allocated_resources))
            for part in (*(status.container_statuses or ()), *(status.init_container_statuses or ()), status)
            if part.resources is not None
        ]
    )
    infeasible = bool(actual) and status.condition("PodResizePending").reason == "Infeasible"
    return keep, init, regular, bytes(spec.overhead), bytes(spec.resources), actual, infeasible


def _containers_of(given: list[ContainerIn] | None) -> _Template:
    return tuple([(one.name, bytes(one.resources), one.restart_policy) for one in given or ()])


def _items_of(amounts: AmountsIn) -> _Template:
    return tuple(amounts.items()) if amounts else ()


def _bytes_of(part: object) -> int:
    """About how many bytes a part of a template takes, or its amounts."""
    if isinstance(part, tuple | Mapping):
        return _EACH + sum(map(_bytes_of, part))
    return _EACH + (len(part) if isinstance(part, str | bytes) else 0)


def pod_in_effect(one: PodIn, keep: Keep | None = None) -> Pod:
    """A pod with what counts of its requests while it is resized; of its resources those to keep (all by default)."""
    metadata, spec, status = one.metadata, one.spec, one.status
    known = {actual.name: actual for actual in status.container_statuses or ()}
    known |= {actual.name: actual for actual in status.init_container_statuses or ()}
    infeasible = status.condition("PodResizePending").reason == "Infeasible"

    def in_force(requests: Amounts, actual: ActualResources, where: str) -> Amounts:
        """What counts of a container, or of the pod as a whole, while it is resized."""
        there = actual.resources.requests if actual.resources else None
        has = amounts_of(there, f"{where}: resources.requests", keep)
        allocated = amounts_of(actual.allocated_resources, f"{where}: allocatedResources", keep)
        return in_effect(requests, has, allocated, infeasible=infeasible)

    def container(given: ContainerIn, where: str, *, init: bool) -> Container:
        read, actual = container_of(given, where, keep), known.get(given.name)
        if actual is None or actual.resources is None or (init and not read.restartable):
            return read
        return replace(read, requests=in_force(read.requests, actual, f"status of container {given.name}"))

    pod_requests = amounts_of(spec.read_resources().requests, "spec.resources.requests", keep)
    if status.resources is not None:
        effective = in_force(pod_requests, status, "status")
        pod_requests = {resource: effective[resource] for resource in pod_requests if resource in effective}
    marked = _DOMAIN in bytes(metadata.annotations)  # nearly no pod is
    return Pod(
        namespace=metadata.namespace,
        name=metadata.name,
        annotations=annotations_of(metadata.annotations) if marked else {},
        claims=spec.claim_templates if marked else (),
        init_containers=tuple(
            container(given, f"spec.initContainers[{number}]", init=True)
            for number, given in enumerate(spec.init_containers or ())
        ),
        containers=tuple(
            container(given, f"spec.containers[{number}]", init=False)
            for number, given in enumerate(spec.containers or ())
        ),
        node_name=spec.node_name,
        overhead=spec.read_overhead(),
        pod_requests=pod_requests,
    )
