"""What goes wrong in a reconciler and is tried again: one rule for all of them.

What is known to go wrong (a `TesseraError`) is one sentence in the log. Anything else is a bug: the log gets its traceback once an hour, and what met it
rests, longer from time to time. Both are counted, and work goes on. Only what ends a leader's work passes: `LeadershipLost`, and cancellation.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from tessera.controller.leader import LeadershipLost
from tessera.controller.metrics import ControllerMetrics
from tessera.core.errors import TesseraError
from tessera.kube.clock import Clock
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.failures import Failures, Retries

log = logging.getLogger(__name__)

_QUIET: Final = 3600.0  # seconds until the same is logged again
_REST: Final = (0.8, 30.0)  # seconds that a subject rests after a bug, doubling from the first to the second


def of_the_server(error: Exception) -> bool:
    """Whether it concerns more than one object: the API server cannot be reached, or has too much to do."""
    return isinstance(error, KubeError) and (not isinstance(error, ApiError) or error.is_unavailable)


def words(error: Exception) -> str:
    """An error in a status: a sentence; of a bug, where to look for it."""
    if isinstance(error, TesseraError):
        return str(error)
    return f"an unexpected error ({type(error).__name__}); the controller's log has it"


class ReconcilerFailures(Failures):
    """What went wrong lately, by subject; also bugs. A subject that meets a bug rests."""

    def __init__(self, clock: Clock, metrics: ControllerMetrics) -> None:
        super().__init__(log, metrics.failures.add, clock.now, _QUIET)
        self._bugs = Retries(clock.now, *_REST)

    def survived(
        self, what: str, subject: str, passes: Callable[[Exception], bool] = lambda _: False
    ) -> "Tried":
        """Around work that others must not fail by; `what`: how it is counted, `subject`: how it is logged, `passes`: errors that the caller has to meet."""
        return Tried(self, what, subject, passes)

    def note(self, what: str, subject: str, error: Exception) -> None:
        """Count and log an error after which work goes on."""
        if isinstance(error, TesseraError):
            self.add(what, "%s: %s; will try again", error, subject)
            return
        self._bugs.put_off(subject)
        if self._begins(what, _place(error), subject):
            log.error("%s: an unexpected error; will try again: %r", subject, error, exc_info=error)

    def went_well(self, subject: str) -> None:
        super().went_well(subject)
        self._bugs.forget(subject)

    def rests(self, subject: str) -> bool:
        """Whether something met a bug just now, and is left alone for a while."""
        return not self._bugs.is_due(subject)


def _place(error: Exception) -> str:
    """Which bug it is, whatever its text says: where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""
    return f"{type(error).__name__} {where}"


@dataclass(slots=True)
class Tried:
    """Some work: what goes wrong in it ends here, but for what ends a leader's work."""

    _failures: ReconcilerFailures
    _what: str
    _subject: str
    _passes: Callable[[Exception], bool]
    error: Exception | None = None  # what went wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is None:
            self._failures.went_well(self._subject)
            return False
        if not isinstance(error, Exception) or isinstance(error, LeadershipLost) or self._passes(error):
            return False
        self.error = error
        self._failures.note(self._what, self._subject, error)
        return True
