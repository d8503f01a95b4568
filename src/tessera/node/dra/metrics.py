"""The metrics of the DRA driver."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tessera.core.devices.device import Device
from tessera.node.metrics import NodeMetrics, health_of
from tessera.serving.metrics import Counts, Family, counter, gauge, labelled, process_metrics

_PREFIX: Final = "tessera_dra_driver"
_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 40.0)  # seconds; 40: the longest a call waits


class DraMetrics(NodeMetrics):
    """The driver's counters and gauges."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(_PREFIX, clock)
        self._prepares = Counts("result", known=[("prepared",), ("failed",)])
        self._seconds = [0] * (len(_BUCKETS) + 1)
        self._seconds_sum = 0.0
        self._unprepares = 0
        self._writes = Counts("verb", known=[("create",), ("update",), ("delete",)])
        self._registrations = Counts("result", known=[("success",), ("failed",)])
        self.claims = 0  # prepared now
        self.stale = 0  # of them, claims that the API server no longer has
        self.unreadable = 0  # records of claims that cannot be read, nor rebuilt

    def devices(self, devices: Iterable[Device]) -> None:
        """Count what is offered; types that have gone count zero."""
        counted: Counter[tuple[str, ...]] = Counter(
            (str(device.model.type), health_of(device)) for device in devices
        )
        self._devices = {key: counted[key] for key in sorted({*self._devices, *counted})}

    def prepared(self, result: str, seconds: float = 0.0) -> None:
        """One claim was prepared, or could not be."""
        self._prepares.add(result)
        if result == "prepared":
            self._seconds[next((n for n, most in enumerate(_BUCKETS) if seconds <= most), len(_BUCKETS))] += 1
            self._seconds_sum += seconds

    def unprepared(self) -> None:
        """One claim has ended."""
        self._unprepares += 1

    def written(self, verb: str) -> None:
        """One slice was created, updated or deleted."""
        self._writes.add(verb)

    def registered(self, result: str) -> None:
        """The kubelet said what became of a registration."""
        self._registrations.add(result)

    def families(self) -> Iterator[Family]:
        """Everything, as it is now."""
        yield labelled(
            f"{_PREFIX}_devices", "gauge", "Devices by type and health.", ("type", "health"), self._devices
        )
        yield gauge(f"{_PREFIX}_claims", "Claims that are prepared.", self.claims)
        yield gauge(
            f"{_PREFIX}_stale_claims", "Prepared claims that the API server no longer has.", self.stale
        )
        yield gauge(
            f"{_PREFIX}_unreadable_claims",
            "Records of prepared claims that cannot be read, nor rebuilt.",
            self.unreadable,
        )
        yield self._prepares.family(
            f"{_PREFIX}_prepares_total", "Claims that were prepared, or could not be."
        )
        yield self._histogram()
        yield counter(f"{_PREFIX}_unprepares_total", "Claims that have ended.", self._unprepares)
        yield self._writes.family(f"{_PREFIX}_slice_writes_total", "ResourceSlices written, by verb.")
        yield self._registrations.family(f"{_PREFIX}_registrations_total", "Registrations with the kubelet.")
        yield from super().families()
        yield from process_metrics()

    def _histogram(self) -> Family:
        counts, total = [], 0
        for bound, number in zip((*map(str, _BUCKETS), "+Inf"), self._seconds, strict=True):
            total += number
            counts.append(("_bucket", {"le": bound}, total))
        return Family(
            f"{_PREFIX}_prepare_seconds",
            "histogram",
            "How long it took to prepare a claim, waiting included.",
            [*counts, ("_sum", {}, self._seconds_sum), ("_count", {}, total)],
        )
