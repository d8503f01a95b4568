"""The autopilot's looks: what it follows as long as a MigLayout is in mode Auto, when it decides, and what is said where it cannot.

A look runs beside the loop. Where it cannot decide, nothing is re-cut, and all else goes on."""

import asyncio
import gc
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tessera.controller.layouts.auto.autopilot import Autopilot, closed, coming
from tessera.controller.layouts.auto.deciding import Look, Undecided
from tessera.controller.layouts.auto.memory import is_readable
from tessera.controller.layouts.plan import SeenNode
from tessera.controller.layouts.state import LayoutState
from tessera.controller.reconciler import Beside, ReconcilerFailures, ReconcilerParts, ServerTime, TooLong
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.blocked import Block
from tessera.inventory.inventory import FollowedInventory
from tessera.inventory.pending import NodeMemory
from tessera.inventory.wants import Situation, situation, wanting_inventory
from tessera.kube.clock import Once
from tessera.kube.errors import KubeError
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.shared_entries import UNREADABLE
from tessera.kube.watch.table import Table, TableEntry
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.operator import MigManagerConfig

SOONEST: Final = 10.0  # seconds between two looks, whatever changes
LATEST: Final = 30.0  # the same while something is wanted: wants grow older
_REJECTED: Final = 30.0  # seconds until workloads whose pods are rejected are read again
_MISSING: Final = 1.0  # seconds until it is asked again whether all is known
_BEGINS: Final = 10.0  # seconds that the first lists may take before anything is said of it


class DemandFollower:
    """Follows pods and what DRA has, and takes the nodes that the reconciler follows; holds nothing while nobody asks."""

    def __init__(
        self, client: Client, follower: Follower, nodes: Table, beside: Beside, soonest: float = SOONEST
    ) -> None:
        """`nodes`: the table by which the reconciler follows them; `soonest`: seconds between two looks."""
        self._client = client
        self._follower = follower
        self._beside = beside
        self._soonest = soonest
        self._clock = client.clock
        self._nodes_table = nodes
        self._nodes: dict[str, NodeIn] = {}  # as the inventory has them
        self._followed: FollowedInventory | None = None
        self._memory = NodeMemory()
        self._bug: Exception | None = None  # since then the inventory is not right any more
        self._since = 0.0  # when it began, by a clock that never jumps
        self._read = 0.0  # when rejected workloads were read
        self._looked = 0.0
        self._failed = ""  # why the last look failed
        self._blocked: Mapping[Block, int] = {}

    def blocked_pods(self) -> dict[tuple[str], int]:
        """How many pods wait for something else than a device, by why; none while nothing is followed."""
        return {(block,): self._blocked.get(block, 0) for block in Block} if self._followed else {}

    def start(self) -> None:
        """Begin to follow; raises what has ended it, once: then it begins anew."""
        if self._bug is not None:
            bug = self._bug
            self.stop()
            raise bug
        if self._followed is None:
            self._followed = FollowedInventory(
                self._client, wanting_inventory(), self._follower, wrap=self._guarded, nodes=False
            )
            self._nodes = {}
            self._memory = NodeMemory()
            self._since = self._clock.now()
            self._read = self._looked = self._since - LATEST
            self._failed = ""

    def _guarded(self, entry: TableEntry[Any]) -> TableEntry[Any]:
        """The same, where a bug ends what is followed here: the follower goes on for others."""

        def guard(work: Callable[..., object], *passes: type[Exception]) -> Callable[..., object]:
            def guarded(*given: Any) -> object:
                try:
                    return work(*given)
                except passes:
                    raise
                except Exception as bug:  # noqa: BLE001 # `start` raises it
                    self._bug = self._bug or bug
                    return None

            return guarded

        return replace(entry.through(guard), decode=guard(entry.decode, *UNREADABLE))

    def stop(self) -> None:
        if self._followed is not None:
            self._follower.drop(self._followed.table)
            self._followed, self._memory = None, NodeMemory()
            gc.collect()  # the table and the inventory refer to each other, and all objects are seldom gone through
        self._bug = None
        self._nodes = {}

    def take_nodes(self, nodes: Mapping[str, SeenNode]) -> None:
        """Bring the inventory's nodes up to date. Of one that cannot be read the last good state stays."""
        assert self._followed is not None  # noqa: S101 # `start` comes first
        followed, known = self._followed, self._nodes
        try:
            for name in known.keys() - nodes.keys():
                del known[name]
                followed.inventory.remove_node(name)
                followed.changed.set()
            for name, seen in nodes.items():
                if known.get(name) is not seen.node:
                    known[name] = seen.node
                    self._take_node(followed, seen.node)
        except Exception:
            self.stop()  # the inventory is not right any more
            raise

    def _take_node(self, followed: FollowedInventory, node: NodeIn) -> None:
        try:
            followed.inventory.put(followed.inventory.node_of(node))
        except UNREADABLE as error:
            log.warning("nodes: left out an object: %s", error)
            return
        followed.changed.set()

    def missing(self) -> str:
        """Why it is not known what pods wait for, or what they hold; empty: it is."""
        if self._followed is None:
            return "not followed"
        if self._bug is not None:
            return "the cluster is not followed any more"
        table = self._followed.table
        follower = self._follower
        why = follower.missing(table) or follower.forbidden(table) or self._followed.error
        why = why or follower.stale(self._nodes_table)
        return why or (self._failed if self._clock.now() < self._looked + self._soonest else "")

    def is_beginning(self) -> bool:
        """Whether what is missing is on its way: the first lists, which take a moment."""
        if self._followed is None or self._clock.now() >= self._since + _BEGINS:
            return False
        return not self._follower.forbidden(self._followed.table)

    def is_due(self, *, wants: bool) -> bool:
        """Whether it is time for a look."""
        if self._followed is None:
            return False
        since, changed = self._clock.now() - self._looked, self._followed.changed.is_set()
        return since >= self._soonest and (changed or (wants and since >= LATEST))

    async def due(self) -> None:
        """Wait until something has changed, and it is time for a look."""
        if self._followed is None:
            await asyncio.Event().wait()
        else:
            await self._followed.changed.wait()
            await self._clock.sleep(max(0.0, self._looked + self._soonest - self._clock.now()))
            while self.missing():
                await self._clock.sleep(_MISSING)

    async def look(
        self, nodes: Mapping[str, SeenNode], left: Mapping[str, str], manager: MigManagerConfig | None
    ) -> Situation | None:
        """What is wanted, and the cards; None where it cannot be read now. `left`: nodes that are left as they are, and why."""
        assert self._followed is not None  # noqa: S101 # `missing` says so first
        followed, memory = self._followed, self._memory
        inventory = followed.inventory
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
            seen = await self._beside.do(work)
        except TooLong:
            self.stop()  # its thread reads the inventory still
            raise
        else:
            self._blocked = seen.blocked
            return seen
        finally:
            try:
                followed.catch_up()
            except BaseException:  # it would be out of date from now on
                self.stop()
                raise


