"""What Prometheus, the kubelet and load balancers ask: what was counted, what the parts show, alive, ready."""

import enum
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from tessera.core.admission.bridge import CONVERSIONS
from tessera.core.admission.fallback.full import EVERY_BY
from tessera.core.admission.outcome import REJECTIONS, Decision, Denied, Patched
from tessera.core.admission.policy import Policy, is_bridge_on
from tessera.core.admission.view.offers import Offers
from tessera.core.requests.asking import DemandResult
from tessera.kube.event_recorder import Recorder
from tessera.kube.view.files import FileView
from tessera.kube.view.live import LiveView
from tessera.protocol.configuration.webhook import Configuration
from tessera.serving.logs import Log
from tessera.serving.metrics import (
    CONTENT_TYPE,
    Counts,
    Family,
    Labels,
    Number,
    counter,
    exposition,
    gauge,
    histogram,
    labelled,
    process_metrics,
)
from tessera.serving.reload import Followed
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import TEXT, Response, Route

# 50 µs, where admissions are, to 1 s, where something is very wrong
_BOUNDS: Final = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0)
_TEXT_SECONDS: Final = 1.0  # a scrape gets the same text for so long: it takes a millisecond to write
_BOUNDS_NS: Final = [round(bound * 1e9) for bound in _BOUNDS]
_DEMANDED: Final = ("asked", "got", "rejected")  # at the places that `DemandResult` has
_MOST_DEMANDS: Final = 1000  # profiles and namespaces; each has three series
_OTHER: Final = "other"
_OK: Final = Response(200, b"ok\n", TEXT)
Check = Callable[[], str | None]  # None when all is well, or else what is missing, in a few words


class OutcomeLabel(enum.IntEnum):
    """How one admission ended."""

    UNCHANGED = 0
    PATCHED = 1
    REJECTED = 2
    INVALID = 3  # not a review that could be answered: 400
    ERROR = 4  # an exception in the decision, or no complete view: the configured verdict

    @classmethod
    def of(cls, decision: Decision) -> "OutcomeLabel":
        """How an admission ends with a decision."""
        if isinstance(decision, Denied):
            return cls.REJECTED
        return cls.PATCHED if isinstance(decision, Patched) else cls.UNCHANGED


class DemandCounters:
    """Devices by the profile that was asked for, or by profile and namespace: asked for, got as asked, rejected."""

    def __init__(self, *labels: str) -> None:
        self._labels = labels
        self._rows: dict[tuple[str, ...], list[int]] = {}

    def add(self, key: tuple[str, ...], result: DemandResult, number: int) -> None:
        """Count what a pod asked for; the hot path."""
        row = self._rows.get(key)
        if row is None:
            full = len(self._rows) >= _MOST_DEMANDS
            row = self._rows.setdefault((_OTHER,) * len(key) if full else key, [0] * len(_DEMANDED))
        row[0] += number
        if result:
            row[result] += number

    def samples(self) -> Iterable[tuple[Labels, Number]]:
        for key, row in self._rows.items():
            labels = dict(zip(self._labels, key, strict=True))
            yield from (({**labels, "result": what}, n) for what, n in zip(_DEMANDED, row, strict=True))


class DecisionCounters:
    """What became of pods; or, in observe mode, what would have become of them."""

    def __init__(self) -> None:
        self.outcomes = [0] * len(OutcomeLabel)
        self.fallbacks = Counts("from", "to")
        self.causes = Counts("reason", known=(("missing",), ("full",)))
        self.by_free = Counts("way", known=((one,) for one in EVERY_BY))
        self.rejections = Counts("reason", known=((code,) for code in REJECTIONS))
        self.injected = 0
        self.conversions = Counts("way", known=((one,) for one in CONVERSIONS))
        self.demand = DemandCounters("profile")
        self.demand_of_namespaces = DemandCounters("profile", "namespace")

    def samples(self) -> Iterable[tuple[str, str, Iterable[tuple[Labels, Number]]]]:
        """Every counter: its name, its help, its labels and values."""
        outcomes = [({"outcome": one.name.lower()}, self.outcomes[one]) for one in OutcomeLabel]
        yield "gpu_webhook_requests_total", "Admission reviews, by outcome.", outcomes
        text = "GPU requests rewritten, by the profile asked for and the profile given."
        yield "gpu_webhook_fallback_total", text, self.fallbacks.samples()
        text = "The same by reason: no node offers what was asked for (missing), or none has it free (full)."
        yield "gpu_webhook_fallback_reason_total", text, self.causes.samples()
        text = "Pods for which fallback.when is full: decided by what is free (full), or why as with missing."
        yield "gpu_webhook_fallback_full_total", text, self.by_free.samples()
        yield "gpu_webhook_rejections_total", "Pods rejected, by reason.", self.rejections.samples()
        text = "GPUs by the profile asked for: asked; got, as asked; rejected. The rest got something else, or waits for what no node offers."
        yield "gpu_webhook_demand_total", text, self.demand.samples()
        text = "The same by namespace (server.demandByNamespace)."
        yield "gpu_webhook_namespace_demand_total", text, self.demand_of_namespaces.samples()
        text = "Pods whose GPU request could be a claim (fallback.dra: first-available): claim, or why not converted."
        yield "gpu_webhook_bridge_total", text, self.conversions.samples()
        text = "Pods that got resources for their GPUs."
        yield "gpu_webhook_injected_pods_total", text, [({}, self.injected)]


