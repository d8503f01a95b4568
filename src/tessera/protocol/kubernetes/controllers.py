"""What makes pods (Deployments, DaemonSets, Jobs, …), how the pods' processes are started, the Events reported about them, and why a pod was rejected."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from tessera.core.admission.fallback.found import wanted_in
from tessera.core.text import shortened
from tessera.protocol.kubernetes.objects import (
    Condition,
    LabelSelectorIn,
    Metadata,
    NameOnly,
    ObjectReference,
    Part,
    decoder,
    seconds,
)

WEBHOOK: Final = "gpu-allocation.k8s.io"  # the chart's webhook.webhookName
FAILED_CREATE: Final = "FailedCreate"  # the Event's reason, whichever controller could not create a pod
# Seconds. A controller tries again after 1000 s at the latest (client-go's DefaultControllerRateLimiter): after this long
# without a new event it has stopped trying, or succeeded.
RECENT: Final = 1800.0
LONGEST_MESSAGE: Final = 1024  # characters of an Event's message: as much as events.k8s.io/v1 takes
# the API server's words for a pod that a webhook rejects
_DENIED: Final = re.compile(
    r'admission webhook "(?P<webhook>[^"]*)" denied the request: (?P<reason>.*)', re.DOTALL
)


class Denial(NamedTuple):
    """A webhook rejected a pod."""

    webhook: str
    reason: str

    @property
    def wanted(self) -> dict[str, int]:
        """The GPUs that no node offers, if that is why; nothing where it is another reason, or another webhook's."""
        return wanted_in(self.reason)

    @property
    def is_ours(self) -> bool:
        """Whether Tessera's webhook rejected the pod: it has the chart's name, or one of its messages."""
        return self.webhook == WEBHOOK or bool(self.wanted)


def denial_in(message: str) -> Denial | None:
    """The webhook that rejected a pod, and why, by a controller's message; None where no webhook did."""
    found = _DENIED.search(message)
    return Denial(found["webhook"], found["reason"]) if found else None


class SecretVolume(Part):
    secret_name: str = ""


class Volume(Part):
    name: str = ""
    config_map: NameOnly | None = None
    secret: SecretVolume | None = None


class VolumeMount(Part):
    name: str = ""
    mount_path: str = ""


class ContainerPort(Part):
    name: str = ""
    container_port: int = 0


class Process(Part):
    command: list[str] | None = None
    args: list[str] | None = None
    ports: list[ContainerPort] | None = None
    volume_mounts: list[VolumeMount] | None = None


class TemplateSpec(Part):
    volumes: list[Volume] | None = None
    containers: list[Process] | None = None
    service_account_name: str = ""


class PodTemplate(Part):
    """A pod, or what pods are made from: how it is started."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: TemplateSpec = msgspec.field(default_factory=TemplateSpec)

    def option(self, name: str) -> str | None:
        """What an option of its containers is set to, `--option=value` or `--option value`; None: it is not given."""
        for container in self.spec.containers or ():
            words: list[str] = [*(container.command or ()), *(container.args or ())]
            for word, after in zip(words, [*words[1:], ""], strict=True):
                if word == name:
                    return after
                if word.startswith(f"{name}="):
                    return word.partition("=")[2]
        return None

    def volume_of(self, file: str) -> tuple[Volume, str]:
        """The volume in which a file lies, and the file's name there; an empty volume where none is mounted there."""
        mounts = [one for container in self.spec.containers or () for one in container.volume_mounts or ()]
        volumes = {one.name: one for one in self.spec.volumes or ()}
        for mount in sorted(mounts, key=lambda one: -len(one.mount_path)):
            folder = mount.mount_path.rstrip("/") + "/"
            if file.startswith(folder):
                return volumes.get(mount.name, Volume()), file.removeprefix(folder)
        return Volume(), ""


class ConditionPattern(Part):
    type: str = ""
    status: str = "True"


class FailureRule(Part):
    action: str = ""
    on_pod_conditions: list[ConditionPattern] | None = None  # without them a rule is about exit codes