log = logging.getLogger(__name__)

_WHO: Final = "the autopilot"  # as the log names it
_POLICY: Final = "policy"  # as its failures are counted


class Looking:
    """Has the autopilot decide, as long as a MigLayout is in mode Auto."""

    def __init__(
        self,
        parts: ReconcilerParts,
        failures: ReconcilerFailures,
        pilot: Autopilot,
        nodes: Table,
        soonest: float,
    ) -> None:
        """`nodes`: the table by which the reconciler follows them; `soonest`: seconds between two looks."""
        self._metrics = parts.metrics
        self._failures = failures
        self._pilot = pilot
        self._beside = Beside()
        self._demand = DemandFollower(parts.client, parts.follower, nodes, self._beside, soonest)
        parts.metrics.blocked_pods = self._demand.blocked_pods
        self._time = ServerTime(parts.client)
        self._wrong_clock = Once()

    def stop(self) -> None:
        """Follow nothing any more."""
        self._demand.stop()

    async def due(self) -> None:
        """Wait until it is time for a look."""
        await self._demand.due()

    async def decide(
        self,
        ours: Collection[MigLayout],
        state: LayoutState,
        manager: MigManagerConfig | None,
        put_off: Callable[[str], str],
    ) -> None:
        """Have it decided for those of our MigLayouts that are in mode Auto, if it is time. `put_off`: why a node is not looked at for a while."""
        pilot = self._pilot
        if not any(one.follows_demand for one in state.layouts.values()):
            self.stop()
            pilot.looks.clear()
            return
        if (wrong := self._by_wrong_clock()) is not None:
            pilot.put_undecided(wrong)
        elif not self._failures.rests(_WHO):
            undecided = None
            with self._failures.survived(_POLICY, _WHO) as tried:
                auto = [one for one in ours if one.follows_demand]
                undecided = await self._look(auto, state, manager, put_off)
            if tried.error is not None:
                undecided = Undecided.by(tried.error)
            pilot.put_undecided(self._by_wrong_clock() or undecided)  # a look may have taken a while

    async def _look(
        self,
        ours: Collection[MigLayout],
        state: LayoutState,
        manager: MigManagerConfig | None,
        put_off: Callable[[str], str],
    ) -> Undecided | None:
        """Look at what pods wait for, and decide. What is decided by is copied first: the watches go on."""
        self._demand.start()
        self._demand.take_nodes(state.nodes)
        missing, pilot = self._demand.missing(), self._pilot
        if not missing and (self._demand.is_due(wants=pilot.is_unsettled()) or not pilot.knows(ours)):
            question = pilot.question(ours, state.layouts.values(), state.nodes, self._time.now())
            left = pilot.left(question.nodes.values(), question.now, put_off)
            seen = await self._demand.look(question.nodes, left, manager)
            if seen is not None:
                looks = await self._beside.do(partial(question.decide, seen))
                pilot.take(question, looks)
                self._complain(ours, looks)
            missing = self._demand.missing()
        if missing:
            pilot.looks.clear()
        if not missing or self._demand.is_beginning():  # then what was said last stands for a moment
            return None
        return Undecided(f"What pods wait for is not known: {missing}")

    def _complain(self, layouts: Iterable[MigLayout], looks: Mapping[str, Look]) -> None:
        """Of some what an earlier leader remembered cannot be read; for some nothing could be decided."""
        for one in layouts:
            if not is_readable(one):
                self._metrics.failures.add("memory")
                text = "MigLayout %s: status.autopilot.past cannot be read: no re-cut for an hour"
                log.warning(text, one.name)
            error = looks[one.uid].error
            if error is not None and not isinstance(error, InvalidInput):  # the status has what is invalid
                self._failures.note(_POLICY, f"MigLayout {one.name}, the autopilot", error)

    def _by_wrong_clock(self) -> Undecided | None:
        """Say how this machine's clock is wrong, and log it once. By such a clock budget and cool-down would not hold."""
        wrong = self._time.wrong()
        if not wrong:
            if self._wrong_clock.end():
                log.info("this machine's clock and the API server's agree again")
            return None
        if self._wrong_clock.begin("wrong"):  # by how much changes all the time
            self._metrics.failures.add("clock")
            log.warning("the autopilot re-cuts nothing until they agree: %s", wrong)
        return Undecided(f"{wrong[0].upper()}{wrong[1:]}")
