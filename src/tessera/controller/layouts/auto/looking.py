"""The autopilot's looks: when it decides, beside the loop, and what is said where it cannot. Then nothing is re-cut, and all else goes on."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from tessera.controller.layouts.auto.autopilot import Autopilot
from tessera.controller.layouts.auto.deciding import Look, Undecided
from tessera.controller.layouts.auto.demand import DemandFollower
from tessera.controller.layouts.auto.memory import is_readable
from tessera.controller.layouts.state import LayoutState
from tessera.controller.reconciler import Beside, ReconcilerFailures, ReconcilerParts, ServerTime
from tessera.core.errors import InvalidInput
from tessera.kube.clock import Once
from tessera.kube.watch.table import Table
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.operator import MigManagerConfig

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
