"""Devices: what a node can hand to a container, and handing it out.

A `Device` says which resource it counts for, how it gets into a container (`Edits`, and the CDI kind they are
published under), where it lies, and what is wrong with it. A `DeviceSet` is every device of one resource, and
turns the ids that were chosen into `Assignment`s, all of them or none. Nothing here knows which protocol asks.

A `Transition` leads from the devices that are there to those that are wanted, without taking anything from a running
pod. A device in use that is no longer wanted stays, leaving, until its pod ends: its container can be restarted, and no
other pod gets it. A wanted device that would lie on the same slices waits for that.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.text import escaped, first_of

MAX_ID: Final = 63  # characters, the kubelet's limit


class Handover(StrEnum):
    """How a container gets what it was given."""

    CDI = "cdi"  # by name: the runtime looks the device up
    INLINE = "inline"  # device nodes, mounts and environment spelled out, for runtimes without CDI
    BOTH = "both"


class CannotAssign(TesseraError):
    """Ids that cannot be handed out."""


class UnknownDevice(CannotAssign):
    """An id that this resource does not have."""


class DuplicateDevice(CannotAssign):
    """An id that was asked for twice at once, or that another container holds."""


class UnhealthyDevice(CannotAssign):
    """A device that is there and may not be used."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Edits:
    """What changes in a container that gets a device."""

    env: tuple[tuple[str, str], ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.nodes or self.mounts)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Consecutive memory slices of a card."""

    start: int
    size: int

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class Card:
    index: int
    blocks: tuple[Span, ...] = ()  # every place where a profile of the card could lie, largest first


@dataclass(frozen=True, slots=True)
class Place:
    card: Card
    span: Span

    def conflicts(self, other: "Place") -> bool:
        return self.card.index == other.card.index and self.span.overlaps(other.span)


class DeviceType(StrEnum):
    GPU = "gpu"  # a whole card
    MIG = "mig"  # a slice of one
    DEVICE = "device"  # anything else


@dataclass(frozen=True, slots=True)
class Model:
    """What a device is, in the words by which people choose one."""

    type: DeviceType = DeviceType.DEVICE
    product: str = ""  # of the card: "NVIDIA H200"
    profile: str = ""  # of a slice: "2g.20gb"
    parent: str = ""  # the UUID of the card that it is, or is cut from
    memory_mib: int = 0
    cut: bool = True  # whether it exists now; False: it is cut when a claim gets it


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that a container can be given."""

    id: str
    resource: str
    cdi_kind: str  # vendor/class
    edits: Edits = Edits()  # none: another program publishes the device under its CDI name
    env_list: str = ""  # the environment variable in which a container's devices stand by id, if there is one
    place: Place | None = None
    numa: tuple[int, ...] = ()
    problem: str = ""  # why it is unhealthy; empty when it is healthy
    leaving: bool = False  # in use and no longer wanted: stays for its pod, goes to no other
    model: Model = Model()

    def __post_init__(self) -> None:
        if not 0 < len(self.id) <= MAX_ID:
            raise InvalidInput(
                f'device id "{self.id}" has {len(self.id)} characters, the kubelet takes 1 to {MAX_ID}'
            )

    @property
    def key(self) -> tuple[str, str]:
        """What names it on its node: resource and id."""
        return (self.resource, self.id)

    @property
    def healthy(self) -> bool:
        return not self.problem

    @property
    def cdi_name(self) -> str:
        """The fully qualified name that a container runtime resolves."""
        return f"{self.cdi_kind}={self.id}"

    def overlaps(self, other: "Device") -> bool:
        """Whether only one of the two can exist: a slice of a card belongs to both."""
        return self.place is not None and other.place is not None and self.place.conflicts(other.place)

    def unhealthy(self, problem: str) -> "Device":
        return replace(self, problem=problem)


