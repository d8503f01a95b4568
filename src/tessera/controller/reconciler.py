"""What every reconciler is made of: its loop, what it survives, the API server's time, and long work beside the loop.

A reconciler waits until it can work, then plans, carries out, and waits for something new.

What is known to go wrong (a `TesseraError`) is one sentence in the log. Anything else is a bug: the log gets its
traceback once an hour, and what met it rests, longer from time to time. Both are counted, and work goes on. Only what
ends a leader's work passes: `LeadershipLost`, and cancellation.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn, Self, TypeVar

from tessera.controller.leader import LeadershipLost
from tessera.controller.metrics import ControllerMetrics
from tessera.core.errors import TesseraError
from tessera.kube.clock import Backoff, Clock, Failures, Once, Retries, offset_in_words
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import Table
from tessera.protocol.mig.rollouts import CLOCKS_DIFFER

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


_POLL: Final = 5.0  # seconds; a follower asks for collections that are absent again every minute


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerParts:
    """What the process gives to its reconcilers."""

    client: Client
    follower: Follower  # each collection is watched once for all reconcilers; the process runs it
    recorder: Recorder
    metrics: ControllerMetrics
    fence: Callable[[], None]  # called before every write; raises when another process may lead


class Reconciler(ABC):
    """What the process asks of a reconciler, and the loop around its work."""

    name: str  # as the Lease has it
    table: Table = MappingProxyType({})  # what it follows, from its start

    def __init__(self, parts: ReconcilerParts, unable: str) -> None:
        """`unable`: a sentence for the log about what is not done; it takes the reason."""
        self._client = parts.client
        self.follower = parts.follower
        self._recorder = parts.recorder
        self._metrics = parts.metrics
        self._fence = parts.fence
        self._clock = parts.client.clock
        self._changed = asyncio.Event()  # set when what is followed has changed
        self._failures = ReconcilerFailures(self._clock, parts.metrics)
        self._backoff = Backoff()
        self._warn = partial(logging.getLogger(type(self).__module__).warning, unable)
        self._lack = Once()  # what keeps it from its work

    async def follow(self) -> None:  # noqa: B027 # most leave it to the follower
        """Do what belongs to following the cluster and the follower does not do."""

    def missing(self) -> str | None:
        """What it does not know of the cluster yet, in a few words; None once it knows all."""
        return self.follower.missing(self.table)

    @abstractmethod
    def lacks(self) -> str:
        """What keeps it from its work, though it may know all that there is; empty: nothing."""

    @property
    def able(self) -> bool:
        """Whether it can do its work in this cluster now."""
        return self.missing() is None and not self.lacks()

    async def synced(self) -> None:
        """Wait until it knows all that there is."""
        await self.follower.synced(self.table)

    async def until_able(self) -> None:
        """Wait until it can do its work; the log says once what it lacks, and again when it is something else."""
        await self.synced()
        while lack := self.lacks():
            if self._lack.begin(lack):
                self._warn(lack)
            await self._clock.sleep(_POLL)
        self._lack.end()

    async def run(self) -> NoReturn:
        """Work until cancelled, or until another process leads; wait first until that is possible."""
        await self.until_able()
        self.begin()
        try:
            while True:
                await self._work_once()
        finally:
            self.end()

    async def _work_once(self) -> None:
        self._changed.clear()
        self._fence()
        began, has_more = self._clock.now(), False
        with self._failures.survived(self.name, f"reconciler {self.name}") as tried:
            has_more = await self.reconcile()
        if tried.error is not None:  # an error of one object does not get here
            await self._clock.sleep(self._backoff.next())
            return
        self._backoff.reset()
        if not has_more:
            await self.rest(self._clock.now() - began)

    def begin(self) -> None:  # noqa: B027 # most have nothing to do
        """This process leads from now on: another one may have led since."""

    def end(self) -> None:  # noqa: B027
        """Another process may lead from now on."""

    @abstractmethod
    async def reconcile(self) -> bool:
        """Do what is to be done now; whether there is more to do at once.

        Raises when something goes wrong that concerns more than one object.
        """

    @abstractmethod
    async def rest(self, took: float) -> None:
        """Wait until there may be something to do. `took`: seconds that the last round took."""


T = TypeVar("T")

_LONGEST_WORK: Final = 120.0  # seconds; the longest work takes some 10 (the first look at 4,000 nodes)
_EARLIER: Final = 10.0  # seconds in which work ends whose caller was cancelled


class TooLong(Exception):
    """Work that was given up: a bug. Its thread still runs."""


class Beside:
    """Does long work that only computes in a thread: the Lease is renewed and probes are answered meanwhile.

    It does one thing at a time. What it computes from must not change meanwhile. What it finds is lost where the caller is
    cancelled.
    """

    def __init__(self) -> None:
        self._work: asyncio.Future[Any] | None = None  # the last

    async def do(self, work: Callable[[], T]) -> T:
        """What the work finds, or raises; `TooLong` after two minutes, and as long as earlier work has not ended."""
        if self._work is not None:  # it was given up, or its caller was cancelled
            await _done(self._work, _EARLIER)
        self._work = task = asyncio.ensure_future(asyncio.to_thread(work))
        task.add_done_callback(lambda one: one.cancelled() or one.exception())  # perhaps nobody asks for it
        await _done(task, _LONGEST_WORK)
        self._work = None
        return task.result()


async def _done(task: "asyncio.Future[Any]", seconds: float) -> None:
    if not (await asyncio.wait([task], timeout=seconds))[0]:
        raise TooLong(f"what runs beside the loop has not ended after {seconds:g} s")


class ServerTime:
    """This machine's clock, judged by the API server's. All leaders share that one: where the two differ, it counts."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def wrong(self) -> str:
        """How this machine's clock differs from the API server's; empty where that is no more than clocks do which are kept right."""
        offset = self._client.clock_offset
        return offset_in_words(offset) if abs(offset) > CLOCKS_DIFFER else ""

    def now(self) -> float:
        """Seconds since 1970."""
        offset = self._client.clock_offset
        return self._client.clock.wall() + (offset if abs(offset) > CLOCKS_DIFFER else 0.0)
