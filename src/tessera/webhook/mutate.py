"""`POST /mutate`: an admission that is answered, counted and told, whatever happens to it."""

import time
from collections.abc import Callable
from typing import Final

from tessera.core.admission import Admit, Decision, Reject, Rewrite
from tessera.core.errors import InvalidInput
from tessera.protocol import review
from tessera.protocol.config import Configuration, OnError
from tessera.protocol.review import Request
from tessera.webhook.handler import Admission
from tessera.webhook.http import TEXT, Answer, Route
from tessera.webhook.logs import Log
from tessera.webhook.metrics import Metrics, Outcome

_INCOMPLETE: Final = "the view of the cluster is not complete yet"
_FAILED: Final = "the decision failed unexpectedly; the webhook's log says why"


class Mutate:
    """The handler around the pure one: verdicts where that one has none, counters, log lines."""

    def __init__(
        self,
        admission: Admission,
        missing: Callable[[], str | None],  # what keeps the view from being complete
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._admission = admission
        self._missing: Callable[[], str | None] | None = missing
        self._metrics = metrics
        self._log = log
        self._on_error: OnError = "allow"

    def configure(self, configuration: Configuration) -> None:
        """Follow this from the next request on."""
        self._admission.policy = configuration.policy
        self._on_error = configuration.server.on_error

    def route(self) -> Route:
        """What the server calls."""
        return Route(self, b"POST", json=True)

    def __call__(self, body: bytes) -> Answer:
        """Answer one review."""
        begun = time.perf_counter_ns()
        try:
            if self._missing is not None and not self._complete():
                return self._verdict(body, begun, _INCOMPLETE, 503, "ServiceUnavailable")
            judged = self._admission.answer(body)
        except InvalidInput as error:
            self._metrics.count(Outcome.INVALID, time.perf_counter_ns() - begun)
            self._log.warning("not a review", error=str(error))
            return Answer(400, f"{error}\n".encode(), TEXT)
        except Exception as error:  # noqa: BLE001 # one pod must not keep others from being admitted
            self._log.trouble("decision failed", error)
            return self._verdict(body, begun, _FAILED, 500, "InternalError")
        self._record(judged.request, judged.decision, begun)
        return Answer(200, judged.body)

    def _complete(self) -> bool:
        """Whether the view is complete; once it is, it stays so and is not asked again."""
        if self._missing is not None and self._missing() is None:
            self._missing = None
        return self._missing is None

    def _verdict(self, body: bytes, begun: int, why: str, code: int, reason: str) -> Answer:
        """What the configuration says for when nothing can be decided."""
        request = review.decode(body)
        if request.pod is None:  # nothing to decide: nothing is missing for that
            self._record(request, review.ALLOWED, begun)
            return Answer(200, review.response(request.uid, review.ALLOWED, ()))
        if self._on_error == "allow":
            tail = review.tail(Admit("", warnings=(f"GPU requests were not looked at: {why}",)), ())
        else:
            tail = review.refusal(f"GPU requests could not be looked at: {why}", code, reason)
        spent = time.perf_counter_ns() - begun
        self._metrics.count(Outcome.ERROR, spent)
        self._tell("error", request, f"{self._on_error} (on error)", why, spent)
        return Answer(200, review.wrap(request.uid, tail))

    def _record(self, request: Request, decision: Decision, begun: int) -> None:
        metrics = self._metrics
        if isinstance(decision, Rewrite):
            outcome, level, word = Outcome.PATCHED, "info", "patched"
            for asked, given in decision.replaced:
                metrics.fallbacks.add(asked, given)
            if decision.gpu_type is not None:
                metrics.injected += 1
        elif isinstance(decision, Reject):
            outcome, level, word = Outcome.REJECTED, "warning", "rejected"
            metrics.rejections.add(decision.code)
        else:
            outcome, level, word = Outcome.UNCHANGED, "info", "unchanged"
        spent = time.perf_counter_ns() - begun
        metrics.count(outcome, spent)
        if request.pod is not None:
            self._tell(
                level,
                request,
                word,
                decision.message if isinstance(decision, Reject) else decision.reason,
                spent,
                **_named(decision),
            )

    def _tell(
        self, level: str, request: Request, decision: str, reason: str, nanoseconds: int, **more: str | None
    ) -> None:
        self._log.admission(
            level,
            uid=request.uid,
            namespace=request.namespace,
            pod=request.name,
            decision=decision,
            reason=reason,
            microseconds=nanoseconds // 1000,
            **more,
        )


def _named(decision: Decision) -> dict[str, str | None]:
    """What a pod asked for and what was chosen for it, as fields to search a log by."""
    if not isinstance(decision, Rewrite):
        return {}
    asked, chosen = (
        (",".join(names) for names in zip(*decision.replaced, strict=True))
        if decision.replaced
        else (None, None)
    )
    return {"asked": asked, "chosen": chosen, "gpu_type": decision.gpu_type}
