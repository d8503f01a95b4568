"""Cuts in threads of their own, one for each card: a call that hangs holds up its card alone."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Final

from tessera.core.mig.cutting import Cut
from tessera.kube.clock import Backoff, either
from tessera.node.sources.cutting.card import Busy, Done, Failed, Order, Outcome, ResetNeeded, cut
from tessera.node.sources.cutting.journal import Journal, Lock
from tessera.node.sources.cutting.port import DriverRefused, GpuDriver

log = logging.getLogger(__name__)

_HANGS_AFTER: Final = 30.0  # seconds for one call; NVML makes and removes instances within a second or two
# seconds until a card that some program uses is tried again, doubling from the first to the second
_IN_USE: Final = (5.0, 60.0)
_POLL: Final = 0.5  # seconds between two checks of a job: it may hang, or we may end
_STOP: Final = 5.0  # seconds for jobs at work when we end; Kubernetes gives us 30 in all


class CutJob:
    """One card's cut. The thread ends with the process: nothing waits for a call that does not come back."""

    def __init__(
        self,
        order: Order,
        driver: GpuDriver,
        journal: Journal,
        ended: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order = order
        self.outcome: Outcome | None = None  # None: at work
        self._driver = driver
        self._journal = journal
        self._ended = ended
        self._clock = clock
        self._call = ("", clock())
        self._thread = threading.Thread(target=self._run, name=f"cut {order.card}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def hangs(self) -> str:
        """What has not come back for too long; empty: nothing."""
        name, since = self._call
        # the same text for as long as it lasts: it is written to the node
        hangs = self._clock() - since > _HANGS_AFTER
        return (
            f"waits for {name}, which has not come back for more than {_HANGS_AFTER:.0f} s" if hangs else ""
        )

    @property
    def message(self) -> str:
        """What kept it from coming to its end; empty: nothing."""
        return "" if self.outcome is None or isinstance(self.outcome, Done) else self.outcome.message

    def _on_call(self, name: str) -> None:
        self._call = (name, self._clock())

    def _run(self) -> None:
        try:
            with self._driver.open(self.order.card, self._on_call) as card:
                outcome = cut(self.order, card, self._journal)
        except DriverRefused as error:
            outcome = Busy(str(error))  # nothing was changed: the card does not answer
        except Exception as error:
            log.exception("the cut of card %s ended with an error", self.order.card)
            outcome = Failed(repr(error))
        self.outcome = outcome
        self._ended()


@dataclass(frozen=True, slots=True, kw_only=True)
class PostponedCut:
    """A cut that did not come to its end; its card is tried again."""

    goal: Cut
    outcome: Busy | ResetNeeded | Failed
    waits: tuple[float, float]  # seconds: the first and the longest wait after such an outcome
    backoff: Backoff  # between these
    seconds: float  # the wait from its end to the next try
    at: float  # when the next try may begin
    is_news: bool  # whether the cut before it had another message


class CardJobs:
    """Runs cuts, one at a time on a card. What did not come to its end is tried again, more and more seldom."""

    def __init__(
        self,
        driver: GpuDriver,
        journal: Journal,
        lock: Lock,
        ended: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
        *,
        keeps_lock: bool = False,
        after_refusal: tuple[float, float] | None = None,
    ) -> None:
        """`ended` is set whenever a cut has ended. `keeps_lock`: the caller takes the lock and releases it.

        `after_refusal`: the first and the longest wait after NVML refused a cut, in seconds. A cut that NVML would always
        refuse is not tried again then. Without it, every card waits as one in use does.
        """
        self._driver = driver
        self._journal = journal
        self._ended = ended
        self._clock = clock
        self._after_refusal = after_refusal
        self._lock = lock
        self._users = int(keeps_lock)  # of the lock, besides the jobs
        self._jobs: dict[str, CutJob] = {}
        self._postponed: dict[str, PostponedCut] = {}
        self._latest = inf  # until when `wait_for` waits

    @property
    def busy(self) -> frozenset[str]:
        """The cards that are being cut."""
        return frozenset(self._jobs)

    @contextmanager
    def alone(self) -> Iterator[str]:
        """No other process cuts meanwhile, nor until the last job has ended; why that is not so."""
        objection = self._lock.objection()
        self._users += not objection
        try:
            yield objection
        finally:
            self._users -= not objection
            self._release()

    def at_work(self, card: str) -> str:
        """What is at work on a card; empty: nothing."""
        job = self._jobs.get(card)
        return (job.hangs or "is being cut") if job else ""

    def reason(self, card: str) -> str:
        """What keeps a card from being cut, besides pods and refusals; empty: nothing."""
        cut = self._postponed.get(card)
        if card in self._jobs or cut is None or isinstance(cut.outcome, Failed):
            return self.at_work(card)
        return f"will be tried again: {cut.outcome.message}"

    def postponed(self, card: str, goal: Cut) -> PostponedCut | None:
        """The last try to cut a card like this, until it is tried again; None: it may be tried."""
        cut = self._postponed.get(card)
        return cut if cut and cut.goal == goal and self._clock() < cut.at else None

    def forget(self) -> None:
        """Another layout is desired: what was refused may be possible now."""
        self._postponed = {}

    def start(self, order: Order) -> CutJob:
        loop = asyncio.get_running_loop()
        job = CutJob(order, self._driver, self._journal, lambda: wake(loop, self._ended), self._clock)
        self._jobs[order.card] = job
        job.start()
        return job

    async def wait_for(self, card: str, ends: float) -> None:
        """Wait until nothing is at work on a card, or until then."""
        job = self._jobs.get(card)
        while job and job.outcome is None and self._clock() < min(ends, self._latest):
            self._ended.clear()
            if job.outcome is None:
                await either(self._ended, _POLL)

    def collect(self) -> dict[str, PostponedCut | Done]:
        """Take the outcomes of the jobs that have ended, by card."""
        ended = {card: job for card, job in self._jobs.items() if job.outcome is not None}
        outcomes: dict[str, PostponedCut | Done] = {}
        for card, job in ended.items():
            del self._jobs[card]
            before = self._postponed.pop(card, None)
            if job.outcome is None or isinstance(job.outcome, Done):
                outcomes[card] = Done()
            else:
                outcomes[card] = self._postponed[card] = self._postpone(job.order.goal, job.outcome, before)
        self._release()
        return outcomes

    def stop(self) -> None:
        """The process ends: `wait_for` waits only a moment longer."""
        self._latest = self._clock() + _STOP

    def _postpone(
        self, goal: Cut, outcome: Busy | ResetNeeded | Failed, before: PostponedCut | None
    ) -> PostponedCut:
        waits = _IN_USE
        if self._after_refusal and isinstance(outcome, Failed):
            waits = (inf, inf) if outcome.lasting else self._after_refusal
        is_repeated = before is not None and (before.goal, before.waits) == (goal, waits)
        backoff = before.backoff if before and is_repeated else Backoff(*waits, jitter=0)
        seconds = backoff.next()
        return PostponedCut(
            goal=goal,
            outcome=outcome,
            waits=waits,
            backoff=backoff,
            seconds=seconds,
            at=self._clock() + seconds,
            is_news=before is None or before.outcome.message != outcome.message,
        )

    def _release(self) -> None:
        if not (self._jobs or self._users):
            self._lock.release()


def wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """From a thread that may outlive the loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
