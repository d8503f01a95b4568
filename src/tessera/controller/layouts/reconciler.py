"""Follows MigLayouts, nodes and pods, and carries out what the plan says: level-triggered, so a restart loses nothing.

A leader takes over each MigLayout first, by one write to its status: from then on the slots that an earlier leader would write conflict. It
cordons only nodes whose slot is written, and each write to a node has the node's version.

What Events of a MigLayout say: conditions that begin to hold, and the autopilot's decisions. Pure.
"""

import logging
from collections.abc import Collection, Coroutine, Iterator, Mapping
from math import inf
from typing import Any, Final, TypeVar

from msgspec import to_builtins

from tessera.controller.layouts.auto.autopilot import Autopilot
from tessera.controller.layouts.auto.decisions import changed_rows
from tessera.controller.layouts.auto.looking import SOONEST, Looking
from tessera.controller.layouts.judging import Verdict, Verdicts
from tessera.controller.layouts.nodes import NodeRollouts
from tessera.controller.layouts.plan import LayoutPlan, SeenNode, State, plan
from tessera.controller.layouts.state import MIG_LAYOUTS, NOT_YET, LayoutState
from tessera.controller.layouts.status import Pace, news, status_of
from tessera.controller.reconciler import Reconciler, ReconcilerParts, ServerTime, of_the_server
from tessera.inventory.operator import read_mig_manager
from tessera.kube.clock import CONFLICTS, Retries, first_of
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import About, Event
from tessera.kube.rest.client import PatchType, path_of
from tessera.kube.view.lease import LAYOUTS
from tessera.kube.watch.table import NODES
from tessera.protocol.mig.miglayout import (
    API_VERSION,
    DRY_RUN,
    KIND,
    PLURAL,
    UNDER_WAY,
    AutopilotStatus,
    HistoryRow,
    MigLayout,
)
from tessera.protocol.mig.nodes import gpu_node
from tessera.protocol.mig.rollouts import Result
from tessera.rollout.config_map import MANAGER

_DECISIONS: Final = {
    DRY_RUN: "MIGRecutPlanned",
    UNDER_WAY: "MIGRecutBegun",
    Result.DONE: "MIGRecutDone",
    Result.FAILED: "MIGRecutFailed",
}
_GIVEN_UP: Final = "MIGRecutGivenUp"


def of_conditions(layout: MigLayout, status: Mapping[str, Any]) -> Iterator[Event]:
    """Conditions that begin to hold with this status."""
    for one in status["conditions"]:
        if one["status"] != "True" or layout.condition(one["type"]).status == "True":
            continue
        kind = "Warning" if one["type"] in ("Degraded", "Invalid") else "Normal"
        yield Event(_about(layout), one["reason"], one["message"] or one["type"], kind)


def of_decision(layout: MigLayout, row: HistoryRow) -> Event:
    """A decision, or what became of it."""
    kind = "Warning" if row.result == Result.FAILED else "Normal"
    told = f"; {row.told}" if row.told else ""
    text = f"node {row.node}, card {row.card}: {row.before} → {row.after}: {row.reason}{told}"
    return Event(_about(layout), _DECISIONS.get(row.result, _GIVEN_UP), text, kind)


def _about(layout: MigLayout) -> About:
    return About(API_VERSION, KIND, layout.name, "", layout.uid)


log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL: Final = 2.0  # seconds between two looks at nodes that are under way
_REST: Final = 30.0  # seconds between two looks where nothing is
_CONFIGURATIONS: Final = 30.0  # seconds until mig-manager's ConfigMap is read again
_BURST: Final = 0.2  # seconds: changes come in bursts


