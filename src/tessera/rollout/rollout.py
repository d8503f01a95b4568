"""Writes layouts to nodes, a few at a time, and checks that the nodes take them.

A node that does not show its new layout gets its old one back, and the rollout begins no further node. The same happens to a node
that is being changed when the operator interrupts. If another client changes a node meanwhile, the rollout leaves its value alone. What
mig-manager's ConfigMap lacks is added before the first node, and what no node names afterwards is removed.

What became of a node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.errors import KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig.nodes import gpu_node
from tessera.protocol.mig.rollouts import Owner, Result
from tessera.rollout.alone import Alone, LeftUnderWay
from tessera.rollout.change import Change, Changes, WhenInUse
from tessera.rollout.config_map import ConfigMap, Configurations, NotWritten
from tessera.rollout.in_use import holders, named, uses_of
from tessera.rollout.step import NO_CONFIGURATION
from tessera.rollout.values import How, Outcome
from tessera.rollout.writing import Overtaken, write


class RolloutResult(StrEnum):
    """How the rollout ended for a node."""

    DONE = "done"
    WRITTEN = "written"  # and not waited for
    PUT_BACK = "put back"  # failed or interrupted, and the node has its old layout again
    FAILED = "failed"  # and nothing of ours is left to put back, or it could not be
    REFUSED = "refused"  # and nothing was written
    NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class NodeRollout:
    """What became of a node."""

    node: str
    result: RolloutResult
    reason: str = ""


_RESULTS: Final = {
    Result.DONE: RolloutResult.DONE,
    Result.FAILED: RolloutResult.PUT_BACK,
    Result.NOT_READY: RolloutResult.FAILED,
    Result.IN_USE: RolloutResult.REFUSED,
    Result.OVERTAKEN: RolloutResult.FAILED,
    Result.CANCELLED: RolloutResult.FAILED,
}


def ended(node: str, outcome: Outcome) -> NodeRollout:
    """What became of a node, by how its rollout ended."""
    return NodeRollout(node, _RESULTS[outcome.result], outcome.reason)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cordon:
    """Nodes are cordoned while they change, and what is done about pods that hold devices which go."""

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

    def __init__(
        self,
        client: Client,
        *,
        owner: Owner,
        at_once: int,
        timeout: float | None,
        report: Callable[[str], None],
        when_in_use: WhenInUse | None = None,  # None: as each node has it
        cordon: Cordon | None = None,  # None: nodes are not cordoned
    ) -> None:
        self.outcomes: dict[str, NodeRollout] = {}
        self._client = client
        self._owner = owner
        self._at_once = at_once
        self._timeout = timeout  # None: do not wait
        self._report = report
        self._when_in_use = when_in_use
        self._cordon = cordon
        self._stopped = False
        self._config_map: ConfigMap | None = None
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
        if self._timeout is None:
            return await self._write_only(change)
        how = self._how(change, self._timeout)
        alone = Alone(self._client, change, self._owner, how, self._report, self._ensure(change))
        work: asyncio.Future[NodeRollout] | None = None
        try:
            if not (change.written or change.begun):
                await self._refuse_in_use(change)
            work = asyncio.ensure_future(_outcome(alone, change))
            return await asyncio.shield(work)
        except (InUse, KubeError, InvalidInput) as error:
            return _not_written(change, error)
        except asyncio.CancelledError:
            self._stopped = True
            self.outcomes[change.node] = NodeRollout(change.node, RolloutResult.FAILED, "interrupted")
            if work is not None:
                alone.interrupt()
                try:
                    self.outcomes[change.node] = await work
                except asyncio.CancelledError:  # a second time
                    self.outcomes[change.node] = NodeRollout(
                        change.node, RolloutResult.FAILED, alone.interrupted
                    )
            raise

    def _how(self, change: Change, timeout: float) -> How:
        """How a node is changed; without a cordon, who reads an annotation waits for pods by itself."""
        if (cordon := self._cordon) is not None:
            return How(drain=cordon.drain, drain_timeout=cordon.seconds, timeout=timeout)
        seconds = 0.0 if self._when(change) is WhenInUse.REFUSE else timeout
        return How(cordons=False, waits=change.label, drain_timeout=seconds, timeout=timeout)

    def _when(self, change: Change) -> WhenInUse:
        if self._when_in_use is None and self._cordon is not None:
            return WhenInUse.WAIT
        return self._when_in_use or change.when_in_use

    async def _write_only(self, change: Change) -> NodeRollout:
        """Write, and do not wait for what becomes of it, nor for pods."""
        if change.begun:
            reason = f"a rollout of it has not ended ({change.begun}): continue it without --no-wait"
            return NodeRollout(change.node, RolloutResult.REFUSED, reason)
        try:
            if not change.written:
                await self._refuse_in_use(change, at_once=change.label)
                if change.before == change.after:  # mig-manager acts on a change only
                    await write(self._client, change, [change.before], NO_CONFIGURATION)
                await write(self._client, change, [change.before, NO_CONFIGURATION], change.after)
                self._report(f"{change.node}: {change.key} written")
        except (InUse, Overtaken, NotWritten, KubeError, InvalidInput) as error:
            return _not_written(change, error)
        return NodeRollout(change.node, RolloutResult.WRITTEN)

    def _ensure(self, change: Change) -> Callable[[], Awaitable[object]] | None:
        """What sees that mig-manager's ConfigMap has a configuration of ours."""
        if self._config_map is None or change.after not in self._ours:
            return None
        return partial(self._config_map.add, {change.after: self._ours[change.after]})

    async def _refuse_in_use(self, change: Change, *, at_once: bool = False) -> None:
        """Refuse a node whose pods hold devices that would go, where nobody waits for them."""
        if self._when(change) is not WhenInUse.REFUSE and not at_once:
            return
        node = decode_node(await self._client.get(path_of("v1", "nodes", name=change.node)))
        found = holders(await uses_of(self._client, change.node), change.going, gpu_node(node))
        if found:
            raise InUse(f"pods hold devices that would go: {named(found)}")


async def _outcome(alone: Alone, change: Change) -> NodeRollout:
    """What becomes of a node."""
    try:
        outcome = ended(change.node, await alone.run())
    except LeftUnderWay as error:
        return NodeRollout(change.node, RolloutResult.FAILED, str(error))
    except (KubeError, InvalidInput, NotWritten) as error:
        return _not_written(change, error)
    if outcome.result is RolloutResult.PUT_BACK and change.written and not change.begun:
        return replace(outcome, result=RolloutResult.FAILED)  # nothing was written, so nothing is put back
    return outcome


def _not_written(change: Change, error: TesseraError) -> NodeRollout:
    """What becomes of a node on which nothing of ours stands."""
    if isinstance(error, InUse):
        return NodeRollout(change.node, RolloutResult.REFUSED, str(error))
    return NodeRollout(change.node, RolloutResult.FAILED, f"{error}; the node is as it was")


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Finish some work, also when the operator interrupts meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
