"""The rollouts of single nodes: begun, driven to their end, and what is told of them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from msgspec.structs import replace

from tessera.controller.layouts.configurations import OurConfigurations
from tessera.controller.layouts.judging import Verdict, judge
from tessera.controller.layouts.plan import SeenNode, is_lost, kept_by, known_slot, may_begin_by, skipped
from tessera.controller.layouts.slots import RolloutRecords, longest_phase
from tessera.controller.layouts.state import LayoutState
from tessera.controller.reconciler import (
    ReconcilerFailures,
    ReconcilerParts,
    ServerTime,
    of_the_server,
    words,
)
from tessera.core.autopilot.values import Recut
from tessera.inventory.dra import DraInventory
from tessera.kube.clock import Once, Retries
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import About, Event
from tessera.kube.rest.client import is_name, path_of
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig.miglayout import API_VERSION, PLURAL, MigLayout, Slot, find_keepers
from tessera.protocol.mig.rollouts import Owner, Phase, Result, RolloutRecord
from tessera.rollout.carrying import CHANGES_ALL_THE_TIME, Carrier
from tessera.rollout.change import Change
from tessera.rollout.changes import Surroundings
from tessera.rollout.in_use import named
from tessera.rollout.planned import NotNow, recut_change
from tessera.rollout.step import begin, end_abandoned, rebuild_record, step, unfence, write_again
from tessera.rollout.step import fence as fence_off
from tessera.rollout.values import How, NodeSnapshot, NotUnderWay, Outcome, Patch, Step, Wait

log = logging.getLogger(__name__)

_FIRST: Final = 60.0  # seconds until a node that did not begin is looked at again
_LONGEST: Final = 600.0  # the same of one that refuses again and again
_AT_ONCE: Final = 16  # nodes that are read and written at the same time
_SHARED: Final = 10.0  # seconds: of thousands of nodes that may begin, not each reads all claims of the cluster; who is cordoned is looked at anew


class NodeRollouts:
    """Steps of the rollouts that are under way on nodes."""

    def __init__(
        self,
        parts: ReconcilerParts,
        state: LayoutState,
        failures: ReconcilerFailures,
        verdict: Callable[[SeenNode, MigLayout], Verdict],
    ) -> None:
        self.told: dict[str, str] = {}  # by node: what its rollout waits for
        self.outcomes: dict[
            str, Outcome
        ] = {}  # by node: how its last rollout ended, where this process saw it
        self._client = client = parts.client
        self._time = ServerTime(client)
        self._state = state
        self._recorder = parts.recorder
        self._metrics = parts.metrics
        self._failures = failures
        self._verdict = verdict
        self._changing = Once(client.clock.now)  # by node: that it cannot begin by that
        self._carrier = Carrier(client, parts.fence)
        # slots by which nobody can cordon any more, by the MigLayout's UID and the node: this process has ended the rollout, or has given the slot and sent nothing since
        self._unused: set[tuple[str, str]] = set()
        # by node: why it did not begin, and until when it is left alone
        self._refusals = Retries(client.clock.now, _FIRST, _LONGEST)
        self._dra: tuple[float, DraInventory] | None = None  # when it was read, and what there was
        self.configurations = OurConfigurations(client, parts.fence)
        self.records = RolloutRecords()

    def slots_written(self, layout: MigLayout, nodes: Iterable[str]) -> None:
        """Nodes have a slot from now on, or had it before: how an earlier rollout of theirs ended says nothing about this one."""
        for name in nodes:
            self.outcomes.pop(name, None)
            (self._unused.discard if name in layout.updating else self._unused.add)((layout.uid, name))

    def reset(self) -> None:
        """Forget what this process knows better than its watches: another one may have led since."""
        self._unused.clear()
        self.records.clear()
        self.outcomes.clear()
        self.look_again()

    def under_way(self) -> list[str]:
        """The nodes with a rollout of a MigLayout."""
        return [
            name for name, one in self._state.nodes.items() if one.record is not None and one.record.owner.uid
        ]

    def put_off(self, node: str) -> str:
        """Why a node is not looked at for a while; empty when it is."""
        changing = CHANGES_ALL_THE_TIME if self._carrier.is_resting(node) else ""
        return self._refusals.reason_to_wait(node) or changing

    def look_again(self) -> None:
        """What was refused may do now: a MigLayout has changed."""
        self._refusals.clear()

    async def drive(self) -> bool:
        """Take the next steps of all that is under way; whether some has ended."""
        abandoned = self.records.look(self._state.layouts.values(), self._state.nodes, self._time.now())
        names, ended = self.under_way(), False
        for name in self.told.keys() - set(names):
            del self.told[name]
        names += abandoned
        self._refusals.forget_old()
        for at in range(0, len(names), _AT_ONCE):
            some = await asyncio.gather(*map(self._drive, names[at : at + _AT_ONCE]), return_exceptions=True)
            for error in (one for one in some if isinstance(one, BaseException)):
                raise error
            ended |= any(some)
        return ended

    async def _drive(self, name: str) -> bool:
        """Take the next steps of one node; what goes wrong is of this node, and the others go on."""
        subject = f"node {name}"
        if self._failures.rests(subject):
            return False
        with self._failures.survived("rollout", subject) as tried:
            found = await self._carrier.drive(name, partial(self._next, name), partial(self._write, name))
            if isinstance(found, Wait):
                if self.told.get(name) != found.reason:
                    log.info("node %s: %s", name, found.reason)
                self.told[name] = found.reason
            return isinstance(found, Outcome)
        if tried.error is not None:
            self.told[name] = words(tried.error)
        return False

    async def _look(self, name: str) -> NodeSnapshot | None:
        """A node as it is now; one that is gone is forgotten, though the watch may be behind."""
        before = self._state.nodes.get(name)
        seen = await self._carrier.look(name)
        if seen is None and before is not None and self._state.nodes.get(name) is before:
            self._state.remove_node(name)
        return seen

    async def _next(self, name: str) -> tuple[NodeSnapshot | None, Step]:
        """A node as it is now, and what is next for it."""
        seen = await self._look(name)
        if seen is None:
            return None, NotUnderWay()
        node = self._state.refresh_node(seen.node)
        record, now = node.record, self._time.now()
        if record is None:
            return seen, NotUnderWay()
        if not record.owner.uid:
            abandoned = self.records.is_abandoned(name, record, now)
            return seen, end_abandoned(seen, record, now) if abandoned else NotUnderWay()
        cancelled = await self._cancelled(node, record)
        longest = longest_phase(self._state.layouts.values(), node)
        return seen, step(seen, now, cancelled=cancelled, longest=longest)

    async def _write(self, name: str, seen: NodeSnapshot, patch: Patch) -> bool:
        """Write what is next for a node; False where it has changed since it was seen."""
        if (record := seen.record) is None:
            return False
        after = await self._carrier.write(seen, patch, partial(self.configurations.ensure, record))
        if after is None:
            return False
        log.info("node %s: %s", name, patch.told)
        self._state.refresh_node(after)
        self.records.written(SeenNode.of(after))
        if patch.outcome is not None:
            self._end(seen, record, patch.outcome)
        return True

    async def _cancelled(self, node: SeenNode, record: RolloutRecord) -> str:
        """Why a rollout that has not written anything yet is no longer wanted; empty where it is."""
        if record.phase is not Phase.CORDONED:
            return ""
        layout = self._state.layouts.get(record.owner.name)
        if layout is None or layout.uid != record.owner.uid:
            return f"{record.owner} is gone" if await self._is_gone(record.owner) else ""
        if layout.ends:
            return f"{record.owner} is being deleted"
        if not layout.selects(node.node.metadata.labels or {}):
            return f"{record.owner} does not select it any more"
        oldest = find_keepers(self._state.layouts.values(), node.node.metadata.labels)[0]
        if oldest.uid != layout.uid:
            return kept_by(oldest)
        if record.auto != layout.follows_demand:
            return f"the mode is {layout.spec.mode} now"
        if record.auto:
            return "a dry run is wanted now" if layout.spec.autopilot.dry_run else ""
        verdict = self._verdict(node, layout)
        if not verdict.waits and verdict.target != record.target:
            return verdict.invalid or "another layout is wanted now"
        return ""

    async def _is_gone(self, owner: Owner) -> bool:
        """Whether there is no such MigLayout, asked of the API server: the watch may be behind."""
        if not is_name(owner.name):
            return True
        try:
            found = MigLayout.read(await self._client.get(path_of(API_VERSION, PLURAL, name=owner.name)))
        except ApiError as error:
            if not error.is_not_found:
                raise
            return True
        return found.uid != owner.uid

    async def begin(self, name: str, layout: MigLayout, recuts: Sequence[Recut] = ()) -> None:
        """Cordon a node that has its slot, unless something has changed since it was planned; `recuts`: what the autopilot does with it."""
        # what goes wrong is of this node, or of mig-manager's ConfigMap: the others go on
        with self._failures.survived("rollout", f"node {name}", of_the_server) as tried:
            try:
                await self._begin(name, layout, recuts)
            except NotNow as error:
                log.info("node %s: not re-cut: %s", name, error)
                self._refusals.let_be(name, _FIRST, str(error))
        if tried.error is not None:
            self._refusals.put_off(name, words(tried.error))

    async def refused(self, names: Iterable[str], layout: MigLayout) -> bool:
        """Whether some nodes refuse their fixed layout again. Who has refused one lately is asked before it has a slot, since slots cost writes; a few at a time."""
        asked = list(islice(filter(self._refusals.has_failed, names), _AT_ONCE))
        if not asked:
            return False
        with self._failures.survived("rollout", f"MigLayout {layout.name}", of_the_server) as tried:
            seen = [one for one in await asyncio.gather(*map(self._look, asked)) if one is not None]
            whole = await self._surroundings([one.node for one in seen])
            for one in seen:
                self._to_fixed(one, layout, whole)
        if tried.error is not None:
            for name in asked:
                self._refusals.put_off(name, words(tried.error))
        return any(map(self.put_off, asked))

    async def _begin(self, name: str, layout: MigLayout, recuts: Sequence[Recut]) -> None:
        seen = await self._look(name)
        if seen is None:
            return
        one = self._state.refresh_node(seen.node)
        if one.record is not None or one.unreadable:
            return
        if not may_begin_by(layout.slots[name], one):
            return  # somebody else has cordoned it, or uncordoned it, since it got its slot
        whole = await self._surroundings([seen.node])
        if recuts:
            if seen.cordoned or not seen.ready:
                raise NotNow("it is cordoned" if seen.cordoned else "the node is not ready")
            change: Change | None = recut_change(seen, recuts, whole)
        else:
            change = self._to_fixed(seen, layout, whole)
        if change is None:
            return
        # first, so that whoever finds the node cordoned finds it
        if change.entries and whole.manager is not None:
            await self.configurations.add(change, whole.manager)
        await self._cordon(seen, layout, change, auto=bool(recuts))

    async def _cordon(self, seen: NodeSnapshot, layout: MigLayout, change: Change, *, auto: bool) -> None:
        """Cordon a node, and write down there what will happen to it."""
        name, rollout = seen.name, layout.spec.rollout
        how = How(
            drain=rollout.when_in_use == "Drain",
            drain_timeout=rollout.drain_seconds,
            timeout=rollout.seconds,
            auto=auto,
        )
        owner = Owner(layout.name, layout.uid)
        key = layout.uid, name
        unused = key in self._unused
        self._unused.discard(key)
        try:
            after = await self._carrier.write(seen, begin(seen, change, owner, how, self._time.now()))
        except ApiError as error:
            if unused and error.code < 500:  # the API server has refused it, so it does not arrive later
                self._unused.add(key)
            raise
        if after is None:
            if unused:
                self._unused.add(key)
            if self._carrier.is_resting(name) and self._changing.begin(CHANGES_ALL_THE_TIME, name):
                log.info("node %s: %s", name, CHANGES_ALL_THE_TIME)
        else:
            self._changing.end(name)
            self._refusals.forget(name)
            self._state.refresh_node(after)
            self.records.written(SeenNode.of(after), has_slot=True)
            log.info("node %s: cordoned for MigLayout %s", name, layout.name)
            self._event(seen, "MIGRolloutBegun", f"MigLayout {layout.name}: cordoned, to get another layout")

    async def _surroundings(self, nodes: Sequence[NodeIn]) -> Surroundings:
        """What concerns the changes of nodes, as it is now; plans go by the same configurations from then on."""
        now = self._client.clock.now()
        if self._dra is None or now >= self._dra[0] + _SHARED:
            dra = DraInventory()
            await dra.read(self._client)
            self._dra = now, dra
        whole = await Surroundings.read(self._client, nodes, kept=False, dra=self._dra[1])
        if whole.manager is not None:
            self._state.put_manager(whole.manager)
        return whole

    def _to_fixed(self, seen: NodeSnapshot, layout: MigLayout, whole: Surroundings) -> Change | None:
        """What a node gets of its fixed layout; None where it gets nothing now."""
        verdict = judge(seen.node, layout, whole, seen.offered, seen.uses)
        change = verdict.change
        why = verdict.invalid or (change.refused if change is not None else "")
        if why:
            self._refusals.put_off(seen.name, why)
            return None
        if change is None or layout.spec.rollout.when_in_use != "Skip":
            return change
        if held := seen.holding(change.going):
            self._refusals.let_be(seen.name, _FIRST, skipped(named(held)))
            return None
        return change

    async def release(self, name: str, layout: MigLayout) -> bool:
        """Whether a slot may be given back: its node is gone, or has no rollout and none can begin by that slot any more."""
        if (slot := (layout.uid, name)) in self._unused:
            self._unused.discard(slot)
            return True
        # where the node cannot be written to, the others go on
        with self._failures.survived("rollout", f"node {name}", of_the_server) as tried:
            return not self._carrier.is_resting(name) and await self._release(name, layout)
        if tried.error is not None:
            self._refusals.let_be(name, _FIRST, words(tried.error))
        return False

    async def _release(self, name: str, layout: MigLayout) -> bool:
        seen = await self._look(name)
        if seen is None:
            self._metrics.rollouts.add("gone")
            log.warning("node %s is gone: MigLayout %s has its slot back", name, layout.name)
            return True
        one = self._state.refresh_node(seen.node)
        slot = known_slot(layout, name, self.records.with_slot)
        if is_lost(one, slot):
            await self._write_again(seen, layout, slot)
            return False
        if one.unreadable:
            return False
        if one.record is not None:
            # of another one: who would still cordon it by this slot has seen it as it was before
            return one.record.owner.uid != layout.uid
        owner = Owner(layout.name, layout.uid)
        after = await self._carrier.write(seen, fence_off(seen, owner, self._time.now()))
        if after is None:
            return False
        fenced = NodeSnapshot(after)
        if (clear := unfence(fenced)) is not None:
            after = await self._carrier.write(fenced, clear) or after
        self._state.refresh_node(after)
        return True

    async def _write_again(self, seen: NodeSnapshot, layout: MigLayout, slot: Slot) -> None:
        """Write a record again that was removed, or spoilt, by hand: as it was, or so that the node shows its
        layout and is uncordoned."""
        record = self.records.with_slot.get(seen.name)
        if record is None:
            owner, timeout = Owner(layout.name, layout.uid), layout.spec.rollout.seconds
            before = bool(slot.cordoned_before)
            record = rebuild_record(seen, owner, self._time.now(), timeout=timeout, cordoned_before=before)
        patch = write_again(seen, replace(record, cordoned=bool(slot.cordoned_before)))
        if (after := await self._carrier.write(seen, patch)) is not None:
            self._state.refresh_node(after)
            log.warning("node %s: %s", seen.name, patch.told)
            self._event(seen, "MIGRolloutRestored", f"MigLayout {layout.name}: {patch.told}", "Warning")

    def _end(self, seen: NodeSnapshot, record: RolloutRecord, outcome: Outcome) -> None:
        if record.owner.uid:
            self._unused.add((record.owner.uid, seen.name))
        self.records.with_slot.pop(seen.name, None)
        self.outcomes[seen.name] = outcome
        self.told.pop(seen.name, None)
        self._metrics.rollouts.add(outcome.result.lower())
        self.configurations.leave(record)
        owner = str(record.owner)
        match outcome.result:
            case Result.DONE:
                stays = record.before == record.after
                what = "shows the layout that was on it" if stays else "has its layout"
                self._event(seen, "MIGRolloutDone", f"{owner}: the node {what}")
            case Result.CANCELLED:
                self._event(seen, "MIGRolloutCancelled", f"{owner}: {outcome.reason}")
            case Result.FAILED:
                self._event(seen, "MIGRolloutFailed", f"{owner}: {outcome.reason}", "Warning")
            case _:
                self._event(seen, "MIGRolloutGivenUp", f"{owner}: {outcome.reason}", "Warning")

    def _event(self, seen: NodeSnapshot, reason: str, message: str, kind: str = "Normal") -> None:
        metadata = seen.node.metadata
        self._recorder.record(
            Event(About("v1", "Node", metadata.name, "", metadata.uid), reason, message, kind)
        )
