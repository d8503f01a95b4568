"""Pods as decisions see them, read in the fewest steps: this is the webhook's hot path.

Parts of a pod stay raw bytes until a reader needs them: a webhook that has seen the same bytes before does not look
inside. `pod.PodIn` extends these structs with everything else that some reader needs; `pod_of` reads both the same way.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from tessera.core.kubernetes.pod import Amounts, Container, Pod
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Toleration
from tessera.protocol.kubernetes.objects import (
    ABSENT,
    Keep,
    NameOnly,
    OwnerReference,
    Part,
    ResourcesIn,
    amounts_of,
    decoder,
    reader,
)

if TYPE_CHECKING:
    from tessera.protocol.kubernetes.pod import PodIn


_MOST_OWNERS: Final = 64 * 1024  # bytes: some hundred owners; a pod has one


class ContainerIn(Part):
    """A container; its resources unread."""

    name: str = ""
    resources: msgspec.Raw = ABSENT
    restart_policy: str | None = None


# The labels by which Kueue's integration for plain pods knows what it manages (its pkg/controller/constants), and the
# one that it gives the pods of a workload that it has admitted (PodSetLabel in its apis/kueue).
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
MANAGED_LABEL: Final = "kueue.x-k8s.io/managed"
PODSET_LABEL: Final = "kueue.x-k8s.io/podset"


class _KueueLabels(Part):
    queue: str | None = msgspec.field(default=None, name=QUEUE_LABEL)
    managed: str | None = msgspec.field(default=None, name=MANAGED_LABEL)
    podset: str | None = msgspec.field(default=None, name=PODSET_LABEL)


class LeanMetadata(Part):
    """A pod's metadata; its annotations and owners unread. The fields are in the order of the API, which is quickest to decode."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    labels: _KueueLabels | None = None
    annotations: msgspec.Raw = ABSENT
    owner_references: msgspec.Raw = ABSENT

    @property
    def queued(self) -> bool:
        """Whether Kueue manages the pod itself, by a label; pods of a workload that it has admitted are like any others."""
        labels = self.labels
        return labels is not None and (labels.queue is not None or labels.managed is not None)

    @property
    def counted(self) -> bool:
        """Whether the pod is of a workload that Kueue has admitted, and counts by its template."""
        return self.labels is not None and self.labels.podset is not None


class _TermIn(Part):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelectorIn(Part):
    node_selector_terms: list[_TermIn] | None = None

    def terms(self) -> tuple[NodeSelectorTerm, ...]:
        every = self.node_selector_terms or ()
        return tuple(NodeSelectorTerm(one.match_expressions, one.match_fields) for one in every)


class _NodeAffinityIn(Part):
    required_during_scheduling_ignored_during_execution: NodeSelectorIn | None = None


class _PodTermIn(Part):
    namespaces: tuple[str, ...] = ()
    namespace_selector: dict[str, object] | None = None


class _WeightedPodTermIn(Part):
    pod_affinity_term: _PodTermIn = msgspec.field(default_factory=_PodTermIn)


