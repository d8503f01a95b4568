"""The webhook as the API server knows it: its configuration, its Service, and what they are made from."""

from typing import Final

import msgspec

from tessera.protocol.kubernetes.objects import (
    Expression,
    LabelSelectorIn,
    Metadata,
    ObjectReference,
    Part,
    Texts,
    decoder,
)


class ServiceReference(Part):
    name: str = ""
    namespace: str = ""
    path: str = "/"
    port: int | None = None


class ClientConfig(Part):
    service: ServiceReference | None = None
    url: str | None = None
    ca_bundle: bytes | None = None


class Rule(Part):
    operations: list[str] | None = None
    api_groups: list[str] | None = None
    api_versions: list[str] | None = None
    resources: list[str] | None = None


class Webhook(Part):
    name: str = ""
    client_config: ClientConfig = msgspec.field(default_factory=ClientConfig)
    rules: list[Rule] | None = None
    namespace_selector: LabelSelectorIn | None = None
    object_selector: LabelSelectorIn | None = None
    match_conditions: list[Expression] | None = None
    failure_policy: str = "Fail"
    timeout_seconds: int = 10
    side_effects: str = ""
    reinvocation_policy: str = "Never"


class WebhookConfiguration(Part):
    metadata: Metadata
    webhooks: list[Webhook] | None = None


class ServicePort(Part):
    port: int = 0


class ServiceSpec(Part):
    selector: Texts = None
    ports: list[ServicePort] | None = None


class Service(Part):
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class EndpointConditions(Part):
    ready: bool = True  # one that does not say is, as in Kubernetes


class EndpointIn(Part):
    conditions: EndpointConditions = msgspec.field(default_factory=EndpointConditions)


class EndpointSlice(Part):
    """Some of the endpoints of a Service."""

    metadata: ObjectReference = msgspec.field(default_factory=ObjectReference)
    endpoints: list[EndpointIn] | None = None

    @property
    def is_ready(self) -> bool:
        return any(one.conditions.ready for one in self.endpoints or ())


class ConfigMap(Part):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    data: Texts = None


class Secret(Part):
    metadata: Metadata
    data: dict[str, bytes] | None = None


class Version(Part):
    major: str = ""
    minor: str = ""
    git_version: str = ""


class AccessReviewStatus(Part):
    allowed: bool = False


class AccessReview(Part):
    """What an account may do (SubjectAccessReview)."""

    status: AccessReviewStatus = msgspec.field(default_factory=AccessReviewStatus)


decode_config_map: Final = decoder(ConfigMap)
decode_endpoint_slice: Final = decoder(EndpointSlice)
