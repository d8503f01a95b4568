"""What was seen of a cluster, and what could not be seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.pod import Pod
from tessera.doctor import wire
from tessera.protocol.kubernetes.objects import NodeIn


@dataclass(frozen=True, slots=True)
class Names:
    """What things are called; the defaults are the chart's."""

    namespace: str = "gpu-webhook"
    webhook: str = "gpu-webhook"  # Deployment, Service, label `app`
    configuration: str = "gpu-allocation-webhook"
    try_namespace: str = "default"

    @property
    def secret(self) -> str:
        """The Secret with the webhook's own certificate authority."""
        return f"{self.webhook}-ca"


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a pod that was created with a dry run: it asks for a GPU and has no limits."""

    code: int = 201
    message: str = ""  # the API server's, when it said no
    limits: Mapping[str, str] = field(default_factory=dict)  # of the pod as it would have been stored


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that asks for GPUs: what it asks for, and how it is."""

    pod: Pod
    state: wire.PodState


@dataclass(frozen=True, slots=True)
class CdiFile:
    """A file in the folder of CDI specs."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything there is to judge. None: there is no such thing, unless `unseen` says that it could not be looked at."""

    names: Names = field(default_factory=Names)
    now: float = 0.0  # Unix time
    version: wire.Version | None = None
    configuration: wire.WebhookConfiguration | None = None
    deployment: wire.Workload | None = None
    service: wire.Service | None = None
    webhook_pods: tuple[wire.PodState, ...] = ()
    secret: wire.Secret | None = None
    config: str | None = None  # Tessera's configuration, as the ConfigMap has it
    trial: Trial | None = None
    nodes: tuple[NodeIn, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    pods: tuple[SeenPod, ...] = ()  # those that ask for GPUs and have not ended
    refusals: tuple[wire.Event, ...] = ()  # pods that controllers could not create
    plugins: tuple[wire.Workload, ...] = ()  # DaemonSets of the device plugin
    plugin_pods: tuple[wire.PodState, ...] = ()
    plugin_configs: Mapping[str, str] = field(default_factory=dict)  # DaemonSet → its devices.yaml
    cdi: tuple[CdiFile, ...] = ()
    devices: tuple[str, ...] = ()  # CDI names that the plugin told the kubelet
    unseen: Mapping[str, str] = field(default_factory=dict)  # field → why it could not be looked at
