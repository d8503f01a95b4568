"""One node's rollout for a caller who waits for it: `tessera mig apply --cordon`.

A node on which such a rollout of the same layout was left, by a command that was killed, is continued.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.protocol.mig.rollouts import Owner, Result, target_of
from tessera.rollout.change import Change
from tessera.rollout.config_map import NotWritten
from tessera.rollout.machine.carrying import Carrier
from tessera.rollout.machine.step import begin, next_step
from tessera.rollout.machine.values import Evict, How, NextStep, NodeSnapshot, Outcome, Patch
from tessera.rollout.progress import progress_of, watched
from tessera.rollout.writing import Overtaken


class LeftUnderWay(TesseraError):
    """The API server fails, and the node may be cordoned still."""


class Alone:
    """Brings one node from the cordon to the end."""

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
        self._told = ""
        self._cancelled = ""
        self._began = False
        self._stands = False  # whether the rollout may stand on the node
        self._news = asyncio.Event()

    def interrupt(self) -> None:
        """Put back what is written, and end."""
        self._cancelled = "interrupted"
        self._news.set()

    async def run(self) -> Outcome:
        async with watched(self._client, self._change.node) as node:
            node.changed = self._news
            failing: float | None = None
            while True:
                try:
                    outcome = await self._turn()
                except (KubeError, InvalidInput, NotWritten) as error:
                    if not (self._began or self._stands):
                        raise
                    outcome, failing = None, self._failed(error, failing)
                else:
                    failing = None
                if outcome is not None:
                    return outcome
                await node.change(self.polls)
                self._news.clear()

    def _failed(self, error: TesseraError, since: float | None) -> float:
        """Since when calls fail; `LeftUnderWay` where nothing more can be done."""
        now = self._client.clock.now()
        since = now if since is None else since
        if now >= since + self.patience:
            if self._cancelled:
                again = "the same command goes on with it"
                raise LeftUnderWay(
                    f"{error}; the rollout has not ended, and the node may be cordoned: {again}"
                ) from error
            self._cancelled, since = str(error), now
        self._tell(f"{error}; tried again")
        return since

    async def _turn(self) -> Outcome | None:
        """Take the next steps; how it ended, where it has."""
        while True:
            seen = await self._carrier.look(self._change.node)
            if seen is None:
                return Outcome(Result.OVERTAKEN, "the node is gone")
            found = self._next(seen, self._client.clock.wall())
            match found:
                case Outcome():
                    return found
                case Patch():
                    if await self._write(seen, found):
                        self._began = True
                        self._tell(found.told)
                        if found.outcome is not None:
                            return found.outcome
                    continue
                case Evict():
                    await self._carrier.evict(seen, found)
            self._tell(found.reason)
            return None

    async def _write(self, seen: NodeSnapshot, patch: Patch) -> bool:
        try:
            return await self._carrier.write(seen, patch, self._ensure) is not None
        except KubeError as error:  # what was not refused may have been written
            self._stands |= not isinstance(error, ApiError) or error.code >= 500
            raise

    def _next(self, seen: NodeSnapshot, now: float) -> NextStep | Outcome:
        """The next step; or how it ends, where the rollout on the node is another's, or there is none to begin."""
        change = self._change
        try:
            record = seen.record
        except InvalidInput as error:
            return Outcome(Result.OVERTAKEN, str(error))
        if record is not None:
            if record.owner.uid or record.target != target_of(change.key, change.after):
                return Outcome(Result.OVERTAKEN, f"{record.owner} is changing it")
            self._stands = True
            return next_step(seen, record, now, cancelled=self._cancelled, undo=True)
        if self._cancelled:
            return Outcome(Result.CANCELLED, self._cancelled)
        value, shown = change.value_of(seen.node), progress_of(seen.gpus, seen.offered, change.expected).shown
        if (self._began or change.written) and value == change.after and shown:
            return Outcome(Result.DONE)  # perhaps the answer to the last write was lost
        if self._began or value != change.before:
            return Outcome(Result.OVERTAKEN, str(Overtaken(change)))
        return begin(seen, change, self._owner, self._how, now)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._report(f"{self._change.node}: {text}")
        self._told = text
