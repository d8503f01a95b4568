"""What can be seen of the plugin from outside."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as Total

from tessera.core.devices.device import Device
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import Room

_PREFIX: Final = "tessera_device_plugin"
LAYOUT_STATES: Final = ("success", "pending", "failed")


class Metrics:
    """The plugin's metrics, in a registry of their own."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._devices = Gauge(
            f"{_PREFIX}_devices",
            "Devices by resource and health.",
            ("resource", "health"),
            registry=self.registry,
        )
        self._allocations = Total(
            f"{_PREFIX}_allocations",
            "Containers that were given devices, or refused them.",
            ("resource", "result"),
            registry=self.registry,
        )
        self._registrations = Total(
            f"{_PREFIX}_registrations",
            "Registrations with the kubelet.",
            ("resource", "result"),
            registry=self.registry,
        )
        self._failures = Total(
            f"{_PREFIX}_failures", "What went wrong and is tried again.", ("what",), registry=self.registry
        )
        self._layout = Gauge(
            f"{_PREFIX}_layout_state",
            "1 for the state that the MIG layout is in.",
            ("state",),
            registry=self.registry,
        )
        self._room = Gauge(
            f"{_PREFIX}_mig_room",
            "How many more devices of a profile there could be, were nothing else asked for.",
            ("profile", "how"),
            registry=self.registry,
        )
        self._layout_since: float | None = None
        age = Gauge(
            f"{_PREFIX}_layout_age_seconds",
            "How long the MIG layout has been in that state; -1 without a layout.",
            registry=self.registry,
        )
        age.set_function(self._layout_age)

    def devices(self, devices: Iterable[Device], resources: Iterable[str]) -> None:
        """Count what there is; resources that have gone count zero."""
        counted = Counter((device.resource, _health(device)) for device in devices)
        for resource in resources:
            for health in ("healthy", "unhealthy", "leaving"):
                self._devices.labels(resource, health).set(counted[resource, health])

    def allocated(self, resource: str, result: str) -> None:
        """One container was given devices, or refused them."""
        self._allocations.labels(resource, result).inc()

    def registered(self, resource: str, result: str) -> None:
        """One try to register with the kubelet."""
        self._registrations.labels(resource, result).inc()

    def failed(self, what: str) -> None:
        """Something went wrong that will be tried again."""
        self._failures.labels(what).inc()

    def layout(self, state: str) -> None:
        """The layout is in this state from now on."""
        for each in LAYOUT_STATES:
            self._layout.labels(each).set(each == state)
        self._layout_since = self._clock()

    def room(self, rooms: Mapping[MigProfile, Room]) -> None:
        """What the simulated cards could still hold: as they are cut, beside that, and cut anew."""
        self._room.clear()
        for profile, room in rooms.items():
            for how, count in (("free", room.free), ("beside", room.beside), ("recut", room.recut)):
                self._room.labels(str(profile), how).set(count)

    def _layout_age(self) -> float:
        return -1.0 if self._layout_since is None else self._clock() - self._layout_since


def _health(device: Device) -> str:
    return "leaving" if device.leaving else "healthy" if device.healthy else "unhealthy"
