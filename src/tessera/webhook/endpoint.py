"""`POST /mutate`: one admission, from request bytes to response bytes; answered, counted and logged.

    bytes → AdmissionRequest → decide → operations, tried on the object → bytes

A cluster's pods come from templates, so the same question comes again and again: responses are kept by everything
they depend on (`AdmissionRequest.key`) for as long as the cluster's offers, the namespace's quotas and the configuration stay
the same.
"""

import time
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import Final

import msgspec

from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.outcome import Allowed, Decision, Denied, Observed, Patched
from tessera.core.admission.policy import Mode, Policy, mode_in
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quota import Quota
from tessera.core.mig.geometry import is_known
from tessera.core.requests.asking import Demand, demand_of
from tessera.protocol.admission import review
from tessera.protocol.admission.patch import Operation
from tessera.protocol.admission.review import AdmissionRequest
from tessera.protocol.configuration.webhook import Configuration, OnError
from tessera.serving.logs import Log, Record
from tessera.webhook.http.messages import TEXT, Response, Route
from tessera.webhook.metrics import Metrics, OutcomeLabel
from tessera.webhook.reviewed import decide_workload, review_new_pod

_MOST_REMEMBERED: Final = 16 * 2**20  # bytes of responses: some 4,000 templates of the usual size
_LARGEST: Final = 64 * 1024  # bytes of one of them; larger pods are decided each time
_OVERHEAD: Final = 720  # bytes of one, beside its texts (tracemalloc)
_INCOMPLETE: Final = "the view of the cluster is not complete yet"
_FAILED: Final = "the decision failed unexpectedly; the webhook's log says why"


class CachedResponse(msgspec.Struct, frozen=True, gc=False):
    """What is answered to all pods that ask the same, and what counters and the log say about it: worked out once."""

    tail: bytes  # of the answer; only its uid is each pod's own
    outcome: OutcomeLabel
    level: str
    record: Record
    replaced: tuple[tuple[str, str], ...] = ()  # as counted: a profile that no card has is "other"
    injected: bool = False
    rejected: str | None = None  # why, as the counter names it
    observed: bool = False  # all of this would be, and is not
    quotas: tuple[Quota, ...] | None = None  # of the namespace, by which it was decided
    conversion: str = ""  # what became of a request that could be a claim
    demand: Demand = ()  # the GPUs that were asked for, and what becomes of that
    by: str = ""  # where `when: full` holds: `full`, or why what is free does not matter
    cause: str = "missing"  # of what is replaced

    @property
    def size(self) -> int:
        """About how many bytes of memory its texts take."""
        return len(self.tail) + 2 * len(self.record.json)  # which is kept as texts too

    @classmethod
    def of(
        cls,
        given: Decision | Observed,
        operations: Sequence[Operation] = (),
        quotas: tuple[Quota, ...] | None = None,
        workload: str | None = None,
        pod: Pod | None = None,
    ) -> "CachedResponse":
        """The response that carries a decision; `workload` is whose templates it is about, if not a pod."""
        is_observed = isinstance(given, Observed)
        decision = given.would if isinstance(given, Observed) else given
        outcome = OutcomeLabel.of(decision)
        word = outcome.name.lower()
        if is_observed and outcome is not OutcomeLabel.UNCHANGED:
            word = f"would be {word}"
        denied = decision if isinstance(decision, Denied) else None
        replaced = decision.replaced if isinstance(decision, Patched) else ()
        gpu_type = decision.gpu_type if isinstance(decision, Patched) else None
        asked, chosen = map(",".join, zip(*replaced, strict=True)) if replaced else (None, None)
        record = Record(
            decision=word,
            workload=workload,
            mode=Mode.OBSERVE.value if is_observed else None,
            reason=decision.message if isinstance(decision, Denied) else decision.reason,
            asked=asked,
            chosen=chosen,
            gpu_type=gpu_type,
        )
        return cls(
            review.tail(given, operations),
            outcome,
            "warning" if denied else "info",
            record,
            replaced=tuple((old if is_known(old) else "other", new) for old, new in replaced),
            injected=gpu_type is not None,
            rejected=denied.code if denied else None,
            observed=is_observed,
            quotas=quotas,
            conversion="" if isinstance(decision, Denied) else decision.conversion,
            demand=demand_of(
                pod,
                (old for old, _ in replaced),
                rejected=denied is not None,
                unmet=not isinstance(decision, Denied) and decision.unmet,
            )
            if pod is not None and decision.by != "marked"  # it was counted when it came first
            else (),
            by=decision.by,
            cause=decision.cause if isinstance(decision, Patched) else "missing",
        )


class ResponseCache:
    """Responses by what they depend on, bounded in bytes; the oldest go first."""

    def __init__(self) -> None:
        self._responses: dict[tuple[object, ...], CachedResponse] = {}
        self._sizes: dict[tuple[object, ...], int] = {}
        self.bytes = 0
        self.get = self._responses.get

    def __len__(self) -> int:
        return len(self._responses)

    def keep(self, key: tuple[object, ...], response: CachedResponse) -> None:
        """Remember one, unless it is too large."""
        size = _OVERHEAD + response.size + sum([getsizeof(part) for part in key if part])
        if key in self._sizes:  # decided again
            del self._responses[key]
            self.bytes -= self._sizes.pop(key)
        if size > _LARGEST:
            return
        self.bytes += size
        while self.bytes > _MOST_REMEMBERED:
            oldest = next(iter(self._responses))
            del self._responses[oldest]
            self.bytes -= self._sizes.pop(oldest)
        self._responses[key], self._sizes[key] = response, size

    def forget(self) -> None:
        self._responses.clear()
        self._sizes.clear()
        self.bytes = 0


