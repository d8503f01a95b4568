"""Leader election: one process of several works, by a Lease.

The times are client-go's: a Lease holds for 15 seconds, a leader that could not renew it for 10 stops, and renews every
2. So a leader has stopped before another can begin, as long as clocks run equally fast. What it wrote just before may
still arrive later than the next leader's writes: a fence before every write keeps that short, and every write here is
one that does no harm twice (a name made from the content, a precondition on uid and version).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from tessera.core.errors import TesseraError
from tessera.kube.clock import Once
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.kube.view.lease import WatchedLease
from tessera.protocol.kubernetes.lease import API_VERSION, Lease

log = logging.getLogger(__name__)

_RELEASE_SECONDS: Final = 2.0  # a process that ends does not wait longer to give its Lease up


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds, as client-go's defaults."""

    duration: int = 15  # a Lease holds after it was renewed
    deadline: float = 10.0  # a leader that could not renew it for so long stops
    retry: float = 2.0  # between two tries to get or renew it


DEFAULT_TIMES: Final = LeaseTimes()


class LeadershipLost(TesseraError):
    """The Lease could not be renewed in time, or another process has it."""


class Leader:
    """A candidate for a Lease."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        times: LeaseTimes = DEFAULT_TIMES,
        reconcilers: Callable[[], tuple[str, ...] | None] = lambda: None,
    ) -> None:
        """Stand for a Lease; `reconcilers`: what the Lease says that its holder runs, asked at each renewal."""
        self.identity = identity
        self.leads = False
        self.beat = client.clock.now()  # when it last tried to get or keep the Lease
        self._client = client
        self._namespace = namespace
        self._name = name
        self._times = times
        self._reconcilers = reconcilers
        self._clock = client.clock
        self._watched = WatchedLease(client.clock)
        self._renewed = 0.0
        self._once = Once()

    @property
    def holder(self) -> str:
        return self._watched.lease.holder if self._watched.lease else ""

    def fence(self) -> None:
        """Called before every write: `LeadershipLost` for a leader that was asleep for too long."""
        if not self.leads or self._clock.now() - self._renewed >= self._times.deadline:
            raise LeadershipLost("the Lease was not renewed in time")

    async def lead(self, *work: Callable[[], Coroutine[Any, Any, None]]) -> NoReturn:
        """Do all this work while this process leads; wait while another does. Until cancelled."""
        while True:
            await self._acquire()
            log.info("leading as %s", self.identity)
            self.leads = True
            try:
                await self._while_leading(*work)
            except LeadershipLost as lost:
                log.warning("not leading any more: %s", lost)
            finally:
                self.leads = False

    async def _while_leading(self, *work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tasks = [asyncio.ensure_future(one) for one in (self._renew(), *(each() for each in work))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _ended(*tasks)
            await self._release()
            raise
        done = [one for one in tasks if one.done()]
        await _ended(*(one for one in tasks if not one.done()))
        # all are looked at: else asyncio logs the others; a bug counts more than a lost Lease
        errors = [error for one in done if not one.cancelled() and (error := one.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, LeadershipLost)):
            raise error

    async def _acquire(self) -> None:
        while True:
            with suppress(LeadershipLost):
                if await self._try():
                    return
            await self._clock.sleep(self._times.retry)

    async def _renew(self) -> NoReturn:
        while True:
            await self._clock.sleep(self._times.retry)
            await self._try()
            if self._clock.now() - self._renewed >= self._times.deadline:
                raise LeadershipLost(self._once.text() or "the Lease was not renewed in time")

    async def _try(self) -> bool:
        """Get or keep the Lease, once; whether that went well. `LeadershipLost` when another has it."""
        self.beat = began = self._clock.now()
        try:
            async with asyncio.timeout(self._times.deadline / 2):
                await self._read()
                current = self._watched.lease or Lease(self._name)
                if current.holder != self.identity and self._watched.is_held:
                    raise LeadershipLost(f"{current.holder} has the Lease")
                if current.holder != self.identity and self.leads:
                    raise LeadershipLost("another process took the Lease")
                held = current.held(self.identity, self._times.duration, self._clock.wall())
                await self._write(replace(held, reconcilers=self._reconcilers()))
        except (KubeError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.is_conflict:
                return False  # another was faster; the next read says which
            text = str(error) or "the API server did not answer in time"
            if self._once.begin(text):
                log.warning("the Lease could not be written: %s", text)
            return False
        self._renewed = began
        self._once.end()
        return True

    async def _read(self) -> None:
        raw = await self._client.find(self._path(self._name))
        self._watched.observe(None if raw is None else Lease.read(raw))

    async def _write(self, lease: Lease) -> None:
        document = lease.document(self._namespace)
        if lease.version:
            raw = await self._client.update(self._path(self._name), document)
        else:
            raw = await self._client.create(self._path(), document)
        self._watched.observe(Lease.read(raw))

    async def _release(self) -> None:
        """Give the Lease up, so that another process can lead at once."""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._read()  # a renewal that was under way may have gone through
                lease = self._watched.lease
                if lease is not None and lease.holder == self.identity:
                    await self._write(replace(lease.held(self.identity, 1, self._clock.wall()), holder=""))
        except (KubeError, TimeoutError) as error:
            log.info("the Lease could not be given up; it expires by itself: %s", error)

    def _path(self, name: str | None = None) -> str:
        return path_of(API_VERSION, "leases", namespace=self._namespace, name=name)


async def _ended(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