class LayoutReconciler(Reconciler):
    """Gives the nodes of MigLayouts their layout."""

    name = LAYOUTS

    def __init__(
        self,
        parts: ReconcilerParts,
        identity: str,
        *,
        poll: float = _POLL,
        soonest: float = SOONEST,
    ) -> None:
        """`poll`: seconds between two looks at nodes that are under way; `soonest`: between two looks of the autopilot."""
        super().__init__(
            parts, "the controller keeps no layouts (they need the chart's value layouts.enabled): %s"
        )
        client, metrics = parts.client, parts.metrics
        self._identity = identity
        self._poll = poll
        self.state = LayoutState(self._changed.set)
        self.table = self.state.table()
        parts.follower.add(self.table)
        # when mig-manager's configurations were read, and for which MigLayouts
        self._read: tuple[float, frozenset[tuple[str, int]]] = -inf, frozenset()
        self._verdicts = Verdicts()
        self._states: dict[State, int] = {}
        self._autopilot = Autopilot(client.clock.now, self.state.takers)
        self._time = ServerTime(client)
        nodes = {NODES: self.table[NODES]}
        self._looking = Looking(parts, self._failures, self._autopilot, nodes, soonest)
        self._pace = Pace()
        self._again = inf  # when something is to be written that can wait, by a clock that never jumps
        self._conflicts = Retries(client.clock.now, *CONFLICTS)  # of MigLayouts, by UID
        self._rollouts = NodeRollouts(parts, self.state, self._failures, self._verdict)
        metrics.layout_nodes = lambda: {
            (one.lower(),): self._states.get(one, 0) if metrics.leads() else 0 for one in State
        }
        metrics.foreign_records = lambda: self._rollouts.records.foreign if metrics.leads() else 0
        metrics.wanted, metrics.refused_devices = self._autopilot.wanted, self._autopilot.refused
        metrics.proposed, metrics.unused_recuts = self._autopilot.proposed, self._autopilot.unused

    def lacks(self) -> str:
        """Why there are no MigLayouts; a cluster may well be without DRA."""
        return self.follower.absent(MIG_LAYOUTS)

    def begin(self) -> None:
        self._rollouts.reset()
        self._autopilot.reset()
        self._pace.clear()
        self._conflicts.clear()

    def end(self) -> None:
        self._looking.stop()
        self._autopilot.reset()

    async def reconcile(self) -> bool:
        """Do what is to be done now; whether there is more to do at once."""
        self._conflicts.forget_old()
        for layout in list(self.state.layouts.values()):
            if layout.status.controller != self._identity and self._conflicts.is_due(layout.uid):
                self._fence()
                await self._tried(layout, self._write_status(layout, {"controller": self._identity}))
        await self._read_configurations()
        more = await self._rollouts.drive()
        around, put_off = self.state.around.manager, self._rollouts.put_off
        await self._looking.decide(self._ours(), self.state, around, put_off)
        now, told = self._time.now(), self._rollouts.told
        plans = plan(
            list(self.state.layouts.values()),
            self.state.nodes,
            self._verdict,
            self.state.busy,
            now,
            told,
            lambda one, kept: self._autopilot.plan(one, kept, now, told, put_off),
            self._rollouts.records.with_slot,
        )
        self._states, self._again = {}, inf
        for one in plans:
            for state, _ in one.states.values():
                self._states[state] = self._states.get(state, 0) + 1
            if one.layout.status.controller == self._identity:
                more |= await self._tried(one.layout, self._carry_out(one)) or False
        records = (one.record for one in self.state.nodes.values() if one.record is not None)
        await self._rollouts.configurations.tidy(self.state.around.manager, records)
        return more

    def _ours(self) -> list[MigLayout]:
        """The MigLayouts that this process has taken over."""
        return [one for one in self.state.layouts.values() if one.status.controller == self._identity]

    async def _tried(self, layout: MigLayout, work: Coroutine[Any, Any, T]) -> T | None:
        """Do some work for one MigLayout; where the API server refuses it, or it meets a bug, the others go on."""
        subject = f"MigLayout {layout.name}"
        if self._failures.rests(subject):
            work.close()
            return None
        with self._failures.survived("layout", subject, of_the_server):
            return await work
        return None

    async def _carry_out(self, one: LayoutPlan) -> bool:
        """Give slots back, write the status with the new ones, and begin; whether there is more to do at once."""
        if one.bug is not None:
            raise one.bug
        if not self._conflicts.is_due(one.layout.uid):
            return False
        if one.begin and not one.recuts and await self._rollouts.refused(one.ready(), one.layout):
            return True  # the next plan is without them
        released = {name for name in one.unused if await self._rollouts.release(name, one.layout)}
        if one.recuts and self._time.wrong():
            return True  # since it was planned: the next plan has none
        layout, now = one.layout, self._time.now()
        status = status_of(one, self._identity, now, released)
        said = self._of_autopilot(one, released, status, now)
        what, moment = news(layout, status, said), self._clock.now()
        due = self._pace.due(layout.uid, what, moment)
        if due <= moment:
            self._fence()
            written = await self._write_status(layout, status)
            if written is None:
                return True
            self._tell(layout, status, said)
            self._autopilot.written(one)
            self._pace.written(layout.uid, what, moment)
            layout = written
        else:
            self._again = min(self._again, due)
        self._rollouts.slots_written(one.layout, one.begin)
        for name in one.begin:
            if name in layout.updating and self._stands(layout):
                await self._rollouts.begin(name, layout, one.recuts.get(name, ()))
        return bool(released or one.begin)

    def _stands(self, layout: MigLayout) -> bool:
        """Whether a MigLayout still is as it was planned for: it may be paused, or have a lower limit, by now."""
        known = self.state.layouts.get(layout.name)
        return known is not None and (known.uid, known.metadata.generation) == (
            layout.uid,
            layout.metadata.generation,
        )

    def _of_autopilot(
        self, one: LayoutPlan, released: Collection[str], status: dict[str, Any], now: float
    ) -> AutopilotStatus | None:
        """Complete a status with what the autopilot says; None where it has no say."""
        if not one.layout.follows_demand:
            if "autopilot" in one.layout.raw_status:
                status["autopilot"] = None  # by a merge patch it goes
            return None
        said = self._autopilot.status(one, self.state.nodes, released, self._rollouts, now)
        status["autopilot"] = to_builtins(said)
        return said

    async def _write_status(self, layout: MigLayout, status: dict[str, Any]) -> MigLayout | None:
        """Write to the status with the MigLayout's version; None where it has changed since."""
        path = path_of(API_VERSION, PLURAL, name=layout.name) + "/status"
        body = {"metadata": {"resourceVersion": layout.version, "uid": layout.uid}, "status": status}
        try:
            written = MigLayout.read(await self._client.patch(path, body, PatchType.MERGE, MANAGER))
        except ApiError as error:
            if not (error.is_conflict or error.is_not_found):
                raise
            self._conflicts.put_off(layout.uid)
            # the watch may be behind
            raw = await self._client.find(path_of(API_VERSION, PLURAL, name=layout.name))
            if raw is None:
                self.state.remove_layout(layout.name)
            else:
                self.state.refresh_layout(MigLayout.read(raw))
            return None
        self._conflicts.forget(layout.uid)
        self.state.refresh_layout(written)
        return written

    def _verdict(self, node: SeenNode, layout: MigLayout) -> Verdict:
        """How a node stands to a MigLayout."""
        if put_off := self._rollouts.put_off(node.name):
            return Verdict(waits=put_off)
        found = self._verdicts.of(node.node, layout, self.state.around, self.state.sliced(node.name))
        if found.waits == NOT_YET:  # the first node that mig-manager cuts
            self._read = -inf, self._read[1]
            self._changed.set()
        return found

    async def _read_configurations(self) -> None:
        """mig-manager's configurations, where it cuts nodes of a MigLayout."""
        now, layouts = self._clock.now(), list(self.state.layouts.values())
        known = now, frozenset((one.uid, one.metadata.generation) for one in layouts)
        if known[1] == self._read[1] and now < self._read[0] + _CONFIGURATIONS:
            return
        if known[1] != self._read[1]:
            self._rollouts.look_again()
        self._read = known
        nodes = [one.node for one in self.state.nodes.values()]
        if any(
            gpu_node(node).by_mig_manager
            for node in nodes
            if any(one.selects(node.metadata.labels or {}) for one in layouts)
        ):
            self.state.put_manager(await read_mig_manager(self._client))
        self._verdicts.keep(self.state.nodes.keys())

    def _tell(self, layout: MigLayout, status: dict[str, Any], now: AutopilotStatus | None) -> None:
        """What begins to hold, and decisions with what became of them, are told as Events of the MigLayout."""
        for event in of_conditions(layout, status):
            self._recorder.record(event)
        for row in changed_rows(layout.autopilot, now) if now is not None else ():
            self._recorder.record(of_decision(layout, row))
            if row.result != UNDER_WAY:
                self._metrics.recuts.add(row.result.lower())

    async def rest(self, took: float) -> None:
        """Wait until something has changed, or for the next look; at least as long as the last one took, since many nodes change all the time."""
        await self._clock.sleep(min(max(_BURST, took), self._poll))
        seconds = self._poll if self._rollouts.under_way() else _REST
        seconds = min(seconds, max(0.0, self._again - self._clock.now()), self._conflicts.next() or inf)
        await first_of(self._clock.sleep(seconds), self._changed.wait(), self._looking.due())