class Metrics:
    """The counters of admission, and a list of the parts that have something to show, too.

    What observe mode counts has one more label, `mode="observe"`; the other series are as they are without it.
    """

    def __init__(self, version: str) -> None:
        self.enforced = DecisionCounters()
        self.observed = DecisionCounters()
        self.beyond_limits = 0
        self.by_namespace = False  # whether demand is counted by namespace too
        self._version = version
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._nanoseconds = 0
        self._sources: list[Callable[[], Iterable[Family]]] = [self._own, process_metrics]
        self._shown = Response(200, b"", CONTENT_TYPE.encode())
        self._shown_until = -1.0

    def add_source(self, source: Callable[[], Iterable[Family]]) -> None:
        """Have this called for its metrics at every scrape."""
        self._sources.append(source)

    def count(self, outcome: OutcomeLabel, nanoseconds: int, counters: DecisionCounters) -> None:
        """One admission, and how long it took. The hot path."""
        counters.outcomes[outcome] += 1
        self._buckets[bisect_left(_BOUNDS_NS, nanoseconds)] += 1
        self._nanoseconds += nanoseconds

    def text(self) -> bytes:
        return exposition(family for source in self._sources for family in source())

    def route(self) -> Route:
        """`GET /metrics`."""
        return Route(lambda _: self._scraped(time.monotonic()))

    def _scraped(self, now: float) -> Response:
        if now >= self._shown_until:
            self._shown = Response(200, self.text(), CONTENT_TYPE.encode())
            self._shown_until = now + _TEXT_SECONDS
        return self._shown

    def _own(self) -> Iterable[Family]:
        both = zip(self.enforced.samples(), self.observed.samples(), strict=True)
        for (name, text, done), (_, _, would) in both:
            observed = [("", {**labels, "mode": "observe"}, value) for labels, value in would]
            yield Family(name, "counter", text, [*(("", *one) for one in done), *observed])
        text, seconds = "Time from a whole review to its answer, inside the webhook.", self._nanoseconds / 1e9
        yield histogram("gpu_webhook_request_duration_seconds", text, _BOUNDS, self._buckets, seconds)
        text = "Pods that were too large to decide about, or took too long."
        yield counter("gpu_webhook_beyond_limits_total", text, self.beyond_limits)
        text = "Always 1; the labels say which versions run."
        versions = {(self._version, platform.python_version()): 1}
        yield labelled("gpu_webhook_build_info", "gauge", text, ["version", "python"], versions)


def server_metrics(listener: Listener) -> Iterable[Family]:
    counts = listener.counters
    yield gauge("gpu_webhook_connections", "Open connections.", len(listener.connections))
    yield counter("gpu_webhook_connections_accepted_total", "Connections opened.", counts.accepted)
    yield counter("gpu_webhook_connections_refused_total", "Connections closed to make room.", counts.refused)
    text = "Connections that failed in the TLS handshake."
    yield counter("gpu_webhook_tls_handshake_failures_total", text, counts.handshake_failures)
    text = "Requests refused before a handler got them."
    yield counter("gpu_webhook_http_bad_requests_total", text, counts.bad_requests)
    text = "Requests refused, and clients closed, because gpu_webhook_http_reading_bytes was at its limit."
    yield counter("gpu_webhook_http_crowded_out_total", text, counts.crowded_out)
    text = "Bytes of requests that wait for an answer, and of answers that clients do not read."
    yield gauge("gpu_webhook_http_reading_bytes", text, listener.buffered)
    yield counter("gpu_webhook_http_timeouts_total", "Requests that did not arrive in time.", counts.timeouts)
    yield counter("gpu_webhook_http_faults_total", "Exceptions answered with 500.", counts.faults)


def memory_metrics(responses: int, labels: int, headers: int) -> Iterable[Family]:
    """The caches, in bytes; each has a limit."""
    sizes = {("verdicts",): responses, ("label_tables",): labels, ("heads",): headers}
    text = "Approximate size of the caches, in bytes."
    yield labelled("gpu_webhook_remembered_bytes", "gauge", text, ["what"], sizes)


def reload_metrics(followed: Followed[Configuration]) -> Iterable[Family]:
    yield counter("gpu_webhook_config_reloads_total", "Configurations loaded.", followed.good)
    yield counter("gpu_webhook_config_reload_errors_total", "Configurations refused.", followed.bad)
    text = "1 while the configuration in use is the one in the file."
    yield gauge("gpu_webhook_config_last_reload_successful", text, int(followed.current))
    text = "When the configuration in use was read, Unix time."
    yield gauge("gpu_webhook_config_last_reload_success_timestamp_seconds", text, followed.last_good)


