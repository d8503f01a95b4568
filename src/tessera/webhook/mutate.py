"""`POST /mutate`: an admission that is answered, counted and told, whatever happens to it."""

import time
from collections.abc import Callable
from typing import Final

from tessera.core.admission.decision import Admit
from tessera.core.errors import InvalidInput
from tessera.protocol.admission import review
from tessera.protocol.admission.review import Request
from tessera.protocol.configuration.webhook import Configuration, OnError
from tessera.serving.logs import Log, Record
from tessera.webhook.account import Account
from tessera.webhook.endpoint import Admission
from tessera.webhook.http.messages import TEXT, Answer, Route
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
        self._record(judged.request, judged.account, begun)
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
            self._record(request, Account.of(review.ALLOWED), begun)
            return Answer(200, review.response(request.uid, review.ALLOWED, ()))
        if self._on_error == "allow":
            tail = review.tail(Admit("", warnings=(f"GPU requests were not looked at: {why}",)), ())
        else:
            tail = review.refusal(f"GPU requests could not be looked at: {why}", code, reason)
        told = Record(decision=f"{self._on_error} (on error)", reason=why)
        self._record(request, Account(Outcome.ERROR, "error", told), begun)
        return Answer(200, review.wrap(request.uid, tail))

    def _record(self, request: Request, account: Account, begun: int) -> None:
        spent = time.perf_counter_ns() - begun
        metrics = self._metrics
        metrics.count(account.outcome, spent)
        for asked, given in account.replaced:
            metrics.fallbacks.add(asked, given)
        metrics.injected += account.injected
        if account.rejected is not None:
            metrics.rejections.add(account.rejected)
        if request.pod is not None:
            self._log.admission(
                account.level, request.uid, request.namespace, request.name, spent // 1000, account.told
            )