class _PodAffinityIn(Part):
    required_during_scheduling_ignored_during_execution: tuple[_PodTermIn, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[_WeightedPodTermIn, ...] = ()

    @property
    def names_namespaces(self) -> bool:
        preferred = self.preferred_during_scheduling_ignored_during_execution
        terms = [one.pod_affinity_term for one in preferred]
        terms += self.required_during_scheduling_ignored_during_execution
        return any(one.namespaces or one.namespace_selector is not None for one in terms)


class _AffinityIn(Part):
    node_affinity: _NodeAffinityIn | None = None
    pod_affinity: _PodAffinityIn | None = None
    pod_anti_affinity: _PodAffinityIn | None = None

    @property
    def required_terms(self) -> tuple[NodeSelectorTerm, ...] | None:
        node = self.node_affinity
        required = node and node.required_during_scheduling_ignored_during_execution
        return required.terms() if required else None

    @property
    def looks_across_namespaces(self) -> bool:
        """As Kubernetes' scope CrossNamespacePodAffinity has it."""
        return any(one and one.names_namespaces for one in (self.pod_affinity, self.pod_anti_affinity))


class PodClaim(Part):
    """A resource claim of a pod: named, or made for it from a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class LeanSpec(Part, omit_defaults=True):
    """A pod's spec; what decides where it may go is unread."""

    init_containers: list[ContainerIn] | None = None
    containers: list[ContainerIn] | None = None
    active_deadline_seconds: int | None = None
    node_selector: msgspec.Raw = ABSENT
    node_name: str | None = None
    affinity: msgspec.Raw = ABSENT
    scheduler_name: str | None = None
    tolerations: msgspec.Raw = ABSENT
    priority_class_name: str | None = None
    priority: int | None = None
    overhead: msgspec.Raw = ABSENT
    scheduling_gates: list[NameOnly] | None = None
    resource_claims: msgspec.Raw = ABSENT
    resources: msgspec.Raw = ABSENT

    def read_resources(self) -> ResourcesIn:
        return _resources_of(self.resources, "spec.resources")

    def read_overhead(self) -> Amounts:
        """What the pod costs beside its containers."""
        return amounts_of(_overhead_of(self.overhead, "spec.overhead"), "spec.overhead")

    def read_claims(self) -> list[PodClaim]:
        return _claims_of(self.resource_claims, "spec.resourceClaims")

    @property
    def claim_templates(self) -> tuple[str, ...]:
        """The names of its claims' templates, empty for a claim without one."""
        return tuple(one.resource_claim_template_name or "" for one in self.read_claims())

    def placement(self) -> Pod:
        """Where the pod may go, and nothing else of it."""
        return Pod(
            node_name=self.node_name or "",
            node_selector=_texts_of(self.node_selector, "spec.nodeSelector"),
            required_terms=_affinity_of(self.affinity, "spec.affinity").required_terms,
            tolerations=_tolerations_of(self.tolerations, "spec.tolerations"),
        )


class LeanPod(Part):
    kind: str | None = None
    metadata: LeanMetadata | None = None
    spec: LeanSpec | None = None


_texts_of = reader(dict[str, str], {})
_resources_of = reader(ResourcesIn, ResourcesIn())
_affinity_of = reader(_AffinityIn, _AffinityIn())
_tolerations_of = reader(tuple[Toleration, ...], ())
_claims_of = reader(list[PodClaim], [])
_overhead_of = reader(dict[str, str | int | float], {})
_owners_of = reader(list[OwnerReference], [])
decode_lean_pod: Final = decoder(LeanPod)


def annotations_of(raw: msgspec.Raw) -> dict[str, str]:
    return _texts_of(raw, "metadata.annotations")


def owner_of(raw: msgspec.Raw) -> OwnerReference | None:
    """The controller that makes a pod, or else its first owner; None where it has none, or too many to be read."""
    if memoryview(raw).nbytes > _MOST_OWNERS:
        return None
    owners = _owners_of(raw, "metadata.ownerReferences")
    return next((one for one in owners if one.controller), owners[0] if owners else None)


def container_of(one: ContainerIn, where: str, keep: Keep | None = None) -> Container:
    """A container; of its resources those to keep (all by default)."""
    resources = _resources_of(one.resources, where + ".resources")
    return Container(
        name=one.name,
        requests=amounts_of(resources.requests, where + ".resources.requests", keep),
        limits=amounts_of(resources.limits, where + ".resources.limits", keep),
        restartable=one.restart_policy == "Always",
    )


def pod_of(one: "LeanPod | PodIn", namespace: str = "") -> Pod:
    """A pod as decisions see it; `namespace` where the object itself does not say it."""
    metadata, spec = one.metadata or LeanMetadata(), one.spec or LeanSpec()
    whole = spec.read_resources()
    affinity = _affinity_of(spec.affinity, "spec.affinity")
    return Pod(
        namespace=namespace or metadata.namespace or "",
        name=metadata.name or metadata.generate_name or "",
        annotations=annotations_of(metadata.annotations),
        init_containers=_containers_of(spec.init_containers, "spec.initContainers"),
        containers=_containers_of(spec.containers, "spec.containers"),
        node_name=spec.node_name or "",
        node_selector=_texts_of(spec.node_selector, "spec.nodeSelector"),
        required_terms=affinity.required_terms,
        tolerations=_tolerations_of(spec.tolerations, "spec.tolerations"),
        overhead=spec.read_overhead(),
        pod_requests=amounts_of(whole.requests, "spec.resources.requests"),
        pod_limits=amounts_of(whole.limits, "spec.resources.limits"),
        has_deadline=spec.active_deadline_seconds is not None,
        priority_class=spec.priority_class_name or "",
        looks_across_namespaces=affinity.looks_across_namespaces,
        priority=spec.priority,
        scheduler=spec.scheduler_name or "",
        claims=spec.claim_templates,
        queued=metadata.queued,
        counted=metadata.counted,
        gated=bool(spec.scheduling_gates),
    )


def _containers_of(given: list[ContainerIn] | None, where: str) -> tuple[Container, ...]:
    return tuple(container_of(one, f"{where}[{number}]") for number, one in enumerate(given or ()))
