"""The few fields of Kubernetes objects that checks look at, as they are on the wire."""

from datetime import datetime
from typing import Any

import msgspec

Texts = dict[str, str] | None


class In(msgspec.Struct, rename="camel"):
    """A part of an object; what is not named is skipped."""


# Metadata


class OwnerReference(In):
    """What an object belongs to."""

    kind: str = ""
    name: str = ""
    controller: bool = False


class Meta(In):
    """Metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Texts = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def created(self) -> float | None:
        """When it was made, as Unix time."""
        return seconds(self.creation_timestamp)

    @property
    def controller(self) -> OwnerReference | None:
        """The controller that made it, if one did."""
        return next((one for one in self.owner_references or () if one.controller), None)


def seconds(text: str | None) -> float | None:
    """A time as the API server writes it, as Unix time; None where it says none."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


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


class SecretRef(In):
    """A Secret in a volume."""

    secret_name: str = ""


class Volume(In):
    """A volume of a pod."""

    name: str = ""
    config_map: KeyRef | None = None
    secret: SecretRef | None = None


class ContainerPort(In):
    """A port of a container."""

    name: str = ""
    container_port: int = 0


class Container(In):
    """A container of a pod template."""

    args: list[str] | None = None
    ports: list[ContainerPort] | None = None


class TemplateSpec(In):
    """A pod template's spec."""

    volumes: list[Volume] | None = None
    containers: list[Container] | None = None


class Template(In):
    """A pod template."""

    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)


class WorkloadSpec(In):
    """A Deployment's, DaemonSet's or ReplicaSet's spec."""

    replicas: int = 1
    selector: LabelSelector = msgspec.field(default_factory=LabelSelector)
    template: Template = msgspec.field(default_factory=Template)


class WorkloadStatus(In):
    """Its status."""

    replicas: int = 0
    ready_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class Workload(In):
    """A Deployment, a DaemonSet, or another controller of pods."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)

    def config_map(self) -> str | None:
        """The ConfigMap in its volume `config`."""
        for volume in self.spec.template.spec.volumes or ():
            if volume.name == "config" and volume.config_map:
                return volume.config_map.name
        return None

    def given_secret(self) -> str | None:
        """The Secret with a certificate that it was given, in its volume `tls`."""
        for volume in self.spec.template.spec.volumes or ():
            if volume.name == "tls" and volume.secret:
                return volume.secret.secret_name
        return None

    def argument(self, option: str) -> str | None:
        """What an option of its containers is set to: `--option=value`."""
        for container in self.spec.template.spec.containers or ():
            for one in container.args or ():
                if one.startswith(f"{option}="):
                    return one.partition("=")[2]
        return None

    def port(self, name: str) -> int | None:
        """A port of its containers, by name."""
        containers = self.spec.template.spec.containers or ()
        return next((p.container_port for c in containers for p in c.ports or () if p.name == name), None)


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

    metadata: Meta = msgspec.field(default_factory=Meta)
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
    uid: str = ""


class Series(In):
    """Of an event that came again."""

    last_observed_time: str | None = None


class Event(In):
    """Something that a controller told."""

    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None
    series: Series | None = None

    @property
    def last_seen(self) -> float | None:
        """When it was told last, as Unix time: which field says so depends on the API that the controller used."""
        again = self.series.last_observed_time if self.series else None
        known = [
            at for text in (again, self.last_timestamp, self.event_time) if (at := seconds(text)) is not None
        ]
        return max(known, default=None)


class Version(In):
    """An API server's version."""

    major: str = ""
    minor: str = ""
    git_version: str = ""


class Page(In):
    """A page of a list, its objects unread."""

    items: list[msgspec.Raw] | None = None


class NameOnly(In):
    """An object's name."""

    name: str = ""
    namespace: str = ""


class Named(In):
    """Any object, of which nothing else is known."""

    metadata: NameOnly = msgspec.field(default_factory=NameOnly)


# A node's files


class RememberedDevice(msgspec.Struct):
    """A device in the plugin's own record."""

    id: str
    cdi_kind: str


def resources_of(pod: dict[str, Any]) -> dict[str, str]:
    """The limits of a pod's first container, in the answer to a dry run."""
    containers = pod.get("spec", {}).get("containers") or [{}]
    limits = containers[0].get("resources", {}).get("limits") or {}
    return {str(name): str(amount) for name, amount in limits.items()}
