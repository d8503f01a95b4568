"""The webhook as the API server knows it: its configuration, its Service, and what they are made from."""

import msgspec

from tessera.protocol.kubernetes.objects import Expression, LabelSelectorIn, Metadata, Part, Texts


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


class ConfigMap(Part):
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
