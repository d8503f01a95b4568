"""What namespaces asked for, got, and left idle, in device-seconds, for as long as this server watched. Nothing is estimated.

Asked is what pods asked for before fallback, with a node or without; got is what pods with a node hold; idle is the part of it
that pods hold without running: they start, or end. Missing is what was asked for and not got: the pod waits, or has something
else. Time in which the API server was not heard counts for nothing. Rejected devices have no time: they are counted, once for each
controller's event. Only resources count that some node has: a pod may ask for thousands of invented names.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from heapq import nlargest
from typing import Any, Final, NamedTuple

from tessera.core.devices.capacity import PodUse, in_order
from tessera.core.kubernetes.quantity import ZERO
from tessera.dashboard.totals import short_name
from tessera.protocol.kubernetes.objects import moment
from tessera.serving.metrics import Family, counter, gauge, labelled

# some 3,000 namespaces; about 300 bytes each. Further namespaces are counted together
_MOST_SERIES: Final = 10_000
_KEPT_SECONDS: Final = 3600.0  # for which a counter that no longer grows is there: some Prometheus scrapes
_MOST_REJECTED: Final = 1000  # namespaces and resources
_MOST_SHOWN: Final = 50  # of those, on the page
_OTHER: Final = "other"


class _Series(NamedTuple):
    namespace: str
    resource: str
    kind: str


class _Sum:
    """What grows at a rate: brought up to date only when the rate changes, or is asked about."""

    __slots__ = ("at", "rate", "total")

    def __init__(self, at: float) -> None:
        self.at, self.rate, self.total = at, 0, 0.0

    def change(self, by: int, at: float) -> None:
        self.total, self.at, self.rate = self.until(at), at, self.rate + by

    def until(self, at: float) -> float:
        return self.total + self.rate * (at - self.at)


class NamespaceUse:
    """Adds up, pod by pod; `clock` is seconds that only ever grow, `since` when that began (Unix time)."""

    def __init__(
        self,
        clock: Callable[[], float],
        since: float,
        is_known: Callable[[str], bool] = lambda _: True,  # whether some node has a resource
    ) -> None:
        self._clock = clock
        self._is_known = is_known
        self.since = since
        self._watched = 0.0  # seconds, until the last pause
        self._resumed: float | None = None  # by the clock; None: not watching
        self._sums: dict[_Series, _Sum] = {}
        self.rejected: Counter[tuple[str, str]] = Counter()  # by namespace and resource
        self._pods: dict[Hashable, list[tuple[_Series, int]]] = {}

    def watching(self, *, now: bool) -> None:
        """From now on what is known is how things are, or it is not."""
        if now and self._resumed is None:
            self._resumed = self._clock()
        elif not now and self._resumed is not None:
            self._watched, self._resumed = self._now(), None

    def put(self, key: Hashable, use: PodUse, *, runs: bool) -> None:
        """A pod is there, or is another now."""
        self.remove(key)
        found = list[tuple[_Series, int]]()
        for resource, quantity in (use.asked or use.amounts).items():
            if self._is_known(resource):
                got = use.amounts.get(resource, ZERO) if use.node else ZERO
                found.append((self._series(use.namespace, resource, "asked"), int(quantity.value)))
                if (missing := int((quantity - got).value)) > 0:
                    found.append((self._series(use.namespace, resource, "missing"), missing))
        for resource, quantity in use.amounts.items():
            amount = int(quantity.value)
            if use.node and self._is_known(resource):
                found.append((self._series(use.namespace, resource, "got"), amount))
                if use.ending or not runs:
                    found.append((self._series(use.namespace, resource, "idle"), amount))
        if found:
            self._pods[key] = found
        self._change(found, 1)

    def remove(self, key: Hashable) -> None:
        self._change(self._pods.pop(key, []), -1)

    def reject(self, namespace: str, amounts: Mapping[str, int]) -> None:
        """A pod was rejected that asked for this."""
        for resource, number in amounts.items():
            key = (namespace, resource) if self._is_known(resource) else (namespace, _OTHER)
            if key not in self.rejected and len(self.rejected) >= _MOST_REJECTED:
                key = (_OTHER, _OTHER)
            self.rejected[key] += number

    def now(self) -> dict[str, tuple[int, int, int]]:
        """By resource, how many devices are asked for at this moment, given as asked, and missing."""
        rates: dict[str, Counter[str]] = {}
        for series, one in self._sums.items():
            if one.rate and series.kind in ("asked", "missing"):
                rates.setdefault(series.resource, Counter())[series.kind] += one.rate
        return {r: (n["asked"], n["asked"] - n["missing"], n["missing"]) for r, n in rates.items()}

    def by_namespace(self) -> dict[tuple[str, str], dict[str, float]]:
        """By namespace and resource, device-seconds of each kind so far."""
        now = self._now()
        found: dict[tuple[str, str], dict[str, float]] = {key: {} for key in self.rejected}
        for series, one in self._sums.items():
            found.setdefault((series.namespace, series.resource), {})[series.kind] = one.until(now)
        return found

    def metrics(self) -> Iterator[Family]:
        """The counters, and since when they count."""
        now = self._now()
        for series in [
            one for one, its in self._sums.items() if not its.rate and now - its.at > _KEPT_SECONDS
        ]:
            del self._sums[series]
        yield labelled(
            "tessera_namespace_device_seconds_total",
            "counter",
            "Devices by time: asked for (before fallback), got, idle (got by pods that do not run: they start or end), missing (asked for, not got).",
            ("namespace", "resource", "kind"),
            {tuple(series): round(one.until(now), 3) for series, one in self._sums.items()},
        )
        yield counter(
            "tessera_namespace_watched_seconds_total",
            "Time in which the cluster was watched; nothing else counts.",
            round(now, 3),
        )
        yield gauge(
            "tessera_namespace_watched_since_timestamp_seconds",
            "When counting began, Unix time.",
            self.since,
        )
        yield labelled(
            "tessera_namespace_rejected_devices_total",
            "counter",
            "Devices that rejected pods of controllers asked for; each controller's event counts once.",
            ("namespace", "resource"),
            self.rejected,
        )

    def _series(self, namespace: str, resource: str, kind: str) -> _Series:
        series = _Series(namespace, resource, kind)
        if series not in self._sums and len(self._sums) >= _MOST_SERIES:
            series = _Series(_OTHER, _OTHER, kind)
        self._sums.setdefault(series, _Sum(self._now()))
        return series

    def _change(self, found: list[tuple[_Series, int]], sign: int) -> None:
        now = self._now()
        for series, amount in found:
            self._sums.setdefault(series, _Sum(now)).change(sign * amount, now)

    def _now(self) -> float:
        """Seconds of watching so far."""
        return self._watched + (self._clock() - self._resumed if self._resumed is not None else 0.0)


def demand_part(usage: NamespaceUse) -> dict[str, Any]:
    """What is asked for, got and missing now, and rejected so far, by resource; device-hours of namespaces, those that asked for most first."""
    now, rejected = usage.now(), Counter[str]()
    for (_, resource), number in usage.rejected.items():
        rejected[resource] += number
    spaces = usage.by_namespace()
    shown = nlargest(
        _MOST_SHOWN, spaces, key=lambda key: (spaces[key].get("asked", 0.0), usage.rejected[key])
    )
    kinds = ("asked", "got", "idle", "missing")
    return {
        "since": moment(usage.since),
        "rows": [
            {
                "resource": resource,
                "name": short_name(resource),
                **dict(zip(("asked", "got", "missing"), now.get(resource, (0, 0, 0)), strict=True)),
                "rejected": rejected[resource],
            }
            for resource in in_order({**now, **rejected})
        ],
        "namespaces": [
            {
                "namespace": key[0],
                "name": short_name(key[1]),
                **{kind: round(spaces[key].get(kind, 0.0) / 3600, 1) for kind in kinds},
                "rejected": usage.rejected[key],
            }
            for key in shown
        ],
        "more": len(spaces) - len(shown),
    }
