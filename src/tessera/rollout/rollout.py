"""Writes layouts to nodes, a few at a time, and checks that the nodes take them.

A node that does not show its new layout gets its old one back, and the rollout begins no further node. The same happens to a node
that is being changed when the operator interrupts. If another client changes a node meanwhile, the rollout leaves its value alone. What
mig-manager's ConfigMap lacks is added before the first node, and what no node names afterwards is removed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.planning.configurations import OURS
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig.nodes import gpu_node
from tessera.protocol.mig.rollouts import Owner
from tessera.rollout.attempt import LATE, TO_CLEAR, TO_COME_BACK, Attempt
from tessera.rollout.change import Change, Changes, WhenInUse
from tessera.rollout.config_map import ConfigMap, Configurations, NotWritten
from tessera.rollout.in_use import Holder, holders, named, uses_of
from tessera.rollout.machine.alone import Alone, LeftUnderWay
from tessera.rollout.machine.values import How
from tessera.rollout.outcomes import NodeRollout, RolloutResult, ended
from tessera.rollout.progress import WatchedNode, watched
from tessera.rollout.writing import NotShown, Overtaken, write

T = TypeVar("T")

_WRITTEN_AGAIN: Final = "the old layout is written again"
_TO_FOLLOW: Final = 10.0  # until a node is seen for the first time; then it is written to all the same


@dataclass(frozen=True, slots=True)
class Cordon:
    """Nodes are cordoned while they change, in whose name, and what is done about pods that hold devices which go."""

    owner: Owner
    drain: bool = False
    seconds: float = 1800.0  # for pods to let go


class InUse(TesseraError):
    """Pods hold devices that would go."""


@dataclass(frozen=True, slots=True)
class MaxUnavailable:
    """How many nodes may be without their devices at a time: a number, or a part of all."""

    number: int
    percent: bool

    @classmethod
    def parse(cls, text: str) -> "MaxUnavailable":
        """Read `2` or `25%`."""
        digits, percent = text.removesuffix("%"), text.endswith("%")
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 6 else 0
        if number == 0 or (percent and number > 100):
            raise InvalidInput(f'"{text}" is not a number of nodes such as 2, nor a part of them such as 25%')
        return cls(number, percent)

    def of(self, nodes: int) -> int:
        """So many of these; never none."""
        return max(1, nodes * self.number // 100) if self.percent else self.number


class Rollout:
    """Changes, carried out a few at a time."""

    # seconds between two looks at the pods that hold devices
    polls = 5.0

    def __init__(
        self,
        client: Client,
        *,
        at_once: int,
        timeout: float | None,
        report: Callable[[str], None],
        when_in_use: WhenInUse | None = None,  # None: as each node has it
        cordon: Cordon | None = None,  # None: nodes are not cordoned
    ) -> None:
        self.outcomes: dict[str, NodeRollout] = {}
        self._client = client
        self._at_once = at_once
        self._timeout = timeout  # None: do not wait
        self._report = report
        self._when_in_use = when_in_use
        self._cordon = cordon
        self._stopped = False
        self._config_map: ConfigMap | None = None
        self._late_until = 0.0
        self._ours: Configurations = {}  # configurations of ours, by name

    @property
    def succeeded(self) -> bool:
        """Whether every node took its layout, as far as that was waited for."""
        return all(
            one.result in (RolloutResult.DONE, RolloutResult.WRITTEN) for one in self.outcomes.values()
        )

    async def run(self, found: Changes) -> None:
        """Carry them out; `outcomes` tells what became of each, also when this is cancelled."""
        for change in found.changes:
            result = RolloutResult.REFUSED if change.refused else RolloutResult.NOT_BEGUN
            self.outcomes[change.node] = NodeRollout(change.node, result, change.refused)
        changes = [change for change in found.changes if not change.refused]
        self._ours = found.ours
        if found.manager is not None and not found.manager.owned and (self._ours or found.replaced):
            self._config_map = ConfigMap(self._client, found.manager, self._report)
        try:
            if self._config_map is not None and (added := await self._config_map.add(self._ours)):
                self._report(f"{found.manager}: {', '.join(added)} added")
            self._late_until = asyncio.get_running_loop().time() + LATE
            await self._carry_out_all(changes)
        finally:
            await _to_the_end(self._remove_unused([*self._ours, *found.replaced]))

    async def _carry_out_all(self, changes: list[Change]) -> None:
        waiting = iter(changes)

        async def work() -> None:
            for change in waiting:  # shared: each worker takes the next
                if self._stopped:
                    return
                outcome = await self._carry_out(change)
                self.outcomes[change.node] = outcome
                self._stopped |= outcome.result in (RolloutResult.FAILED, RolloutResult.PUT_BACK)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._at_once, len(changes))):
                tasks.create_task(work())

    async def _remove_unused(self, names: list[str]) -> None:
        """Remove the configurations that no node names after all; where that fails they do no harm, and it is said."""
        if self._config_map is None:
            return
        try:
            if gone := await self._config_map.remove_unused(names):
                self._report(f"no node uses {', '.join(gone)} any more: removed from mig-manager's ConfigMap")
        except (KubeError, InvalidInput, NotWritten) as error:
            self._report(f"configurations that no node uses could not be removed: {error}")

    async def _carry_out(self, change: Change) -> NodeRollout:
        if self._cordon is not None and self._timeout is not None:
            return await self._carry_out_cordoned(change, self._cordon, self._timeout)
        if change.begun:
            reason = f"a rollout of it has not ended ({change.begun}): use --cordon to continue it"
            return NodeRollout(change.node, RolloutResult.REFUSED, reason)
        ours = False  # whether something of ours may stand on the node
        attempt = self._attempt(change)
        try:
            async with self._followed(change) as node:
                if not change.written:
                    await self._until_free(change)
                    ours = True
                    await attempt.write(node)
                    self._report(f"{change.node}: {change.key} written")
                if self._timeout is None:
                    return NodeRollout(change.node, RolloutResult.WRITTEN)
                await attempt.until_shown(node, self._timeout)
        except InUse as error:
            return NodeRollout(change.node, RolloutResult.REFUSED, str(error))
        except Overtaken as error:
            return NodeRollout(change.node, RolloutResult.FAILED, str(error))
        except (NotShown, NotWritten, KubeError, InvalidInput) as error:
            if not ours:
                return NodeRollout(change.node, RolloutResult.FAILED, str(error))
            return await self._come_back(attempt, await _to_the_end(self._put_back(attempt, str(error))))
        except asyncio.CancelledError:
            self._stopped = True
            self.outcomes[change.node] = NodeRollout(change.node, RolloutResult.FAILED, "interrupted")
            if ours:
                await _to_the_end(self._put_back(attempt, "interrupted"))
            raise
        self._report(f"{change.node}: done")
        return NodeRollout(change.node, RolloutResult.DONE)

    async def _carry_out_cordoned(self, change: Change, cordon: Cordon, timeout: float) -> NodeRollout:
        how = How(drain=cordon.drain, drain_timeout=cordon.seconds, timeout=timeout)
        alone = Alone(self._client, change, cordon.owner, how, self._report, self._ensure(change))
        work: asyncio.Future[NodeRollout] | None = None
        try:
            if self._when_in_use is WhenInUse.REFUSE and not change.written:
                await self._until_free(change)
            work = asyncio.ensure_future(_outcome(alone, change.node))
            return await asyncio.shield(work)
        except (InUse, KubeError, InvalidInput) as error:
            result = RolloutResult.REFUSED if isinstance(error, InUse) else RolloutResult.FAILED
            return NodeRollout(change.node, result, str(error))
        except asyncio.CancelledError:
            self._stopped = True
            self.outcomes[change.node] = NodeRollout(change.node, RolloutResult.FAILED, "interrupted")
            if work is not None:
                alone.interrupt()
                self.outcomes[change.node] = await work
            raise

    @asynccontextmanager
    async def _followed(self, change: Change) -> AsyncIterator[WatchedNode]:
        """The node, followed from before the write, so that no state is missed; not at all where nobody waits for it."""
        if self._timeout is None:
            yield WatchedNode()
            return
        async with watched(self._client, change.node) as node:
            await node.change(min(self._timeout, _TO_FOLLOW))
            yield node

    def _attempt(self, change: Change) -> Attempt:
        """A configuration of ours may be new to mig-manager: this rollout has added it, or a person just before."""
        if not (change.label and change.after.startswith(OURS)):
            return Attempt(self._client, change, self._report)
        ensure = self._ensure(change)
        return Attempt(self._client, change, self._report, late_until=self._late_until, ensure=ensure)

    def _ensure(self, change: Change) -> Callable[[], Awaitable[object]] | None:
        """What sees that mig-manager's ConfigMap has a configuration of ours."""
        if self._config_map is None or change.after not in self._ours:
            return None
        return partial(self._config_map.add, {change.after: self._ours[change.after]})

    async def _until_free(self, change: Change) -> None:
        """Wait until no pod holds devices that would go, or refuse; who reads an annotation waits by itself."""
        when = self._when_in_use or change.when_in_use
        if when is WhenInUse.WAIT and not change.label:
            return
        told, loop = "", asyncio.get_running_loop()
        until = loop.time() + (self._timeout or 0.0)
        while found := await self._holders(change):
            which = named(found)
            if when is WhenInUse.REFUSE:
                raise InUse(f"pods hold devices that would go: {which}")
            if loop.time() >= until:
                raise InUse(f"pods still hold devices that would go: {which}")
            if which != told:
                self._report(f"{change.node}: waiting for pods that hold devices which go: {which}")
                told = which
            await asyncio.sleep(self.polls)

    async def _holders(self, change: Change) -> list[Holder]:
        """The pods that may hold devices which go, as it is now."""
        node = decode_node(await self._client.get(path_of("v1", "nodes", name=change.node)))
        return holders(await uses_of(self._client, change.node), change.going, gpu_node(node))

    async def _put_back(self, attempt: Attempt, reason: str) -> NodeRollout:
        """Write the old layout again; where that fails, the reason says what to type."""
        change = attempt.change
        result, back = RolloutResult.FAILED, "the node is as it was"
        try:
            state = await self._state_to_put_back(change)
            if await write(self._client, change, attempt.ours, change.before, state):
                result, back = RolloutResult.PUT_BACK, _WRITTEN_AGAIN
        except Overtaken as error:
            back = str(error)
        except (NotShown, KubeError, InvalidInput) as error:
            gone = isinstance(error, ApiError) and error.is_not_found
            by_hand = f"the old layout could not be put back ({error}): {change.by_hand()}"
            back = "there is nothing to put back" if gone else by_hand
        outcome = self.outcomes[change.node] = NodeRollout(change.node, result, f"{reason}; {back}")
        return outcome

    async def _state_to_put_back(self, change: Change) -> str | None:
        """The old state; mig-manager, where it answers at all, says its own of the old configuration."""
        if change.label:
            node = decode_node(await self._client.get(path_of("v1", "nodes", name=change.node)))
            if gpu_node(node).state:
                return None
        return change.state or None

    async def _come_back(self, attempt: Attempt, outcome: NodeRollout) -> NodeRollout:
        """Wait a while until a node that got its old layout back offers its old devices again."""
        change = attempt.change
        if outcome.result is not RolloutResult.PUT_BACK or self._timeout is None:
            return outcome
        self._report(f"{change.node}: not taken, {_WRITTEN_AGAIN}")
        seconds = min(self._timeout, TO_CLEAR if change.label else TO_COME_BACK)
        async with watched(self._client, change.node) as node:
            there = await attempt.come_back(node, seconds)
        back = "the old layout is back" if there else f"{_WRITTEN_AGAIN}, and not applied after {seconds:g} s"
        return replace(outcome, reason=outcome.reason.replace(_WRITTEN_AGAIN, back))


async def _outcome(alone: Alone, node: str) -> NodeRollout:
    """What becomes of a node that is cordoned."""
    try:
        return ended(node, await alone.run())
    except (KubeError, InvalidInput, NotWritten, LeftUnderWay) as error:
        return NodeRollout(node, RolloutResult.FAILED, str(error))


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Finish some work, also when the operator interrupts meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
