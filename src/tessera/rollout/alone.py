"""One node's rollout for a caller who waits for it: `tessera mig apply`.

A node on which such a rollout of the same layout was left, by a command that was killed, is continued.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from msgspec import structs

from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.protocol.mig.nodes import CHANGING
from tessera.protocol.mig.rollouts import Owner, Phase, Result, RolloutRecord, target_of
from tessera.rollout.carrying import Carrier
from tessera.rollout.change import Change
from tessera.rollout.config_map import NotWritten
from tessera.rollout.progress import progress_of, watched
from tessera.rollout.step import begin, next_step
from tessera.rollout.values import How, NextStep, NodeSnapshot, Outcome, Patch
from tessera.rollout.writing import Overtaken


class LeftUnderWay(TesseraError):
    """The node cannot be written to, and the rollout stands on it still."""


class Alone:
    """Brings one node from the beginning to the end."""

    # seconds between two looks at the node and its pods; a change of the node is looked at, at once
    polls = 2.0
    # seconds in which calls may fail one after the other; then what is written is put back, if that can be written
    patience = 60.0

    def __init__(
        self,
        client: Client,
        change: Change,
        owner: Owner,
        how: How,
        report: Callable[[str], None],
        ensure: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._change = change
        self._owner = owner
        self._how = how
        self._client = client
        self._carrier = Carrier(client)
        self._report = report
        self._ensure = ensure
        self._since = client.clock.wall()
        self._record: RolloutRecord | None = None  # as it was seen last
        self._told = ""
        self._cancelled = ""
        self._began = False
        self._stands = False  # whether the rollout may stand on the node
        self._patient_until = client.clock.now() + how.timeout  # where the node changes all the time
        self._news = asyncio.Event()
        self._states: set[tuple[str, str]] = set()

    def interrupt(self) -> None:
        """Put back what is written, and end."""
        self._cancelled = "interrupted"
        self._carrier.try_at_once(self._change.node)
        self._news.set()

    @property
    def interrupted(self) -> str:
        """What is to be said of a node when nobody waits for the end of the rollout."""
        return f"interrupted; {self._left}" if self._stands or self._began else "interrupted"

    async def run(self) -> Outcome:
        async with watched(self._client, self._change.node) as node:
            node.changed, node.states = self._news, self._states
            failing: float | None = None
            while True:
                try:
                    found = await self._carrier.drive(self._change.node, self._decide, self._write)
                except (KubeError, InvalidInput, NotWritten) as error:
                    if not (self._began or self._stands):
                        raise
                    failing = self._failed(error, failing)
                else:
                    failing = None
                    if isinstance(found, Outcome):
                        return found
                    if found is not None:
                        self._tell(found.reason)
                    self._check_conflicts()
                await node.change(self.polls)
                self._news.clear()

    def _check_conflicts(self) -> None:
        """Give up where the node has changed for too long whenever it was written to; an operator who interrupts waits for none of it."""
        now = self._client.clock.now()
        if not self._carrier.is_resting(self._change.node):
            self._patient_until = now + self._how.timeout
        elif self._cancelled or now >= self._patient_until:
            error = "the node changed whenever it was written to"
            raise LeftUnderWay(f"{error}; {self._left}") if self._stands or self._began else NotWritten(error)

    def _failed(self, error: TesseraError, since: float | None) -> float:
        """Since when calls fail; `LeftUnderWay` where nothing more can be done."""
        now = self._client.clock.now()
        since = now if since is None else since
        if now >= since + self.patience:
            if self._cancelled:
                raise LeftUnderWay(f"{error}; {self._left}") from error
            self._cancelled, since = str(error), now
        self._tell(f"{error}; tried again")
        return since

    @property
    def _left(self) -> str:
        """How a node is left whose rollout has not ended, and what to type."""
        record, again = self._record, "the same command goes on with it"
        cordoned = self._how.cordons if record is None else record.uncordons
        if cordoned:
            return f"the rollout has not ended, and the node may be cordoned: {again}"
        change = self._change if record is None else replace(self._change, before=record.before)
        return f"the rollout has not ended: {again}; this puts the old layout back: {change.by_hand()}"

    async def _decide(self) -> tuple[NodeSnapshot | None, NextStep | Outcome]:
        seen = await self._carrier.look(self._change.node)
        if seen is None:
            return None, Outcome(Result.OVERTAKEN, "the node is gone")
        worked = any((self._change.after, state) in self._states for state in CHANGING)
        return seen, self._next(replace(seen, worked=worked), self._client.clock.wall())

    async def _write(self, seen: NodeSnapshot, patch: Patch) -> bool:
        try:
            if await self._carrier.write(seen, patch, self._ensure) is None:
                return False
        except KubeError as error:  # what was not refused may have been written
            self._stands |= not isinstance(error, ApiError) or error.code >= 500
            raise
        self._began = True
        self._tell(patch.told)
        return True

    def _next(self, seen: NodeSnapshot, now: float) -> NextStep | Outcome:
        """The next step; or how it ends, where the rollout on the node is another's, or there is none to begin."""
        change = self._change
        try:
            record = seen.record
        except InvalidInput as error:
            return Outcome(Result.OVERTAKEN, str(error))
        if record is not None:
            if record.owner.uid or record.target != target_of(change.key, change.after):
                return Outcome(Result.OVERTAKEN, record.say_whose("call it again, or "))
            self._record, self._stands = record, True
            return next_step(seen, self._patient(record), now, cancelled=self._cancelled, undo=True)
        if self._cancelled:
            return Outcome(Result.CANCELLED, self._cancelled)
        value, shown = change.value_of(seen.node), progress_of(seen.gpus, seen.offered, change.expected).shown
        if (self._began or self._stands or change.written) and value == change.after and shown:
            # the answer to the last write was lost, or the same command has ended it that was called twice
            return Outcome(Result.DONE)
        if self._began or value != change.before:
            return Outcome(Result.OVERTAKEN, str(Overtaken(change)))
        return begin(seen, change, self._owner, self._how, now)

    def _patient(self, record: RolloutRecord) -> RolloutRecord:
        """A rollout that was left on the way has the time that this command gives it; one with a cordon has its own."""
        if record.cordons or record.phase is Phase.PUTTING_BACK:
            return record
        seconds = self._how.drain_timeout if record.phase is Phase.WAITING else self._how.timeout
        return structs.replace(record, until=max(record.until, self._since + seconds))

    def _tell(self, text: str) -> None:
        if text and text != self._told:
            self._report(f"{self._change.node}: {text}")
        self._told = text or self._told
