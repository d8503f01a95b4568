"""Writes layouts to nodes, a few at a time, and checks that the nodes take them.

A node that does not show its new layout gets its old one back, and the rollout begins no further node. The same happens to a node
that is being changed when the operator interrupts. If another client changes a node meanwhile, the rollout leaves its value alone.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, PatchType
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig.nodes import gpu_node
from tessera.rollout.changes import Change
from tessera.rollout.progress import Watched, offered_by, progress_of, watched

_MANAGER: Final = {"fieldManager": "tessera"}
_MOST_TRIES: Final = 5  # a kubelet writes its node every few seconds: two conflicts in a row are rare
_WRITTEN_AGAIN: Final = "the old layout is written again"
_TO_COME_BACK: Final = 60.0  # seconds; an old layout is waited for that long at most


class RolloutResult(StrEnum):
    """How the rollout ended for a node."""

    DONE = "done"
    WRITTEN = "written"  # and not waited for
    PUT_BACK = "put back"  # failed or interrupted, and the node has its old layout again
    FAILED = "failed"  # and nothing of ours is left to put back, or it could not be
    NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class NodeRollout:
    """What became of a node."""

    node: str
    result: RolloutResult
    reason: str = ""


class NotShown(TesseraError):
    """The node does not show the layout that was written."""


class Overtaken(TesseraError):
    """Another client wrote something else."""

    def __init__(self, change: Change) -> None:
        super().__init__(f"another client changed {change.wanted.key} meanwhile; left as it is")


@dataclass(frozen=True, slots=True)
class MaxUnavailable:
    """How many nodes may be without their devices at a time: a number, or a part of all."""

    number: int
    percent: bool

    @classmethod
    def parse(cls, text: str) -> "MaxUnavailable":
        """Read `2` or `25%`."""
        digits = text.removesuffix("%")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 6 and int(digits)):
            raise InvalidInput(f'"{text}" is not a number of nodes such as 2, nor a part of them such as 25%')
        return cls(int(digits), text.endswith("%"))

    def of(self, nodes: int) -> int:
        """So many of these; never none."""
        return max(1, nodes * self.number // 100) if self.percent else self.number


class Rollout:
    """Changes, carried out a few at a time."""

    # seconds: a node may still say what it said of its old layout, before it has looked at the new one
    settles = 5.0

    def __init__(
        self, client: Client, *, at_once: int, timeout: float | None, report: Callable[[str], None]
    ) -> None:
        self.outcomes: dict[str, NodeRollout] = {}
        self._client = client
        self._at_once = at_once
        self._timeout = timeout  # None: do not wait
        self._report = report
        self._stopped = False

    @property
    def succeeded(self) -> bool:
        """Whether every node took its layout, as far as that was waited for."""
        return all(
            one.result in (RolloutResult.DONE, RolloutResult.WRITTEN) for one in self.outcomes.values()
        )

    async def run(self, changes: Sequence[Change]) -> None:
        """Carry them out; `outcomes` tells what became of each, also when this is cancelled."""
        for change in changes:
            self.outcomes[change.node] = NodeRollout(change.node, RolloutResult.NOT_BEGUN)
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

    async def _carry_out(self, change: Change) -> NodeRollout:
        ours = False  # whether something of ours may stand on the node
        try:
            if not change.written:
                ours = True
                await self._write(change, change.before, change.after, None)
                self._report(f"{change.node}: {change.wanted.key} written")
            if self._timeout is None:
                return NodeRollout(change.node, RolloutResult.WRITTEN)
            async with watched(self._client, change.node) as node:
                await self._until_shown(node, change, self._timeout)
        except Overtaken as error:
            return NodeRollout(change.node, RolloutResult.FAILED, str(error))
        except (NotShown, KubeError, InvalidInput) as error:
            if not ours:
                return NodeRollout(change.node, RolloutResult.FAILED, str(error))
            return await self._come_back(change, await self._put_back(change, str(error)))
        except asyncio.CancelledError:
            self._stopped = True
            self.outcomes[change.node] = NodeRollout(change.node, RolloutResult.FAILED, "interrupted")
            if ours:
                await self._put_back(change, "interrupted")
            raise
        self._report(f"{change.node}: done")
        return NodeRollout(change.node, RolloutResult.DONE)

    async def _write(
        self, change: Change, expected: str | None, value: str | None, state: str | None
    ) -> bool:
        """Write a value and its state where the expected value is; False when the value is there already."""
        path = path_of("v1", "nodes", name=change.node)
        for _ in range(_MOST_TRIES):
            node = decode_node(await self._client.get(path))
            found = change.wanted.value_of(node)
            if found == value:
                return False
            if found != expected:
                raise Overtaken(change)
            patch = change.patch(value, state, node.metadata.resource_version)
            try:
                await self._client.patch(path, patch, PatchType.MERGE, _MANAGER)
            except ApiError as error:
                if not error.is_conflict:
                    raise
            else:
                return True
        raise NotShown(f"the node changed {_MOST_TRIES} times while it was written to")

    async def _until_shown(self, node: Watched, change: Change, timeout: float) -> None:
        told, reason, refused, since = "", "", "", 0.0
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                await node.changed.wait()
                while True:
                    node.changed.clear()
                    if node.node is None:
                        raise NotShown("the node is gone")
                    if change.wanted.value_of(node.node) not in (change.after, change.before):
                        raise Overtaken(change)
                    progress = progress_of(gpu_node(node.node), offered_by(node.node), change.expected)
                    if progress.shown:
                        return
                    if progress.refused != refused:
                        refused, since = progress.refused, loop.time()
                    left = None
                    if refused and (left := since + self.settles - loop.time()) <= 0:
                        raise NotShown(refused)
                    if (progress.waits, progress.reason) != (told, reason):
                        # the reason once, however numbers change
                        why = f": {progress.reason}" if progress.reason not in ("", reason) else ""
                        told, reason = progress.waits, progress.reason
                        self._report(f"{change.node}: {told}{why}")
                    await node.change(left)
        except TimeoutError as error:
            raise NotShown(
                f"the layout is not applied after {timeout:g} s: {told or refused or 'the node has not reported'}"
            ) from error

    async def _put_back(self, change: Change, reason: str) -> NodeRollout:
        """Write the old layout again, also when the operator interrupts meanwhile."""
        writing = asyncio.ensure_future(self._write_back(change, reason))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def _write_back(self, change: Change, reason: str) -> NodeRollout:
        """Write the old layout again; where that fails, the reason says what to type."""
        result, back = RolloutResult.FAILED, "the node is as it was"
        try:
            if await self._write(change, change.after, change.before, change.state or None):
                result, back = RolloutResult.PUT_BACK, _WRITTEN_AGAIN
        except Overtaken as error:
            back = str(error)
        except (NotShown, KubeError, InvalidInput) as error:
            back = f"the old layout could not be put back ({error}): {_by_hand(change)}"
        outcome = self.outcomes[change.node] = NodeRollout(change.node, result, f"{reason}; {back}")
        return outcome

    async def _come_back(self, change: Change, outcome: NodeRollout) -> NodeRollout:
        """Wait a while until a node that got its old layout back offers its old devices again."""
        if outcome.result is not RolloutResult.PUT_BACK or self._timeout is None:
            return outcome
        self._report(f"{change.node}: not taken, {_WRITTEN_AGAIN}")
        seconds = min(self._timeout, _TO_COME_BACK)
        async with watched(self._client, change.node) as node:
            there = await node.offers(change.offered, seconds)
        back = "the old layout is back" if there else f"{_WRITTEN_AGAIN}, and not applied after {seconds:g} s"
        return replace(outcome, reason=outcome.reason.replace(_WRITTEN_AGAIN, back))


async def refusal(client: Client, change: Change) -> str:
    """Why the API server would refuse a change, by a dry run; empty when it would accept it."""
    path = path_of("v1", "nodes", name=change.node)
    try:
        await client.patch(
            path, change.patch(change.after, None), PatchType.MERGE, {**_MANAGER, "dryRun": "All"}
        )
    except ApiError as error:
        return str(error)
    return ""


def _by_hand(change: Change) -> str:
    verb = "label" if change.wanted.label else "annotate"
    if change.before is None:
        return f"kubectl {verb} node {change.node} {change.wanted.key}-"
    return f"kubectl {verb} node {change.node} --overwrite {change.wanted.key}='{change.before}'"
