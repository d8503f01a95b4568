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
from tessera.kube.clock import either
from tessera.node.sources.cutting.card import Busy, Done, Failed, Order, Outcome, cut
from tessera.node.sources.cutting.journal import Journal, Lock
from tessera.node.sources.cutting.port import DriverRefused, GpuDriver

log = logging.getLogger(__name__)

_HANGS_AFTER: Final = 30.0  # seconds for one call; NVML makes and removes instances within a second or two


# seconds until a card that some program uses is tried again, doubling from the first to the second
AGAIN: Final = (5.0, 60.0)
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


@dataclass(frozen=True, slots=True)
class _Later:
    """A cut that did not come to its end, and is tried again."""

    goal: Cut
    message: str
    at: float
    delay: float


class AwaitedJobs:
    """Jobs that the DRA driver waits for, one at a time on a card, alone among the processes that cut."""

    def __init__(
        self, driver: GpuDriver, journal: Journal, lock: Lock, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._lock = lock
        self._clock = clock
        self._users = 0  # of the lock
        self._jobs: dict[str, CutJob] = {}
        self._later: dict[str, _Later] = {}
        self._ended = asyncio.Event()
        self._latest = inf  # until when `over` waits

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

    def postponed(self, card: str, goal: Cut) -> str:
        """What kept a card from being cut like this when it was tried last, as long as it is not tried again; empty: it may be."""
        later = self._later.get(card)
        return later.message if later and later.goal == goal and self._clock() < later.at else ""

    def begin(self, order: Order) -> CutJob:
        loop = asyncio.get_running_loop()
        job = CutJob(order, self._driver, self._journal, lambda: wake(loop, self._ended), self._clock)
        self._jobs[order.card] = job
        job.start()
        return job

    async def wait_for_card(self, card: str, ends: float) -> str:
        """Wait until nothing is at work on a card, or for so long; what is at work then."""
        job = self._jobs.get(card)
        while job and job.outcome is None and self._clock() < min(ends, self._latest):
            self._ended.clear()
            if job.outcome is None:
                await either(self._ended, _POLL)
        return (job.hangs or "is being cut") if job and job.outcome is None else ""

    def collect(self) -> dict[str, str]:
        """The cards whose jobs have ended, with what kept them from coming to their end."""
        ended = {card: job for card, job in self._jobs.items() if job.outcome is not None}
        found = {}
        for card, job in ended.items():
            del self._jobs[card]
            before, message = self._later.pop(card, None), job.message
            if message:
                same = before if before and before.goal == job.order.goal else None
                delay = min(2 * same.delay, AGAIN[1]) if same else AGAIN[0]
                self._later[card] = _Later(job.order.goal, message, self._clock() + delay, delay)
                if before is None or before.message != message:
                    log.warning("card %s: not all is cut, will be tried again: %s", card, message)
            found[card] = message
        self._release()
        return found

    def stop(self) -> None:
        """The process ends: `over` waits only a moment longer."""
        self._latest = self._clock() + _STOP

    def _release(self) -> None:
        if not (self._jobs or self._users):
            self._lock.release()


def wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """From a thread that may outlive the loop."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
