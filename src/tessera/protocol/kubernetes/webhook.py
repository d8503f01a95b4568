"""The webhook as the API server knows it: its configuration, its Service, and what they are made from."""

from typing import Final

import msgspec

from tessera.protocol.kubernetes.metadata import LabelSelectorIn, Texts
from tessera.protocol.kubernetes.objects import MetaIn, Part, decoder


class ServiceReference(Part):
    """Which Service the API server calls."""

    name: str = ""
    namespace: str = ""
    port: int | None = None


class ClientConfig(Part):
    """How the API server calls, and whom it trusts."""

    service: ServiceReference | None = None
    url: str | None = None
    ca_bundle: bytes | None = None


class Rule(Part):
    """What is sent."""

    operations: list[str] | None = None
    resources: list[str] | None = None


class MatchCondition(Part):
    """Which pods, in CEL."""

    expression: str = ""


class Webhook(Part):
    """One webhook of a configuration."""

    name: str = ""
    client_config: ClientConfig = msgspec.field(default_factory=ClientConfig)
    rules: list[Rule] | None = None
    namespace_selector: LabelSelectorIn | None = None
    object_selector: LabelSelectorIn | None = None
    match_conditions: list[MatchCondition] | None = None
    failure_policy: str = "Fail"
    timeout_seconds: int = 10
    side_effects: str = ""
    reinvocation_policy: str = "Never"


class WebhookConfiguration(Part):
    """MutatingWebhookConfiguration."""

    metadata: MetaIn
    webhooks: list[Webhook] | None = None


class ServicePort(Part):
    """A port of a Service."""

    port: int = 0


class ServiceSpec(Part):
    """A Service's spec."""

    selector: Texts = None
    ports: list[ServicePort] | None = None


class Service(Part):
    """A Service."""

    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class ConfigMap(Part):
    """A ConfigMap."""

    data: Texts = None


class Secret(Part):
    """A Secret."""

    metadata: MetaIn
    data: dict[str, bytes] | None = None


class Version(Part):
    """An API server's version."""

    major: str = ""
    minor: str = ""
    git_version: str = ""


decode_config_map: Final = decoder(ConfigMap)
