"""What was seen of a cluster, and what could not be seen."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tessera.core.dra.slices import PoolId
from tessera.core.kubernetes.node import Namespace, Node
from tessera.diagnosis.evidence import Evidence, SeenPod
from tessera.diagnosis.waiting import WaitingPods, WaitReason
from tessera.kube.view.ticket_keys import TicketSecret
from tessera.protocol.kubernetes.controllers import EventIn, Workload
from tessera.protocol.kubernetes.dra import ClaimIn, ClaimTemplateIn, DeviceClassIn, SliceIn, count_resources
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import Secret, Service, Version, Webhook, WebhookConfiguration

TRIED: Final = "nvidia.com/gpu"  # fallback leaves it alone, so the answer does not depend on the nodes


@dataclass(frozen=True, slots=True)
class Names:
    """What things are called; the defaults are the chart's."""

    namespace: str = "gpu-webhook"
    webhook: str = "gpu-webhook"  # Deployment, Service, label `app`
    configuration: str = "gpu-allocation-webhook"
    try_namespace: str = "default"

    @property
    def upgrade(self) -> str:
        """What puts everything that the chart makes back into its place, with the values that were given."""
        return f"helm upgrade tessera charts/tessera -n {self.namespace} --reset-then-reuse-values"

    @property
    def controller(self) -> str:
        """The certificate controller's Deployment, its account and its label `app`."""
        return f"{self.webhook}-certificates"

    def logs(self, app: str = "") -> str:
        """What shows a part's log; the webhook's, where no other is named."""
        return f"kubectl logs -n {self.namespace} -l app={app or self.webhook}"

    def certificate_secret(self, deployment: Workload | None) -> str:
        """The Secret behind the certificate: with the one that the webhook was given, else with its own authority."""
        named = deployment and (deployment.given_secret() or deployment.spec.template.option("--ca-secret"))
        return named or f"{self.webhook}-ca"


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a pod that was created with a dry run: it asks for a GPU and has no limits."""

    message: str = ""  # the API server's, when it said no
    limits: Mapping[str, str] = field(default_factory=dict)  # of the pod as it would have been stored
    observed: bool = False  # the webhook said what it would have done


@dataclass(frozen=True, slots=True)
class FailedCreate:
    """An event that says that a controller could not create a pod, and that controller as it is now."""

    event: EventIn
    owner: Workload | None = None
    gone: bool = False  # there is no such object any more


@dataclass(frozen=True, slots=True)
class Served:
    """What a replica says of its certificate, in its metrics."""

    pod: str
    ends: float | None = None  # Unix time
    trusted: bool | None = None  # None: it does not say
    follows_pods: bool | None = (
        None  # and so knows what is free; None: that is not asked for, or it does not say
    )


@dataclass(frozen=True, slots=True)
class SchedulerPod:
    """A scheduler that is a pod."""

    pod: str
    file: str = ""  # its configuration; empty: it has none, and runs with its defaults
    text: str | None = None  # what stands in it, where that can be read: it lies in a ConfigMap


@dataclass(frozen=True)
class DynamicAllocation:
    """Devices that are handed out by dynamic resource allocation (DRA)."""

    classes: tuple[DeviceClassIn, ...] = ()
    slices: tuple[SliceIn, ...] = ()
    claims: tuple[ClaimIn, ...] = ()
    templates: tuple[ClaimTemplateIn, ...] = ()
    drivers: tuple[Workload, ...] = ()  # DaemonSets of Tessera's driver
    driver_pods: tuple[PodIn, ...] = ()
    alternatives: tuple[str, ...] = ()  # claims, and templates of claims, that ask for "this, else that"
    schedulers: tuple[SchedulerPod, ...] = ()
    # driver and pool → a name that is there twice in it
    invalid: Mapping[PoolId, str] = field(default_factory=dict)
    # node → extended resource → devices that no claim holds
    free: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @cached_property
    def by_node(self) -> Mapping[str, list[SliceIn]]:
        """The slices of each node that has any."""
        found: dict[str, list[SliceIn]] = {}
        for one in self.slices:
            if one.spec.node_name:
                found.setdefault(one.spec.node_name, []).append(one)
        return found

    def offered(self, node: str) -> Counter[str]:
        """A node's devices of Tessera's driver, by what the device plugin would call them."""
        return count_resources(self.by_node.get(node, ()))


@dataclass(frozen=True)
class Observations:
    """Everything there is to judge. None: there is no such thing, unless `unseen` says that it could not be read."""

    names: Names = field(default_factory=Names)
    now: float = 0.0  # Unix time
    version: Version | None = None
    configuration: WebhookConfiguration | None = None
    deployment: Workload | None = None
    service: Service | None = None
    webhook_pods: tuple[PodIn, ...] = ()
    controller: Workload | None = None  # the certificate controller's Deployment
    controller_pods: tuple[PodIn, ...] = ()
    bridge: bool = False  # requests may become claims somewhere, or are claims
    bridge_controller: Workload | None = None  # tessera controller's Deployment
    bridge_controller_pods: tuple[PodIn, ...] = ()
    secret: Secret | None = None  # behind the webhook's certificate
    ticket_key: TicketSecret | None = None  # that webhook and controller share
    served: tuple[Served, ...] = ()
    may_follow_pods: bool | None = None  # the webhook's account; None: that is not known, or does not matter
    config: str | None = None  # Tessera's configuration, as the ConfigMap has it
    trial: Trial | None = None
    cluster: Evidence = field(default_factory=Evidence)  # by which pods are judged
    namespaces: tuple[Namespace, ...] = ()
    pods: tuple[SeenPod, ...] = ()  # those without a node, and those with a claim
    refusals: tuple[FailedCreate, ...] = ()
    plugins: tuple[Workload, ...] = ()  # DaemonSets of the device plugin
    plugin_pods: tuple[PodIn, ...] = ()
    plugin_configs: Mapping[str, str] = field(
        default_factory=dict
    )  # DaemonSet of plugin or driver → its devices.yaml
    dra: DynamicAllocation = field(default_factory=DynamicAllocation)
    cdi: Mapping[str, bytes] | None = None  # CDI specs by name; None: not a node, or not asked for
    devices: tuple[str, ...] | None = ()  # CDI names that the plugin published; None: it is not known
    unseen: Mapping[str, str] = field(default_factory=dict)  # field → why it could not be read
    # field → objects that cannot be read, and why
    odd: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> list[Node]:
        capacity = self.cluster.inventory.capacity
        return [capacity[name] for name in capacity]

    @cached_property
    def waiting(self) -> list[tuple[SeenPod, WaitReason]]:
        judge = WaitingPods(self.cluster)
        return [(one, judge.why(one)) for one in self.pods if one.waits]

    @property
    def webhooks(self) -> list[Webhook]:
        return (self.configuration.webhooks if self.configuration else None) or []

    @property
    def answers(self) -> bool:
        """Whether the pod that was tried met the webhook: then one is there, whatever else is missing."""
        return self.trial is not None and (TRIED in self.trial.limits or self.trial.observed)
