"""Deployments, DaemonSets and other controllers of pods, and what they tell in events."""

import msgspec

from tessera.doctor.wire.metadata import In, LabelSelector, Meta, seconds


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
    service_account_name: str = ""


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

    def has_flag(self, flag: str) -> bool:
        """Whether one of its containers is started with an option that has no value."""
        return any(flag in (one.args or ()) for one in self.spec.template.spec.containers or ())

    def port(self, name: str) -> int | None:
        """A port of its containers, by name."""
        containers = self.spec.template.spec.containers or ()
        return next((p.container_port for c in containers for p in c.ports or () if p.name == name), None)


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


class Page(In):
    """A page of a list, its objects unread."""

    items: list[msgspec.Raw] | None = None
