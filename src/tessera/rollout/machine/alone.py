"""One node's rollout for a caller who waits for it: `tessera mig apply --cordon`.

A node on which such a rollout of the same layout was left, by a command that was killed, is continued.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tessera.core.errors import InvalidInput
from tessera.kube.rest.client import Client
from tessera.protocol.mig.rollouts import Owner, Result, target_of
from tessera.rollout.change import Change
from tessera.rollout.machine.carrying import Carrier
from tessera.rollout.machine.step import begin, next_step
from tessera.rollout.machine.values import Evict, How, NextStep, NodeSnapshot, Outcome, Patch
from tessera.rollout.progress import progress_of, watched
from tessera.rollout.writing import Overtaken


class Alone:
    """Brings one node from the cordon to the end."""

    # seconds between two looks at the node and its pods; a change of the node is looked at, at once
    polls = 2.0

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
        self._news = asyncio.Event()

    def interrupt(self) -> None:
        """Put back what is written, and end."""
        self._cancelled = "interrupted"
        self._news.set()

    async def run(self) -> Outcome:
        async with watched(self._client, self._change.node) as node:
            node.changed = self._news
            while True:
                outcome = await self._turn()
                if outcome is not None:
                    return outcome
                await node.change(self.polls)
                self._news.clear()

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
                    if await self._carrier.write(seen, found, self._ensure):
                        self._began = True
                        self._tell(found.told)
                        if found.outcome is not None:
                            return found.outcome
                    continue
                case Evict():
                    await self._carrier.evict(seen, found)
            self._tell(found.reason)
            return None

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
            return next_step(seen, record, now, cancelled=self._cancelled, undo=True)
        if self._cancelled:
            return Outcome(Result.CANCELLED, self._cancelled)
        if self._began or change.value_of(seen.node) != change.before:
            return Outcome(Result.OVERTAKEN, str(Overtaken(change)))
        if change.written and progress_of(seen.gpus, seen.offered, change.expected).shown:
            return Outcome(Result.DONE)
        return begin(seen, change, self._owner, self._how, now)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._report(f"{self._change.node}: {text}")
        self._told = text