class Admission:
    """Responses on reviews: pure but for the memory of them."""

    def __init__(
        self, view: ClusterView, policy: Policy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.view = view
        self._clock = clock  # of who follows pods
        self.policy = policy  # the configuration that decisions follow
        self.memory = ResponseCache()
        self._responses_for = view.version

    def configure(self, policy: Policy) -> None:
        """Follow this from the next request on."""
        self.policy = policy
        self.memory.forget()

    def answer(self, body: bytes) -> bytes:
        """Answer a review; raises `InvalidReview` (HTTP 400) for what is none."""
        request = review.decode(body)
        return review.wrap(request.uid, self.response(request).tail)

    def response(self, request: AdmissionRequest) -> CachedResponse:
        """The response to a request; raises `BeyondLimits` for a pod that nothing is decided about."""
        if request.pod is None:
            return _ALLOWED if request.workload is None else self._workload(request)
        if self._responses_for != self.view.version:
            self.memory.forget()
            self._responses_for = self.view.version
        key = request.key(self.policy.annotations)
        known = self.memory.get(key)
        quotas = self.view.quotas.get(request.namespace)
        if known is None or known.quotas is not quotas:
            reviewed = review_new_pod(request, self.view, self.policy, self._clock)
            known = CachedResponse.of(reviewed.decision, reviewed.operations, quotas, pod=reviewed.pod)
            if known.by != "full":  # that holds for this one pod
                self.memory.keep(key, known)
        return known

    def _workload(self, request: AdmissionRequest) -> CachedResponse:
        """The response to an object that makes pods; few are created, so it is worked out each time."""
        found = decide_workload(request, self.view, self.policy)
        if found is None:
            return _ALLOWED
        return CachedResponse.of(found.decision, found.operations, workload=found.title)


_ALLOWED: Final = CachedResponse.of(review.ALLOWED)


class Endpoint:
    """The handler around the pure one: responses where that one has none, counters, log lines."""

    def __init__(
        self,
        admission: Admission,
        missing: Callable[[], str | None],  # what keeps the view from being complete
        metrics: Metrics,
        log: Log,
        # of fallbacks and rejections; never waits
        report: Callable[[AdmissionRequest, CachedResponse], None] | None = None,
    ) -> None:
        self._report = report
        self._admission = admission
        self._missing: Callable[[], str | None] | None = missing
        self._metrics = metrics
        self._log = log
        self._on_error: OnError = "allow"

    def configure(self, configuration: Configuration) -> None:
        self._admission.configure(configuration.policy)
        self._on_error = configuration.on_error
        self._metrics.by_namespace = configuration.demand_by_namespace

    def route(self) -> Route:
        return Route(self.handle, b"POST", json=True)

    def handle(self, body: bytes) -> Response:
        begun = time.perf_counter_ns()
        try:
            request = review.decode(body)
            response = self._response(request)
        except InvalidInput as error:
            self._metrics.count(OutcomeLabel.INVALID, time.perf_counter_ns() - begun, self._metrics.enforced)
            self._log.warning("not a review", error=str(error))
            return Response(400, f"{error}\n".encode(), TEXT)
        self._record(request, response, time.perf_counter_ns() - begun)
        return Response(200, review.wrap(request.uid, response.tail))

    def _response(self, request: AdmissionRequest) -> CachedResponse:
        if self._missing is not None and (request.pod is not None or request.workload is not None):
            if self._missing() is not None:
                return self._undecided(request, _INCOMPLETE, 503, "ServiceUnavailable")
            self._missing = None  # once the view is complete, it stays so and is not asked again
        try:
            return self._admission.response(request)
        except InvalidInput:
            raise
        except BeyondLimits as error:
            self._metrics.beyond_limits += 1
            return self._undecided(request, str(error), 403, "Forbidden")
        except Exception as error:  # noqa: BLE001 # one pod must not keep others from being admitted
            self._log.unexpected("decision failed", error)
            return self._undecided(request, _FAILED, 500, "InternalError")

    def _undecided(self, request: AdmissionRequest, why: str, code: int, reason: str) -> CachedResponse:
        """What the configuration says for when nothing can be decided; observe mode rejects no pod."""
        admission = self._admission
        namespace = admission.view.namespaces.get(request.namespace)
        observes = mode_in(namespace, admission.policy.mode) is Mode.OBSERVE
        on_error = "allow" if observes else self._on_error
        if on_error == "allow":
            tail = review.tail(Allowed("", warnings=(f"GPU requests were not looked at: {why}",)), ())
        else:
            tail = review.refusal(f"GPU requests could not be looked at: {why}", code, reason)
        record = Record(decision=f"{on_error} (on error)", reason=why)
        return CachedResponse(tail, OutcomeLabel.ERROR, "error", record)

    def _record(self, request: AdmissionRequest, response: CachedResponse, spent: int) -> None:
        """Count and log; `spent` in nanoseconds."""
        metrics = self._metrics
        counters = metrics.observed if response.observed else metrics.enforced
        metrics.count(response.outcome, spent, counters)
        for asked, given in response.replaced:
            counters.fallbacks.add(asked, given)
            counters.causes.add(response.cause)
        if response.by:
            counters.by_free.add(response.by)
        counters.injected += response.injected
        if response.conversion:
            counters.conversions.add(response.conversion)
        if response.rejected is not None:
            counters.rejections.add(response.rejected)
        for profile, result, number in response.demand:
            counters.demand.add(profile, result, number)
            if metrics.by_namespace:
                counters.demand_of_namespaces.add((*profile, request.namespace), result, number)
        if self._report is not None and (response.replaced or response.rejected is not None):
            self._report(request, response)
        if request.pod is not None or request.workload is not None:
            self._log.admission(
                response.level, request.uid, request.namespace, request.name, spent // 1000, response.record
            )
