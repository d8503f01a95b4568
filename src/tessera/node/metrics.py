"""The metrics of the device plugin and of the DRA driver: what both count alike, and what each counts beside it."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import Room
from tessera.node.sources.layout import State
from tessera.serving.metrics import Counts, Family, counter, gauge, histogram, labelled, process_metrics

_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 40.0)  # seconds; 40: the longest a call waits


class NodeMetrics:
    """What the device plugin and the DRA driver count alike, each under a prefix of its own."""

    prefix: str

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.events: Mapping[tuple[str, ...], int] = {}  # on the node, by what became of them
        self._clock = clock
        self._devices: dict[tuple[str, ...], int] = {}
        self._failures = Counts("what")
        self.cuts = Counts("result", known=[("done",), ("failed",)])  # of real cards, as claims ask for it
        self._layout: dict[tuple[str, ...], int] = {}
        self._layout_since: float | None = None

    def failed(self, what: str) -> None:
        self._failures.add(what)

    def layout(self, state: State) -> None:
        """The layout is in this state; how long it has been is counted from the first time."""
        now: dict[tuple[str, ...], int] = {(str(each),): int(each is state) for each in State}
        if now != self._layout:
            self._layout, self._layout_since = now, self._clock()

    def families(self) -> Iterator[Family]:
        text = "What went wrong and is tried again."
        yield self._failures.family(f"{self.prefix}_failures_total", text)
        text = "1 for the state that the MIG layout is in."
        yield labelled(f"{self.prefix}_layout_state", "gauge", text, ("state",), self._layout)
        text = "How long the MIG layout has been in that state; -1 without a layout."
        age = -1 if self._layout_since is None else self._clock() - self._layout_since
        yield gauge(f"{self.prefix}_layout_age_seconds", text, age)
        text = "Events on the node: written, or dropped (limited, full, failed)."
        yield labelled(f"{self.prefix}_events_total", "counter", text, ("result",), self.events)


class Metrics(NodeMetrics):
    """The device plugin's counters and gauges."""

    prefix = "tessera_device_plugin"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self.allocations = Counts("resource", "result")  # containers that were given devices, or refused them
        self.registrations = Counts("resource", "result")  # tries to register with the kubelet
        self._room: dict[tuple[str, ...], int] = {}

    def devices(self, devices: Iterable[Device], resources: Iterable[str]) -> None:
        """Count what there is; resources that have gone count zero."""
        counted = Counter((device.resource, _health_of(device)) for device in devices)
        for resource in resources:
            for health in ("healthy", "unhealthy", "leaving"):
                self._devices[resource, health] = counted[resource, health]

    def room(self, rooms: Mapping[MigProfile, Room]) -> None:
        """What the simulated cards could still hold: as they are cut, beside that, and cut again."""
        self._room = {
            (str(profile), how): count
            for profile, room in rooms.items()
            for how, count in (("free", room.free), ("beside", room.beside), ("recut", room.recut))
        }

    def families(self) -> Iterator[Family]:
        labels, text = ("resource", "health"), "Devices by resource and health."
        yield labelled(f"{self.prefix}_devices", "gauge", text, labels, self._devices)
        text = "Containers that were given devices, or refused them."
        yield self.allocations.family(f"{self.prefix}_allocations_total", text)
        text = "Registrations with the kubelet."
        yield self.registrations.family(f"{self.prefix}_registrations_total", text)
        labels = ("profile", "how")
        text = "How many more devices of a profile there could be, were nothing else asked for."
        yield labelled(f"{self.prefix}_mig_room", "gauge", text, labels, self._room)
        yield from super().families()


class DraMetrics(NodeMetrics):
    """The DRA driver's counters and gauges."""

    prefix = "tessera_dra_driver"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._prepares = Counts("result", known=[("prepared",), ("failed",)])
        self._seconds = [0] * (len(_BUCKETS) + 1)
        self._seconds_sum = 0.0
        self._unprepares = 0
        self.slice_writes = Counts("verb", known=[("create",), ("update",), ("delete",)])
        self.registrations = Counts("result", known=[("success",), ("failed",)])  # as the kubelet says
        self.claims = 0  # prepared now
        self.stale = 0  # of them, claims that the API server no longer has
        self.unreadable = 0  # records of claims that cannot be read, nor rebuilt

    def devices(self, devices: Iterable[Device]) -> None:
        """Count what is offered; types that have gone count zero."""
        counted: Counter[tuple[str, ...]] = Counter(
            (str(device.model.type), _health_of(device)) for device in devices
        )
        self._devices = {key: counted[key] for key in sorted({*self._devices, *counted})}

    def prepared(self, result: str, seconds: float = 0.0) -> None:
        """One claim was prepared, or could not be."""
        self._prepares.add(result)
        if result == "prepared":
            self._seconds[bisect_left(_BUCKETS, seconds)] += 1
            self._seconds_sum += seconds

    def unprepared(self) -> None:
        self._unprepares += 1

    def families(self) -> Iterator[Family]:
        labels, text = ("type", "health"), "Devices by type and health."
        yield labelled(f"{self.prefix}_devices", "gauge", text, labels, self._devices)
        yield gauge(f"{self.prefix}_claims", "Claims that are prepared.", self.claims)
        text = "Prepared claims that the API server no longer has."
        yield gauge(f"{self.prefix}_stale_claims", text, self.stale)
        text = "Records of prepared claims that cannot be read, nor rebuilt."
        yield gauge(f"{self.prefix}_unreadable_claims", text, self.unreadable)
        text = "Claims that were prepared, or could not be."
        yield self._prepares.family(f"{self.prefix}_prepares_total", text)
        text = "How long it took to prepare a claim, waiting included."
        yield histogram(f"{self.prefix}_prepare_seconds", text, _BUCKETS, self._seconds, self._seconds_sum)
        yield counter(f"{self.prefix}_unprepares_total", "Claims that have ended.", self._unprepares)
        yield self.slice_writes.family(
            f"{self.prefix}_slice_writes_total", "ResourceSlices written, by verb."
        )
        text = "Registrations with the kubelet."
        yield self.registrations.family(f"{self.prefix}_registrations_total", text)
        text = "Cuts of real cards for claims: done, or not all of it."
        yield self.cuts.family(f"{self.prefix}_cuts_total", text)
        yield from super().families()
        yield from process_metrics()


def _health_of(device: Device) -> str:
    return "leaving" if device.leaving else "healthy" if device.healthy else "unhealthy"
