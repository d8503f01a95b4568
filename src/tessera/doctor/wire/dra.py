"""Dynamic resource allocation: classes, slices, claims, and how a scheduler is started."""

import msgspec

from tessera.core.dra.slices import LEAVING
from tessera.doctor.wire.metadata import In, Meta
from tessera.doctor.wire.workloads import Volume


class ClassSpec(In):
    """A DeviceClass's spec."""

    extended_resource_name: str = ""


class DeviceClass(In):
    """A DeviceClass."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: ClassSpec = msgspec.field(default_factory=ClassSpec)


class Pool(In):
    """What a slice belongs to."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class Attribute(In):
    """An attribute of a device, where it is a text."""

    string: str = ""


class Taint(In):
    """A taint of a device."""

    key: str = ""


class Device(In):
    """A device that is offered."""

    attributes: dict[str, Attribute] | None = None
    taints: list[Taint] | None = None

    @property
    def leaving(self) -> bool:
        """Whether it is in use and no longer wanted."""
        return any(taint.key == LEAVING for taint in self.taints or ())


class SliceSpec(In):
    """A ResourceSlice's spec."""

    driver: str = ""
    node_name: str = ""
    pool: Pool = msgspec.field(default_factory=Pool)
    devices: list[Device] | None = None
    shared_counters: list[msgspec.Raw] | None = None


class ResourceSlice(In):
    """A ResourceSlice."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


class DeviceRequest(In):
    """One request of a claim."""

    first_available: list[msgspec.Raw] | None = None


class Requests(In):
    """All requests of a claim."""

    requests: list[DeviceRequest] | None = None


class ClaimSpec(In):
    """A ResourceClaim's spec."""

    devices: Requests = msgspec.field(default_factory=Requests)

    @property
    def has_alternatives(self) -> bool:
        """Whether one of its requests is "this, else that"."""
        return any(len(one.first_available or ()) > 1 for one in self.devices.requests or ())


class Claim(In):
    """A ResourceClaim."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)


class TemplateOfClaims(In):
    """A ResourceClaimTemplate's spec."""

    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)


class ClaimTemplate(In):
    """A ResourceClaimTemplate."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: TemplateOfClaims = msgspec.field(default_factory=TemplateOfClaims)


class Mount(In):
    """Where a container sees a volume."""

    name: str = ""
    mount_path: str = ""


class SchedulerContainer(In):
    """A container of a scheduler."""

    command: list[str] | None = None
    args: list[str] | None = None
    volume_mounts: list[Mount] | None = None


class SchedulerPodSpec(In):
    """How a scheduler's pod is started."""

    containers: list[SchedulerContainer] | None = None
    volumes: list[Volume] | None = None


class SchedulerPod(In):
    """A pod of the scheduler."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: SchedulerPodSpec = msgspec.field(default_factory=SchedulerPodSpec)

    @property
    def config_file(self) -> str:
        """The file that `--config` names; empty: there is none, so it runs with its defaults."""
        for container in self.spec.containers or ():
            words: list[str] = [*(container.command or ()), *(container.args or ())]
            for word, after in zip(words, [*words[1:], ""], strict=True):
                if word == "--config":
                    return after
                if word.startswith("--config="):
                    return word.partition("=")[2]
        return ""

    def config_map(self, file: str) -> tuple[str, str] | None:
        """The ConfigMap and the key in which a file lies; None where it lies elsewhere, such as on the node."""
        mounts = [one for container in self.spec.containers or () for one in container.volume_mounts or ()]
        maps = {one.name: one.config_map.name for one in self.spec.volumes or () if one.config_map}
        for mount in sorted(mounts, key=lambda one: -len(one.mount_path)):
            folder = mount.mount_path.rstrip("/") + "/"
            if file.startswith(folder):
                return (maps[mount.name], file.removeprefix(folder)) if mount.name in maps else None
        return None
