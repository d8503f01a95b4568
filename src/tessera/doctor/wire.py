"""The few fields of Kubernetes objects that checks look at, as they are on the wire."""

from typing import Any

import msgspec

from tessera.protocol.kubernetes.objects import MetaIn

Texts = dict[str, str] | None


class In(msgspec.Struct, rename="camel"):
    """A part of an object; what is not named is skipped."""


# MutatingWebhookConfiguration


class ServiceReference(In):
    """Which Service the API server calls."""

    name: str = ""
    namespace: str = ""
    port: int | None = None


class ClientConfig(In):
    """How the API server calls, and whom it trusts."""

    service: ServiceReference | None = None
    url: str | None = None
    ca_bundle: bytes | None = None


class Rule(In):
    """What is sent."""

    operations: list[str] | None = None
    resources: list[str] | None = None


class MatchExpression(In):
    """One expression of a label selector."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(In):
    """Which namespaces."""

    match_labels: Texts = None
    match_expressions: list[MatchExpression] | None = None


class MatchCondition(In):
    """Which pods, in CEL."""

    expression: str = ""


class Webhook(In):
    """One webhook of a configuration."""

    name: str = ""
    client_config: ClientConfig = msgspec.field(default_factory=ClientConfig)
    rules: list[Rule] | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    match_conditions: list[MatchCondition] | None = None
    failure_policy: str = "Fail"
    timeout_seconds: int = 10
    side_effects: str = ""
    reinvocation_policy: str = "Never"


class WebhookConfiguration(In):
    """MutatingWebhookConfiguration."""

    webhooks: list[Webhook] | None = None


# Deployments, DaemonSets, Services


class KeyRef(In):
    """A ConfigMap in a volume."""

    name: str = ""


class Volume(In):
    """A volume of a pod."""

    name: str = ""
    config_map: KeyRef | None = None


class Container(In):
    """A container of a pod template."""

    args: list[str] | None = None


class TemplateSpec(In):
    """A pod template's spec."""

    volumes: list[Volume] | None = None
    containers: list[Container] | None = None


class Template(In):
    """A pod template."""

    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)


class WorkloadSpec(In):
    """A Deployment's or DaemonSet's spec."""

    replicas: int = 1
    selector: LabelSelector = msgspec.field(default_factory=LabelSelector)
    template: Template = msgspec.field(default_factory=Template)


class WorkloadStatus(In):
    """Its status."""

    ready_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class Workload(In):
    """A Deployment or a DaemonSet."""

    metadata: MetaIn
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)

    def config_map(self) -> str | None:
        """The ConfigMap in its volume `config`."""
        for volume in self.spec.template.spec.volumes or ():
            if volume.name == "config" and volume.config_map:
                return volume.config_map.name
        return None


class ServicePort(In):
    """A port of a Service."""

    port: int = 0


class ServiceSpec(In):
    """A Service's spec."""

    selector: Texts = None
    ports: list[ServicePort] | None = None


class Service(In):
    """A Service."""

    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class ConfigMap(In):
    """A ConfigMap."""

    data: Texts = None


class Secret(In):
    """A Secret."""

    data: dict[str, bytes] | None = None


# Pods


class Waiting(In):
    """Why a container does not run."""

    reason: str = ""
    message: str = ""


class Terminated(In):
    """How a container ended."""

    reason: str = ""
    exit_code: int = 0


class ContainerState(In):
    """What a container does."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(In):
    """A container as the kubelet sees it."""

    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState = msgspec.field(default_factory=ContainerState)


class Condition(In):
    """A condition of a pod."""

    type: str = ""
    status: str = ""
    message: str = ""


class PodStatus(In):
    """A pod's status."""

    phase: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None

    def condition(self, kind: str) -> Condition:
        """A condition, empty where there is none."""
        return next((one for one in self.conditions or () if one.type == kind), Condition())


class PodPlace(In):
    """Where a pod is."""

    node_name: str = ""


class PodState(In):
    """A pod: where and how it is."""

    metadata: MetaIn
    spec: PodPlace = msgspec.field(default_factory=PodPlace)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def ready(self) -> bool:
        """Whether it is to be sent requests."""
        return self.status.condition("Ready").status == "True"


# Events, versions, lists


class ObjectReference(In):
    """What an event is about."""

    kind: str = ""
    name: str = ""
    namespace: str = ""


class Event(In):
    """Something that a controller told."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    message: str = ""


class Version(In):
    """An API server's version."""

    major: str = ""
    minor: str = ""
    git_version: str = ""


class Page(In):
    """A page of a list, its objects unread."""

    items: list[msgspec.Raw] | None = None


def resources_of(pod: dict[str, Any]) -> dict[str, str]:
    """The limits of a pod's first container, in the answer to a dry run."""
    containers = pod.get("spec", {}).get("containers") or [{}]
    limits = containers[0].get("resources", {}).get("limits") or {}
    return {str(name): str(amount) for name, amount in limits.items()}
