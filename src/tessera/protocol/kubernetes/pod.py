"""Pods as JSON, read into core values.

Parts of a pod stay raw bytes until a reader needs them: a webhook that has seen the same bytes before need not look
inside.
"""

from typing import Final

import msgspec

from tessera.core.kubernetes.pod import Amounts, Container, Pod
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Toleration
from tessera.protocol.kubernetes.objects import ABSENT, ResourcesIn, amounts_of, decoder, reader


class ContainerIn(msgspec.Struct, gc=False):
    """A container; its resources unread."""

    name: str = ""
    resources: msgspec.Raw = ABSENT
    restartPolicy: str | None = None  # noqa: N815 # as in the API


class _LabelsIn(msgspec.Struct, gc=False):
    """The labels by which Kueue's integration for plain pods knows what it manages (its pkg/controller/constants)."""

    queue: str | None = msgspec.field(default=None, name="kueue.x-k8s.io/queue-name")
    managed: str | None = msgspec.field(default=None, name="kueue.x-k8s.io/managed")


class PodMetaIn(msgspec.Struct, gc=False):
    """A pod's metadata; its annotations and owners unread."""

    name: str | None = None
    generateName: str | None = None  # noqa: N815
    namespace: str | None = None
    labels: _LabelsIn | None = None
    annotations: msgspec.Raw = ABSENT
    ownerReferences: msgspec.Raw = ABSENT  # noqa: N815


class PodSpecIn(msgspec.Struct, gc=False, omit_defaults=True):
    """A pod's spec; what decides where it may go is unread."""

    initContainers: list[ContainerIn] | None = None  # noqa: N815
    containers: list[ContainerIn] | None = None
    activeDeadlineSeconds: int | None = None  # noqa: N815
    nodeSelector: msgspec.Raw = ABSENT  # noqa: N815
    nodeName: str | None = None  # noqa: N815
    affinity: msgspec.Raw = ABSENT
    schedulerName: str | None = None  # noqa: N815
    tolerations: msgspec.Raw = ABSENT
    priorityClassName: str | None = None  # noqa: N815
    priority: int | None = None
    overhead: msgspec.Raw = ABSENT
    resourceClaims: msgspec.Raw = ABSENT  # noqa: N815
    resources: msgspec.Raw = ABSENT


class PodIn(msgspec.Struct, gc=False):
    """A pod, or a workload's pod template."""

    kind: str | None = None
    metadata: PodMetaIn | None = None
    spec: PodSpecIn | None = None


class _RequirementIn(msgspec.Struct, gc=False):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class _TermIn(msgspec.Struct, gc=False):
    matchExpressions: list[_RequirementIn] | None = None  # noqa: N815
    matchFields: list[_RequirementIn] | None = None  # noqa: N815


class NodeSelectorIn(msgspec.Struct, gc=False):
    nodeSelectorTerms: list[_TermIn] | None = None  # noqa: N815