class PodFailurePolicy(Part):
    """What a Job does about pods that fail."""

    rules: list[FailureRule] | None = None


class WorkloadSpec(Part):
    """How many pods a workload wants, and what they are made from; a Job says the number in another way."""

    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool = False
    pod_failure_policy: PodFailurePolicy | None = None
    selector: LabelSelectorIn = msgspec.field(default_factory=LabelSelectorIn)
    template: PodTemplate = msgspec.field(default_factory=PodTemplate)


class WorkloadStatus(Part):
    replicas: int = 0
    ready_replicas: int = 0
    active: int = 0
    succeeded: int = 0
    desired_number_scheduled: int | None = None
    number_ready: int = 0
    conditions: list[Condition] | None = None


class Workload(Part):
    """A Deployment, a DaemonSet, a Job, or another controller of pods."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: WorkloadSpec = msgspec.field(default_factory=WorkloadSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)

    @property
    def ended(self) -> str:
        """How a Job has ended; empty while it has not."""
        found = (one.type for one in self.status.conditions or () if one.status == "True")
        return next((kind for kind in found if kind in ("Complete", "Failed")), "")

    @property
    def wanted(self) -> int:
        """How many pods it wants; a workload that does not say wants one."""
        counts = (self.status.desired_number_scheduled, self.spec.replicas, self.spec.parallelism)
        return next((number for number in counts if number is not None), 1)

    @property
    def missing(self) -> int:
        """How many of the pods that it wants it does not have."""
        spec, status = self.spec, self.status
        if self.ended or spec.suspend or self.metadata.deletion_timestamp:
            return 0
        wanted, has = self.wanted, status.replicas
        if spec.parallelism is not None:  # a Job
            left = wanted if spec.completions is None else spec.completions - status.succeeded
            wanted, has = min(wanted, left), status.active
        return max(0, wanted - has)

    @property
    def failure(self) -> str:
        """Why it cannot create pods, as the condition of ReplicaSets and Deployments has it; empty where it has none."""
        found = (one for one in self.status.conditions or () if one.type == "ReplicaFailure")
        return next((one.message for one in found if one.status == "True"), "")

    def config_map(self) -> str | None:
        """The ConfigMap in its volume `config`."""
        volumes = (one for one in self.spec.template.spec.volumes or () if one.name == "config")
        return next((one.config_map.name for one in volumes if one.config_map), None)

    def given_secret(self) -> str | None:
        """The Secret that it has its certificate from."""
        volume, _ = self.spec.template.volume_of(self.spec.template.option("--tls-cert") or "")
        return volume.secret.secret_name if volume.secret else None

    def port(self, name: str) -> int | None:
        containers = self.spec.template.spec.containers or ()
        return next((p.container_port for c in containers for p in c.ports or () if p.name == name), None)


class Series(Part):
    last_observed_time: str | None = None


class EventIn(Part):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    involved_object: ObjectReference = msgspec.field(default_factory=ObjectReference)
    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None
    series: Series | None = None

    def __post_init__(self) -> None:
        """Keep of the message what people read: in version v1 an Event of a tenant can have a megabyte."""
        self.message = shortened(self.message, LONGEST_MESSAGE)

    @property
    def last_seen(self) -> float | None:
        """When it was reported last, as Unix time: which field says so depends on the API that the reporter used."""
        again = self.series.last_observed_time if self.series else None
        known = map(seconds, (again, self.last_timestamp, self.event_time))
        return max((at for at in known if at is not None), default=None)


def latest_refusal(events: Iterable[EventIn], now: float) -> EventIn | None:
    """The last event on why pods could not be created; None where there is none, or none of late."""
    failed = [one for one in events if one.reason == FAILED_CREATE]
    recent = [one for one in failed if not one.last_seen or now - one.last_seen < RECENT]
    return max(recent, key=lambda one: one.last_seen or 0.0, default=None)


decode_workload: Final = decoder(Workload)
decode_event: Final = decoder(EventIn)