def view_metrics(view: LiveView | FileView) -> Iterable[Family]:
    yield gauge("gpu_webhook_node_view_nodes", "Nodes in the view.", len(view.offers.nodes))
    text = "1 once all objects are listed."
    yield gauge("gpu_webhook_node_view_complete", text, int(view.missing() is None))
    if isinstance(view, FileView):
        text = "Files of --from that were refused."
        yield counter("gpu_webhook_node_view_file_errors_total", text, view.failures)
        return
    text = "DeviceClasses whose CEL cannot be evaluated for some device. The device counts as selected."
    yield gauge("gpu_webhook_node_view_unevaluated_classes", text, len(view.dra.class_errors))
    followed, labels = view.reflectors, ["resource"]
    ages = {(one.resource.name,): age for one in followed if (age := one.age) is not None}
    text = "Time since the API server last sent anything."
    yield labelled("gpu_webhook_node_view_age_seconds", "gauge", text, labels, ages)
    lists = {(one.resource.name,): one.health.lists for one in followed}
    text = "Complete lists read. More than one is a relist."
    yield labelled("gpu_webhook_node_view_lists_total", "counter", text, labels, lists)
    watches = {(one.resource.name,): one.health.watches for one in followed}
    yield labelled("gpu_webhook_node_view_watches_total", "counter", "Watches begun.", labels, watches)
    errors = {(one.resource.name, kind): n for one in followed for kind, n in one.health.errors.items()}
    text = "Failures to list or watch, by kind."
    yield labelled("gpu_webhook_node_view_errors_total", "counter", text, [*labels, "kind"], errors)


def free_metrics(view: LiveView | FileView) -> Iterable[Family]:
    """What is known of what is free, where decisions may go by that."""
    if not view.follows_pods:
        return
    free = view.offers.free
    text = "1 while it is known what is free; 0 while decisions are as with fallback.when: missing. Only where pods are followed."
    yield gauge("gpu_webhook_free_view_known", text, int(free is not None))
    yield gauge("gpu_webhook_free_view_pods", "Pods in the view.", len(free.pods) if free else 0)
    admitted, waiting = (free.reservations, free.waiting) if free else (0, 0)
    rooms = free.rooms if free else 0
    text = "Pods that are not bound: admitted here and not seen yet, or waiting."
    unbound = {("admitted",): admitted, ("waiting",): waiting}
    yield labelled("gpu_webhook_free_view_unbound_pods", "gauge", text, ["state"], unbound)
    text = "Of these, pods that what is free on some node is kept for."
    yield gauge("gpu_webhook_free_view_rooms", text, rooms)
    text = "Of these, rooms beyond the share of their namespace: they count against that namespace alone."
    yield gauge("gpu_webhook_free_view_own_rooms", text, free.own_rooms if free else 0)
    text = "Pods that wait for something else than a device, by why: nothing that is free is kept for them."
    blocked = {(block,): number for block, number in free.blocked.items()} if free else {}
    yield labelled("gpu_webhook_free_view_blocked_pods", "gauge", text, ["reason"], blocked)
    text = "Pods that ask for more than is kept of one pod: nothing that is free is kept for them."
    yield gauge("gpu_webhook_free_view_partial_pods", text, free.partial if free else 0)


def controller_metrics(offers: Offers, policy: Policy) -> Iterable[Family]:
    """Whether the controller is at work, where requests may become claims."""
    if is_bridge_on(offers.namespaces.values(), policy.fallback.dra):
        text = "1 while tessera controller renews its Lease. Only where requests may become claims."
        yield gauge("gpu_webhook_controller_at_work", text, int(offers.controller))


def event_metrics(recorder: Recorder) -> Iterable[Family]:
    text = (
        "Events on pods' owners: written; or dropped, because the object had too many (limited), too many waited (full), "
        "or the API server refused them (failed)."
    )
    yield labelled("gpu_webhook_events_total", "counter", text, ["result"], recorder.counts)


def log_metrics(log: Log) -> Iterable[Family]:
    text = "Log lines dropped, because they could not be written in time."
    yield counter("gpu_webhook_log_lines_dropped_total", text, log.dropped)


class Readiness:
    """The checks that readiness consists of. Being alive is answering at all."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def require(self, name: str, check: Check) -> None:
        """From now on, not ready while this check has something to say."""
        self._checks[name] = check

    def missing(self) -> list[str]:
        return [f"{name}: {word}" for name, check in self._checks.items() if (word := check()) is not None]

    def routes(self) -> dict[bytes, Route]:
        """`/livez`, `/readyz` and `/healthz` (an older name of livez)."""
        return {
            b"/livez": Route(lambda _: _OK),
            b"/healthz": Route(lambda _: _OK),
            b"/readyz": Route(lambda _: self._ready()),
        }

    def _ready(self) -> Response:
        missing = self.missing()
        if not missing:
            return _OK
        return Response(503, "".join(f"not ready: {one}\n" for one in missing).encode(), TEXT)
