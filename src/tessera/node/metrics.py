"""The metrics of the device plugin, and what the DRA driver counts as it does."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import Room
from tessera.node.sources.simulated.layout import State
from tessera.serving.metrics import Counts, Family, gauge, labelled

_PREFIX: Final = "tessera_device_plugin"


class NodeMetrics:
    """What the device plugin and the DRA driver count alike, each under a prefix of its own."""

    def __init__(self, prefix: str, clock: Callable[[], float] = time.time) -> None:
        self.events: Mapping[tuple[str, ...], int] = {}  # on the node, by what became of them
        self._prefix = prefix
        self._clock = clock
        self._devices: dict[tuple[str, ...], int] = {}
        self._failures = Counts("what")
        self._layout: dict[tuple[str, ...], int] = {}
        self._layout_since: float | None = None

    def failed(self, what: str) -> None:
        """Something went wrong that will be tried again."""
        self._failures.add(what)

    def layout(self, state: State) -> None:
        """The layout is in this state from now on."""
        self._layout = {(str(each),): int(each is state) for each in State}
        self._layout_since = self._clock()

    def families(self) -> Iterator[Family]:
        """Everything, as it is now."""
        yield self._failures.family(f"{self._prefix}_failures_total", "What went wrong and is tried again.")
        yield labelled(
            f"{self._prefix}_layout_state",
            "gauge",
            "1 for the state that the MIG layout is in.",
            ("state",),
            self._layout,
        )
        yield gauge(
            f"{self._prefix}_layout_age_seconds",
            "How long the MIG layout has been in that state; -1 without a layout.",
            -1 if self._layout_since is None else self._clock() - self._layout_since,
        )
        yield labelled(
            f"{self._prefix}_events_total",
            "counter",
            "Events on the node: written, or dropped (limited, full, failed).",
            ("result",),
            self.events,
        )


class Metrics(NodeMetrics):
    """The device plugin's counters and gauges."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(_PREFIX, clock)
        self._allocations = Counts("resource", "result")
        self._registrations = Counts("resource", "result")
        self._room: dict[tuple[str, ...], int] = {}

    def devices(self, devices: Iterable[Device], resources: Iterable[str]) -> None:
        """Count what there is; resources that have gone count zero."""
        counted = Counter((device.resource, health_of(device)) for device in devices)
        for resource in resources:
            for health in ("healthy", "unhealthy", "leaving"):
                self._devices[resource, health] = counted[resource, health]

    def allocated(self, resource: str, result: str) -> None:
        """One container was given devices, or refused them."""
        self._allocations.add(resource, result)

    def registered(self, resource: str, result: str) -> None:
        """One try to register with the kubelet."""
        self._registrations.add(resource, result)

    def room(self, rooms: Mapping[MigProfile, Room]) -> None:
        """What the simulated cards could still hold: as they are cut, beside that, and cut again."""
        self._room = {
            (str(profile), how): count
            for profile, room in rooms.items()
            for how, count in (("free", room.free), ("beside", room.beside), ("recut", room.recut))
        }

    def families(self) -> Iterator[Family]:
        """Everything, as it is now."""
        yield labelled(
            f"{_PREFIX}_devices",
            "gauge",
            "Devices by resource and health.",
            ("resource", "health"),
            self._devices,
        )
        yield self._allocations.family(
            f"{_PREFIX}_allocations_total", "Containers that were given devices, or refused them."
        )
        yield self._registrations.family(f"{_PREFIX}_registrations_total", "Registrations with the kubelet.")
        yield labelled(
            f"{_PREFIX}_mig_room",
            "gauge",
            "How many more devices of a profile there could be, were nothing else asked for.",
            ("profile", "how"),
            self._room,
        )
        yield from super().families()


def health_of(device: Device) -> str:
    """A device's health, as metrics name it."""
    return "leaving" if device.leaving else "healthy" if device.healthy else "unhealthy"