@dataclass(frozen=True, slots=True)
class Assignment:
    devices: tuple[Device, ...]

    @property
    def cdi_names(self) -> tuple[str, ...]:
        return tuple(device.cdi_name for device in self.devices)

    @property
    def environment(self) -> dict[str, str]:
        listed: dict[str, list[str]] = {}
        for device in self.devices:
            if device.env_list:
                listed.setdefault(device.env_list, []).append(device.id)
        return {name: ",".join(dict.fromkeys(ids)) for name, ids in listed.items()}

    @property
    def edits(self) -> Edits:
        """Every edit of every device, each once: devices may share a library."""
        return Edits(
            env=_each_once(item for device in self.devices for item in device.edits.env),
            nodes=_each_once(item for device in self.devices for item in device.edits.nodes),
            mounts=_each_once(item for device in self.devices for item in device.edits.mounts),
        )


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """Every device of one resource, in the order its source gives them."""

    resource: str
    devices: tuple[Device, ...] = ()
    _by_id: Mapping[str, Device] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_id = {device.id: device for device in self.devices}
        if len(by_id) != len(self.devices):
            twice = sorted({device.id for device in self.devices if by_id[device.id] is not device})
            raise InvalidInput(
                f"{self.resource}: {', '.join(twice[:3])} stands twice: an id names one device"
            )
        object.__setattr__(self, "_by_id", MappingProxyType(by_id))

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def get(self, device_id: str) -> Device | None:
        return self._by_id.get(device_id)

    def find(self, ids: Iterable[str]) -> tuple[Device, ...]:
        """The devices of these ids, which must all be there; healthy or not."""
        wanted = tuple(ids)
        unknown = [device_id for device_id in wanted if device_id not in self._by_id]
        if unknown:
            raise UnknownDevice(
                f"{self.resource} has no device {_shown(unknown)} now ({len(self)} devices in all)"
            )
        return tuple(self._by_id[device_id] for device_id in wanted)

    def assign(
        self, requests: Sequence[Sequence[str]], leaving: Collection[str] = ()
    ) -> tuple[Assignment, ...]:
        """One assignment per container, or an error and nothing at all; `leaving` may be handed out though they leave."""
        counted = Counter(device_id for request in requests for device_id in request)
        twice = [device_id for device_id, times in counted.items() if times > 1]
        if twice:
            raise DuplicateDevice(f"{self.resource}: {_shown(twice)} asked for twice at once")
        unhealthy = [
            device
            for device in self.find(counted)
            if not (device.healthy or (device.leaving and device.id in leaving))
        ]
        if unhealthy:
            raise UnhealthyDevice(
                f"{self.resource}: " + "; ".join(f"{d.id} is unhealthy: {d.problem}" for d in unhealthy[:3])
            )
        return tuple(Assignment(self.find(request)) for request in requests)


def by_resource(devices: Iterable[Device]) -> dict[str, DeviceSet]:
    grouped: dict[str, list[Device]] = {}
    for device in devices:
        grouped.setdefault(device.resource, []).append(device)
    return {resource: DeviceSet(resource, tuple(members)) for resource, members in grouped.items()}


_Item = TypeVar("_Item")


def _each_once(items: Iterable[_Item]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(items))


def _shown(ids: Sequence[str]) -> str:
    return first_of([escaped(device_id, MAX_ID) for device_id in ids], 3)


# Seconds for which a device that a layout took can come back, for a pod that the kubelet chose it for before it knew. The kubelet says
# nothing between the choice and Allocate (devicesToAllocate in its devicemanager, 1.36). An Allocate that comes later is refused
RECALL: Final = 3.0
# The same where the kubelet has shown that it no longer chooses the device (see deviceplugin/withdrawn.py): what is left is a call that is on
# its way. The kubelet calls right after it chose, in the same goroutine, over a unix socket: less than a millisecond. If its processor time is
# limited it can stand still for most of a period of the scheduler (100 ms), in which it gets time; this is three of them
ON_THE_WAY: Final = 0.3


@dataclass(frozen=True, slots=True)
class Transition:
    devices: tuple[Device, ...]  # those that are wanted and can exist now, then those that are leaving
    waiting: tuple[Device, ...] = ()  # wanted, and in the way of what is leaving
    # who uses what is leaving, by its key
    holders: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # ids that were withdrawn a moment ago, and that no pod is given any more
    released: frozenset[str] = frozenset()

    @property
    def leaving(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.leaving)

    @property
    def complete(self) -> bool:
        return not self.waiting and not self.leaving


def transition(
    before: Iterable[Device], wanted: Sequence[Device], held: Mapping[tuple[str, str], str]
) -> Transition:
    """The devices from now on; `held` says who uses a device, by resource and id."""
    keys = {device.key for device in wanted}
    leaving = tuple(
        replace(device, leaving=True, problem=f"no longer wanted, stays for {held[device.key]}")
        for device in before
        if device.key not in keys and device.key in held
    )
    waiting = {
        device.key for device in wanted if device.key not in held and any(map(device.overlaps, leaving))
    }
    return Transition(
        devices=(*(device for device in wanted if device.key not in waiting), *leaving),
        waiting=tuple(device for device in wanted if device.key in waiting),
        holders={device.key: held[device.key] for device in leaving},
    )
