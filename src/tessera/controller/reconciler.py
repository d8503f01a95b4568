"""The loop of every reconciler: it waits until it can work, then plans, carries out, and waits for something new.

Whether a reconciler can do its work in this cluster.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, NoReturn

from tessera.controller.failures import ReconcilerFailures
from tessera.controller.metrics import ControllerMetrics
from tessera.kube.clock import Clock
from tessera.kube.event_recorder import Recorder
from tessera.kube.failures import Backoff, Once
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import Table

_POLL: Final = 5.0  # seconds; a follower asks for collections that are absent again every minute


class Ability:
    """Waits for what a reconciler lacks, as `lacks` says it (empty: nothing); `log` gets it once, and again when it is something else."""

    def __init__(self, clock: Clock, lacks: Callable[[], str], log: Callable[[str], None]) -> None:
        self._clock = clock
        self._lacks = lacks
        self._log = log
        self._once = Once()

    async def wait(self) -> None:
        """Wait until it lacks nothing."""
        while lack := self._lacks():
            if self._once.begin(lack):
                self._log(lack)
            await self._clock.sleep(_POLL)
        self._once.end()


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
        log = logging.getLogger(type(self).__module__)
        self._ability = Ability(self._clock, self.lacks, partial(log.warning, unable))

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
        """Wait until it can do its work; the log says what it lacks."""
        await self.synced()
        await self._ability.wait()

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
