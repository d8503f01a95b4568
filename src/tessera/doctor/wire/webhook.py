"""The webhook as the API server knows it: its configuration, its Service, what they are made from."""

import msgspec

from tessera.doctor.wire.metadata import In, LabelSelector, Texts


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


class Version(In):
    """An API server's version."""

    major: str = ""
    minor: str = ""
    git_version: str = ""
