"""What pods wait for, followed as long as a MigLayout is in mode Auto."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tessera.controller.beside import Beside, TooLong
from tessera.controller.layouts.auto.standing import closed, coming
from tessera.controller.layouts.plan import SeenNode
from tessera.inventory.demand.memory import NodeMemory
from tessera.inventory.demand.wants import Situation, situation, wanting_inventory
from tessera.inventory.following import FollowedInventory
from tessera.inventory.inventory import Inventory
from tessera.kube.errors import KubeError
from tessera.kube.rest.client import Client
from tessera.protocol.mig.operator import MigManagerConfig

SOONEST: Final = 10.0  # seconds between two looks, whatever changes
LATEST: Final = 30.0  # the same while something is wanted: wants grow older
_REJECTED: Final = 30.0  # seconds until workloads whose pods are rejected are read again
_MISSING: Final = 1.0  # seconds until it is asked again whether all is known
_BEGINS: Final = 10.0  # seconds that the first lists may take before anything is said of it


@dataclass(frozen=True, slots=True)
class _Followed:
    inventory: Inventory
    followed: FollowedInventory
    task: asyncio.Task[None]
    since: float  # by a clock that never jumps
    memory: NodeMemory = field(default_factory=NodeMemory)


class DemandFollower:
    """Follows nodes, pods and what DRA has; holds nothing while nobody asks."""

    def __init__(self, client: Client, beside: Beside, soonest: float = SOONEST) -> None:
        self._client = client
        self._beside = beside
        self._soonest = soonest
        self._clock = client.clock
        self._followed: _Followed | None = None
        self._read = 0.0  # when rejected workloads were read
        self._looked = 0.0
        self._failed = ""  # why the last look failed

    def start(self) -> None:
        """Begin to follow; raises what has ended it, once: then it begins anew."""
        if self._followed is not None and self._followed.task.done():
            ended, self._followed = self._followed, None
            ended.task.result()
        if self._followed is None:
            inventory = wanting_inventory()
            followed = FollowedInventory(self._client, inventory)
            task = asyncio.ensure_future(followed.follower.run())
            self._followed = _Followed(inventory, followed, task, self._clock.now())
            self._read = self._looked = self._clock.now() - LATEST
            self._failed = ""

    def stop(self) -> None:
        if self._followed is not None:
            self._followed.task.cancel()
            self._followed = None

    def missing(self) -> str:
        """Why it is not known what pods wait for, or what they hold; empty: it is."""
        if self._followed is None:
            return "not followed"
        if self._followed.task.done():
            return "the cluster is not followed any more"
        followed = self._followed.followed
        why = followed.follower.missing() or followed.follower.forbidden() or followed.error
        return why or (self._failed if self._clock.now() < self._looked + self._soonest else "")

    def is_beginning(self) -> bool:
        """Whether what is missing is on its way: the first lists, which take a moment."""
        if self._followed is None or self._clock.now() >= self._followed.since + _BEGINS:
            return False
        follower = self._followed.followed.follower
        return not any(one.health.last_error for one in follower.reflectors)

    def is_due(self, *, wants: bool) -> bool:
        """Whether it is time for a look."""
        if self._followed is None:
            return False
        since, changed = self._clock.now() - self._looked, self._followed.followed.changed.is_set()
        return since >= self._soonest and (changed or (wants and since >= LATEST))

    async def due(self) -> None:
        """Wait until something has changed, and it is time for a look."""
        if self._followed is None:
            await asyncio.Event().wait()
        else:
            await self._followed.followed.changed.wait()
            await self._clock.sleep(max(0.0, self._looked + self._soonest - self._clock.now()))
            while self.missing():
                await self._clock.sleep(_MISSING)

    async def look(
        self, nodes: Mapping[str, SeenNode], left: Mapping[str, str], manager: MigManagerConfig | None
    ) -> Situation | None:
        """What is wanted, and the cards; None where it cannot be read now. `left`: nodes that are left as they are, and why."""
        assert self._followed is not None  # noqa: S101 # `missing` says so first
        inventory, followed, memory = self._followed.inventory, self._followed.followed, self._followed.memory
        now = self._looked = self._clock.now()
        self._failed = ""
        if now >= self._read + _REJECTED:
            try:
                await inventory.rejected.read(self._client, self._clock)
            except KubeError as error:  # of this: rollouts, and layouts that are fixed, go on
                self._failed = str(error)
                return None
            self._read = now
        inventory.mig_manager = manager
        followed.changed.clear()
        followed.now()
        wall, every = self._clock.wall(), tuple(nodes.values())

        def work() -> Situation:
            without = closed(every)
            return situation(inventory, wall, coming=coming(every), left=left, without=without, memory=memory)

        followed.pause()
        try:
            return await self._beside.do(work)
        except TooLong:
            self.stop()  # its thread reads the inventory still
            raise
        finally:
            self._catch_up(followed)

    def _catch_up(self, followed: FollowedInventory) -> None:
        try:
            followed.catch_up()
        except BaseException:  # it would be out of date from now on
            self.stop()
            raise