class _NodeAffinityIn(msgspec.Struct, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: NodeSelectorIn | None = None  # noqa: N815


class _PodTermIn(msgspec.Struct, gc=False):
    namespaces: list[str] | None = None
    namespaceSelector: dict[str, object] | None = None  # noqa: N815

    @property
    def names_namespaces(self) -> bool:
        return bool(self.namespaces) or self.namespaceSelector is not None


class _WeightedPodTermIn(msgspec.Struct, gc=False):
    podAffinityTerm: _PodTermIn | None = None  # noqa: N815


class _PodAffinityIn(msgspec.Struct, gc=False):
    requiredDuringSchedulingIgnoredDuringExecution: list[_PodTermIn] | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: list[_WeightedPodTermIn] | None = None  # noqa: N815

    @property
    def names_namespaces(self) -> bool:
        preferred = self.preferredDuringSchedulingIgnoredDuringExecution or ()
        terms = [one.podAffinityTerm for one in preferred if one.podAffinityTerm is not None]
        terms += self.requiredDuringSchedulingIgnoredDuringExecution or ()
        return any(one.names_namespaces for one in terms)


class _AffinityIn(msgspec.Struct, gc=False):
    nodeAffinity: _NodeAffinityIn | None = None  # noqa: N815
    podAffinity: _PodAffinityIn | None = None  # noqa: N815
    podAntiAffinity: _PodAffinityIn | None = None  # noqa: N815


class _ClaimIn(msgspec.Struct, gc=False):
    resourceClaimTemplateName: str | None = None  # noqa: N815


class _TolerationIn(msgspec.Struct, gc=False):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


decode_pod: Final = decoder(PodIn)
_texts_of = reader(dict[str, str], {})
_resources_of = reader(ResourcesIn, ResourcesIn())
_affinity_of = reader(_AffinityIn, _AffinityIn())
_tolerations_of = reader(list[_TolerationIn], [])
_claims_of = reader(list[_ClaimIn], [])
_overhead_of = reader(dict[str, str | int | float], {})


def annotations_of(raw: msgspec.Raw) -> dict[str, str]:
    """A pod's annotations."""
    return _texts_of(raw, "metadata.annotations")


def is_queued(metadata: PodMetaIn) -> bool:
    """Whether Kueue manages the pod itself, by a label; pods of a workload that it has admitted are like any others."""
    labels = metadata.labels
    return labels is not None and (labels.queue is not None or labels.managed is not None)


def container_of(one: ContainerIn, where: str, resources: ResourcesIn) -> Container:
    """A container with its resources read."""
    return Container(
        name=one.name,
        requests=amounts_of(resources.requests, where + ".resources.requests"),
        limits=amounts_of(resources.limits, where + ".resources.limits"),
        restartable=one.restartPolicy == "Always",
    )


def resources_of(raw: msgspec.Raw, where: str) -> ResourcesIn:
    """A container's resources, by section."""
    return _resources_of(raw, where + ".resources")


def pod_of(one: PodIn, namespace: str = "") -> Pod:
    """A pod as decisions see it; `namespace` where the object itself does not say it."""
    metadata, spec = one.metadata or PodMetaIn(), one.spec or PodSpecIn()
    whole = pod_resources_of(spec)
    affinity = _affinity_of(spec.affinity, "spec.affinity")
    return Pod(
        namespace=namespace or metadata.namespace or "",
        name=metadata.name or metadata.generateName or "",
        annotations=annotations_of(metadata.annotations),
        init_containers=_containers_of(spec.initContainers, "spec.initContainers"),
        containers=_containers_of(spec.containers, "spec.containers"),
        node_name=spec.nodeName or "",
        node_selector=_texts_of(spec.nodeSelector, "spec.nodeSelector"),
        required_terms=_required_terms(affinity),
        tolerations=_tolerations(spec),
        overhead=overhead_of(spec),
        pod_requests=amounts_of(whole.requests, "spec.resources.requests"),
        pod_limits=amounts_of(whole.limits, "spec.resources.limits"),
        has_deadline=spec.activeDeadlineSeconds is not None,
        priority_class=spec.priorityClassName or "",
        looks_across_namespaces=_looks_across_namespaces(affinity),
        priority=spec.priority,
        scheduler=spec.schedulerName or "",
        claims=claims_of(spec),
        queued=is_queued(metadata),
    )


def claims_of(spec: PodSpecIn) -> tuple[str, ...]:
    """A pod's claims: the names of their templates, empty for a claim without one."""
    found = _claims_of(spec.resourceClaims, "spec.resourceClaims")
    return tuple(one.resourceClaimTemplateName or "" for one in found)


def placement_of(spec: PodSpecIn) -> Pod:
    """Where a pod may go, and nothing else of it."""
    return Pod(
        node_name=spec.nodeName or "",
        node_selector=_texts_of(spec.nodeSelector, "spec.nodeSelector"),
        required_terms=_required_terms(_affinity_of(spec.affinity, "spec.affinity")),
        tolerations=_tolerations(spec),
    )


def _looks_across_namespaces(affinity: _AffinityIn) -> bool:
    """As Kubernetes' scope CrossNamespacePodAffinity has it."""
    return any(
        one is not None and one.names_namespaces for one in (affinity.podAffinity, affinity.podAntiAffinity)
    )


def _required_terms(affinity: _AffinityIn) -> tuple[NodeSelectorTerm, ...] | None:
    required = affinity.nodeAffinity and affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
    return tuple(map(term_of, required.nodeSelectorTerms or ())) if required else None


def _tolerations(spec: PodSpecIn) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "")
        for t in _tolerations_of(spec.tolerations, "spec.tolerations")
    )


def _containers_of(given: list[ContainerIn] | None, where: str) -> tuple[Container, ...]:
    return tuple(
        container_of(one, place, resources_of(one.resources, place))
        for number, one in enumerate(given or ())
        for place in (f"{where}[{number}]",)
    )


def overhead_of(spec: PodSpecIn) -> Amounts:
    """What a pod costs beside its containers."""
    return amounts_of(_overhead_of(spec.overhead, "spec.overhead"), "spec.overhead")


def pod_resources_of(spec: PodSpecIn) -> ResourcesIn:
    """The resources of a pod as a whole."""
    return _resources_of(spec.resources, "spec.resources")


def term_of(term: _TermIn) -> NodeSelectorTerm:
    def requirements(given: list[_RequirementIn] | None) -> tuple[Requirement, ...]:
        return tuple(Requirement(one.key, one.operator, tuple(one.values or ())) for one in given or ())

    return NodeSelectorTerm(requirements(term.matchExpressions), requirements(term.matchFields))
