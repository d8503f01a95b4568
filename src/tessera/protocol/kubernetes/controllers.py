"""What makes pods (Deployments, DaemonSets, Jobs, …), how the pods' processes are started, and the Events reported about them."""

from typing import Final

import msgspec

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

    def config_map_of(self, file: str) -> tuple[str, str] | None:
        """The ConfigMap and the key in which a file lies; None where it lies elsewhere, such as on the node."""
        mounts = [one for container in self.spec.containers or () for one in container.volume_mounts or ()]
        maps = {one.name: one.config_map.name for one in self.spec.volumes or () if one.config_map}
        for mount in sorted(mounts, key=lambda one: -len(one.mount_path)):
            folder = mount.mount_path.rstrip("/") + "/"
            if file.startswith(folder):
                return (maps[mount.name], file.removeprefix(folder)) if mount.name in maps else None
        return None


class WorkloadSpec(Part):
    """How many pods a workload wants, and what they are made from; a Job says the number in another way."""

    replicas: int | None = None
    parallelism: int | None = None
    suspend: bool = False
    selector: LabelSelectorIn = msgspec.field(default_factory=LabelSelectorIn)
    template: PodTemplate = msgspec.field(default_factory=PodTemplate)


class WorkloadStatus(Part):
    replicas: int = 0
    ready_replicas: int = 0
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
        said = (self.status.desired_number_scheduled, self.spec.replicas, self.spec.parallelism)
        return next((number for number in said if number is not None), 1)

    def config_map(self) -> str | None:
        """The ConfigMap in its volume `config`."""
        found = (one.config_map for one in self._volumes("config") if one.config_map)
        return next((one.name for one in found), None)

    def given_secret(self) -> str | None:
        """The Secret with a certificate that it was given, in its volume `tls`."""
        found = (one.secret for one in self._volumes("tls") if one.secret)
        return next((one.secret_name for one in found), None)

    def _volumes(self, name: str) -> list[Volume]:
        return [one for one in self.spec.template.spec.volumes or () if one.name == name]

    def has_flag(self, flag: str) -> bool:
        return any(flag in (one.args or ()) for one in self.spec.template.spec.containers or ())

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

    @property
    def last_seen(self) -> float | None:
        """When it was reported last, as Unix time: which field says so depends on the API that the reporter used."""
        again = self.series.last_observed_time if self.series else None
        known = map(seconds, (again, self.last_timestamp, self.event_time))
        return max((at for at in known if at is not None), default=None)


decode_workload: Final = decoder(Workload)
decode_event: Final = decoder(EventIn)
