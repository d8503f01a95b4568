"""One node that was written to, followed until it shows its layout; where mig-manager may not know the name yet, tried again.

The kubelet brings a ConfigMap to mig-manager's file after a minute or two, and mig-manager acts on a change of the label only. So where it
answers `failed` soon after a configuration was added, without having begun, the label is changed away and back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tessera.kube.rest.client import Client
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig.nodes import CHANGING, gpu_node
from tessera.rollout.change import Change
from tessera.rollout.progress import WatchedNode, offered_by, offered_on, progress_of
from tessera.rollout.writing import NotShown, Overtaken, paused, resume, write

NO_CONFIGURATION: Final = "tessera-try-again"  # names nothing: mig-manager answers `failed`, and cuts nothing
ENDED: Final = ("success", "failed")  # what mig-manager says when it has ended
# seconds: the kubelet syncs a ConfigMap every minute, plus what its cache keeps; mig-manager may not know a new entry until then
LATE: Final = 180.0
TO_COME_BACK: Final = 60.0  # seconds; an old layout is waited for that long at most
TO_CLEAR: Final = 240.0  # the same where mig-manager cuts, and the device plugin leaves and comes back


class Attempt:
    """One node on its way to a layout."""

    # seconds: a node may still say what it said of its old layout, before it has looked at the new one
    settles = 5.0
    # seconds between two looks at a node whose devices DRA offers
    polls = 2.0
    # seconds from one try to the next; each is twice the one before
    pause = 10.0
    # seconds that mig-manager may take to say something of the name that is there in between
    between = 20.0

    def __init__(
        self,
        client: Client,
        change: Change,
        report: Callable[[str], None],
        *,
        late_until: float = 0.0,  # until then (the loop's time) mig-manager may not know the configuration yet
        ensure: Callable[[], Awaitable[object]] | None = None,  # sees that the ConfigMap has it
    ) -> None:
        self.change = change
        self._client = client
        self._tell = report
        self._late_until = late_until
        self._ensure = ensure
        self._pause = self.pause

    def _report(self, text: str) -> None:
        self._tell(f"{self.change.node}: {text}")

    @property
    def ours(self) -> tuple[str, ...]:
        """What stands on the node because of us."""
        return (self.change.after, NO_CONFIGURATION) if self.change.label else (self.change.after,)

    async def write(self, node: WatchedNode) -> None:
        """Write the new value; where mig-manager has failed with that very name, after another one."""
        change = self.change
        node.states.clear()
        if change.before == change.after:
            await write(self._client, change, [change.before], NO_CONFIGURATION, None)
        await write(self._client, change, [change.before, *self.ours[1:]], change.after, None)

    async def until_shown(self, node: WatchedNode, timeout: float) -> None:
        """Wait until the node shows the layout; `NotShown` says why it does not."""
        change = self.change
        told, reason, refused, since, seen = "", "", "", 0.0, False
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                await node.changed.wait()
                while True:
                    node.changed.clear()
                    if node.node is None:
                        raise NotShown("the node is gone")
                    value = change.value_of(node.node)
                    if value != change.after:
                        if seen or value not in (*self.ours, change.before):
                            raise Overtaken(change)
                        await node.change(None)  # the watch is behind our write
                        continue
                    seen = True
                    offered = await offered_on(self._client, node.node)
                    progress = progress_of(gpu_node(node.node), offered, change.expected)
                    if progress.shown:
                        return
                    await self._resume(node.node, "success")
                    if progress.refused != refused:
                        refused, since = progress.refused, loop.time()
                    # what DRA offers changes without the node
                    left = None if offered_by(node.node) else self.polls
                    if refused and (left := since + self.settles - loop.time()) <= 0:
                        if node.states & CHANGING or loop.time() >= self._late_until:
                            raise NotShown(refused)
                        await self._again(node, refused)
                        refused, seen = "", False
                        continue
                    if progress.waits and (progress.waits, progress.reason) != (told, reason):
                        # the reason once, however numbers change
                        why = f": {progress.reason}" if progress.reason not in ("", reason) else ""
                        told, reason = progress.waits, progress.reason
                        self._report(f"{told}{why}")
                    await node.change(left)
        except TimeoutError as error:
            raise NotShown(
                f"the layout is not applied after {timeout:g} s: {told or refused or 'the node has not reported'}"
            ) from error

    async def _again(self, node: WatchedNode, refused: str) -> None:
        """Change the label away and back, after a while."""
        change = self.change
        self._report(
            f"{refused}. It may not have {change.after} from its ConfigMap yet: tried again in {self._pause:g} s"
        )
        await asyncio.sleep(self._pause)
        self._pause *= 2
        if self._ensure is not None:
            await self._ensure()
        away = change.before if change.before not in (None, change.after) else NO_CONFIGURATION
        await write(self._client, change, self.ours, away, None)

        def answered(one: NodeIn) -> bool:
            return change.value_of(one) != change.after and gpu_node(one).state in ENDED

        await node.until(answered, self.between)
        node.states.clear()
        await write(self._client, change, [away, *self.ours], change.after, None)
        self._report(f"{change.key} written again")

    async def come_back(self, node: WatchedNode, seconds: float) -> bool:
        """Wait until the node offers its old devices again."""

        def back(one: NodeIn) -> bool:
            found = offered_by(one)
            by_dra = not (
                found or self.change.label
            )  # then the state that was put back is all that is looked at
            return found == self.change.offered or (by_dra and gpu_node(one).state == self.change.state)

        await node.until(lambda one: back(one) or bool(paused(one, *ENDED)), seconds)
        if node.node is not None and not back(node.node):
            await self._resume(node.node, *ENDED)
        return await node.until(back, seconds)

    async def _resume(self, node: NodeIn, *states: str) -> None:
        if self.change.label and (left := paused(node, *states)):
            self._report(f"mig-manager has ended and left {', '.join(left)} paused; set to true")
            await resume(self._client, node, left)
