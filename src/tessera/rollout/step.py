"""What is to be done next for a node whose layout changes: cordon, wait or drain, write, verify, uncordon; or put back.

A table of phases, each a function from what the node shows to one step. A step that writes moves the phase in the same patch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from tessera.core.errors import InvalidInput
from tessera.core.planning.configurations import OURS
from tessera.core.text import shortened
from tessera.protocol.mig.documents import CONFIG_STATE
from tessera.protocol.mig.nodes import CHANGING
from tessera.protocol.mig.rollouts import (
    MOST_TRIES,
    RESULT,
    ROLLOUT,
    Owner,
    Phase,
    Result,
    RolloutEnd,
    RolloutRecord,
    written,
)
from tessera.rollout.change import Change, value_of
from tessera.rollout.in_use import SAID_WITHIN, Going, named
from tessera.rollout.progress import progress_of
from tessera.rollout.values import (
    Evict,
    How,
    NextStep,
    NodeSnapshot,
    NotUnderWay,
    Outcome,
    Patch,
    Step,
    Wait,
)
from tessera.rollout.writing import paused

# characters: it stands in an annotation, and the API server may say very much
_MOST_REASON: Final = 2000
_MEANWHILE: Final = "another client changed {} meanwhile; left as it is"
NO_CONFIGURATION: Final = "tessera-try-again"  # names nothing: mig-manager answers `failed`, and cuts nothing
ENDED: Final = ("success", "failed")  # what mig-manager says when it has ended
# seconds: the kubelet syncs a ConfigMap every minute, plus what its cache keeps; mig-manager may not know a new entry until then
LATE: Final = 180.0
TO_COME_BACK: Final = 60.0  # seconds; an old layout is waited for that long at most
TO_CLEAR: Final = 240.0  # the same where mig-manager cuts, and the device plugin leaves and comes back


class Attempt:
    """How long one try takes, in seconds; tests go quicker."""

    settles = 5.0  # a node may still say what it said of its old layout, before it has looked at the new one
    pause = 10.0  # from one try to the next; each is twice the one before
    between = 20.0  # that mig-manager may take to say something of the name that is there in between


def begin(seen: NodeSnapshot, change: Change, owner: Owner, how: How, now: float) -> Patch:
    """Write down on a node that has no rollout what will happen to it; cordon it, unless the rollout goes without."""
    if how.cordons:
        phase, told, spec = Phase.CORDONED, "cordoned", {"unschedulable": True}
    else:
        phase, told, spec = Phase.WAITING, "", {}
    going = change.going if how.waits else Going(frozenset(), {})
    record = RolloutRecord(
        owner,
        phase,
        now,
        now if how.auto else now + how.drain_timeout,
        how.timeout,
        change.after,
        change.before,
        label=change.label,
        state=change.state,
        cordoned=seen.cordoned,
        cordons=how.cordons,
        drain=how.drain and not how.auto,
        auto=how.auto,
        touched=None if going.resources is None else tuple(sorted(going.resources)),
        places=None if going.places is None else {card: tuple(some) for card, some in going.places.items()},
        offered=dict(change.offered),
        expected=None if change.expected is None else dict(change.expected),
    )
    if change.written and not how.cordons:  # the node is to show what stands on it, and that is all
        late = _late_until(record, now)
        record = replace(record, phase=Phase.WRITTEN, until=now + how.timeout, late=late)
    return _patch(seen, record, told, spec, annotations={RESULT: None})


def fence(seen: NodeSnapshot, owner: Owner, now: float) -> Patch:
    """Change a node that has a slot and no rollout, so that whoever would still cordon it by that slot fails. Why the last rollout failed stays."""
    end = seen.end or RolloutEnd(owner, "", Result.NOT_BEGUN, now)
    return _patch(
        seen, None, "its slot is given back", annotations={RESULT: written(replace(end, fenced=now))}
    )


def unfence(seen: NodeSnapshot) -> Patch | None:
    """Remove what `fence` wrote, where it says nothing else."""
    if seen.end is None or seen.end.result is not Result.NOT_BEGUN:
        return None
    return _patch(seen, None, "", annotations={RESULT: None})


def write_again(seen: NodeSnapshot, record: RolloutRecord) -> Patch:
    """Write a record that was removed from a node by hand; the node stays as it is."""
    return _patch(seen, record, "its record was removed by hand, and is written again")


def rebuild_record(
    seen: NodeSnapshot, owner: Owner, now: float, *, timeout: float, cordoned_before: bool
) -> RolloutRecord:
    """A record in place of one that nobody knows any more: the node is to show the layout that is written on
    it."""
    label = seen.gpus.by_mig_manager
    value = value_of(seen.node, label=label)
    return RolloutRecord(
        owner,
        Phase.WRITTEN,
        now,
        now + timeout,
        timeout,
        value or "",
        value,
        label=label,
        state=seen.gpus.state,
        cordoned=cordoned_before,
        offered=dict(seen.offered),
    )


def end_abandoned(seen: NodeSnapshot, record: RolloutRecord, now: float) -> Patch:
    """End the rollout of a command that was killed: uncordon the node, and leave its layout as it is."""
    return _Turn(seen, record, now).finish(Result.OVERTAKEN, f"{record.owner} does not go on with it")


def step(seen: NodeSnapshot, now: float, *, cancelled: str = "", longest: float = inf) -> Step:
    """What is to be done next for a node, also where it has no rollout, or one that cannot be read."""
    try:
        record = seen.record
    except InvalidInput as error:
        return Wait(f"{error}; remove the annotation, and uncordon the node yourself")
    if record is None:
        return NotUnderWay()
    return next_step(seen, record, now, cancelled=cancelled, longest=longest)


def next_step(
    seen: NodeSnapshot,
    record: RolloutRecord,
    now: float,
    *,
    cancelled: str = "",
    undo: bool = False,
    longest: float = inf,
) -> NextStep:
    """What is to be done next in a rollout that is under way. No phase takes longer than `longest` seconds.

    `cancelled` says why the rollout is no longer wanted. That ends it where nothing is written yet; with `undo`, what is written is put back.
    """
    if (ours := record.by_clock(now)) != record:
        return _patch(seen, ours, "the clock of whoever began it was ahead: its times are set back")
    if (bounded := record.within(longest)) != record:
        return _patch(seen, bounded, f"no phase takes longer than {longest:g} s: its times are set back")
    turn = _Turn(seen, record, now, cancelled)
    if undo and cancelled and record.phase in (Phase.WRITTEN, Phase.RETRYING) and turn.is_ours:
        return turn.put_back(cancelled)
    return _PHASES[record.phase](turn)


@dataclass(frozen=True)
class _Turn:
    seen: NodeSnapshot
    record: RolloutRecord
    now: float
    cancelled: str = ""
    value: str | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", value_of(self.seen.node, label=self.record.label))

    @property
    def late(self) -> bool:
        return self.now >= self.record.until

    @property
    def is_ours(self) -> bool:
        """Whether what stands on the node was written by the rollout, or before it."""
        return self.value in (self.record.after, self.record.before, NO_CONFIGURATION)

    def moved(self, phase: Phase, seconds: float | None = None, **changes: Any) -> RolloutRecord:
        """The record in another phase, which may take so long; None: what is left of the present one's time."""
        until = self.record.until if seconds is None else self.now + seconds
        return replace(self.record, phase=phase, since=self.now, until=until, **changes)

    def finish(self, result: Result, reason: str = "") -> Patch:
        """Uncordon, unless the node was cordoned before; of a failure of a MigLayout's rollout the reason stays."""
        record, end, reason = self.record, None, shortened(reason, _MOST_REASON)
        if record.owner.uid and result not in (Result.DONE, Result.CANCELLED):
            end = written(RolloutEnd(record.owner, record.target, result, self.now, reason))
        spec = {"unschedulable": None} if record.uncordons else {}
        body = _patch(self.seen, None, "", spec, annotations={ROLLOUT: None, RESULT: end}).body
        return Patch(body, f"{result}: {reason}" if reason else "done", outcome=Outcome(result, reason))

    def overtaken(self, what: str = "") -> Patch:
        return self.finish(Result.OVERTAKEN, what or _MEANWHILE.format(self.record.key))

    def write(
        self, value: str | None, record: RolloutRecord, told: str, *, state: str | None = None
    ) -> Patch:
        kind = "labels" if record.label else "annotations"
        sections = {"labels": {CONFIG_STATE: state}, "annotations": {}}
        sections[kind][record.key] = value
        body = _patch(self.seen, record, told, **sections).body
        return Patch(body, told, cuts=value == record.after)

    def put_back(self, reason: str) -> Patch:
        """Write the old value again, where the new one is."""
        record, reason = self.record, shortened(reason, _MOST_REASON)
        result = Result.FAILED if self.seen.ready else Result.NOT_READY
        seconds = min(record.timeout, TO_CLEAR if record.label else TO_COME_BACK)
        back = self.moved(Phase.PUTTING_BACK, seconds, result=result, reason=reason)
        stays = self.value == record.before == record.after
        told = reason if stays else f"{reason}; the old layout is written again"
        if record.before == record.after and not record.label:
            return self.finish(result, reason)
        if self.value == record.before:
            return _patch(self.seen, back, told)
        # mig-manager, where it answers at all, says its own state of the old configuration
        state = None if record.label and self.seen.gpus.state else record.state or None
        return self.write(record.before, back, told, state=state)

    def resume(self, *states: str) -> Patch | None:
        """Let DaemonSets come back that mig-manager has left paused."""
        left = paused(self.seen.node, *states) if self.record.label else []
        told = f"mig-manager has ended and left {', '.join(left)} paused; set to true"
        return _patch(self.seen, self.record, told, labels=dict.fromkeys(left, "true")) if left else None


def _before_write(turn: _Turn) -> NextStep:
    """Wait for pods that hold devices which go, or evict them; then write."""
    seen, record = turn.seen, turn.record
    if turn.value not in (record.before, record.after):
        return turn.overtaken()
    if turn.cancelled:
        return turn.finish(Result.CANCELLED, turn.cancelled)
    if record.cordons and not seen.cordoned:
        return turn.overtaken("it was uncordoned meanwhile, before anything was written")
    if record.cordons and not seen.ready:
        reason = "the node is not ready"
        return turn.finish(Result.NOT_READY, reason) if turn.late else Wait(reason)
    going = Going(None if record.touched is None else frozenset(record.touched), record.places)
    if found := seen.holding(going):
        which = named(found) + (f"; {seen.refused}" if seen.refused else "")
        if turn.late:
            return turn.finish(Result.IN_USE, f"pods still hold devices that would go: {which}")
        reason = f"waiting for pods that hold devices which go: {which}"
        ending = {f"{one.namespace}/{one.name}" for one in seen.uses if one.ending}
        all_said = turn.now >= record.since + SAID_WITHIN
        may = (one.pod for one in found if one.is_pod and (one.sure or all_said))
        pods = tuple(dict.fromkeys(one for one in may if one not in ending))
        return Evict(pods, reason) if record.drain and pods else Wait(reason)
    if record.cordons and not seen.settled:
        return Wait("waiting for pods that the scheduler has chosen it for before the cordon")
    late = _late_until(record, turn.now)
    if record.before == record.after and record.label:  # mig-manager acts on a change only
        moved = turn.moved(Phase.RETRYING, record.timeout, late=late)
        return turn.write(NO_CONFIGURATION, moved, f"{record.key} changed away, to be written again")
    moved = turn.moved(Phase.WRITTEN, record.timeout, late=late)
    if turn.value == record.after:
        return _patch(seen, moved, f"{record.key} was written by another client")
    return turn.write(record.after, moved, f"{record.key} written")


def _late_until(record: RolloutRecord, now: float) -> float:
    """Until when mig-manager may not know a configuration of ours that is written now."""
    return now + LATE if record.label and record.after.startswith(OURS) else 0.0


def _written(turn: _Turn) -> NextStep:
    """See that the node shows the layout."""
    seen, record = turn.seen, turn.record
    if turn.value != record.after:
        return turn.overtaken()
    progress = progress_of(seen.gpus, seen.offered, record.expected)
    if progress.shown:
        return turn.finish(Result.DONE)
    if (resumed := turn.resume("success")) is not None:
        return resumed
    may_be_late = turn.now < record.late and not record.begun
    changing = seen.gpus.state in CHANGING
    if may_be_late and (changing or seen.worked):
        return _patch(seen, replace(record, begun=True), f"state {seen.gpus.state}" if changing else "")
    if progress.refused:
        if turn.now < record.since + Attempt.settles:
            return Wait(progress.refused)
        if not may_be_late:
            return turn.put_back(progress.refused)
        pause = Attempt.pause * 2**record.tries
        text = f"{progress.refused}. It may not have {record.after} from its ConfigMap yet: tried again in {pause:g} s"
        if turn.now < record.since + pause and not turn.late:
            return Wait(text)
        away = record.before if record.before not in (None, record.after) else NO_CONFIGURATION
        return turn.write(away, turn.moved(Phase.RETRYING, tries=min(record.tries + 1, MOST_TRIES)), text)
    if turn.late:
        dead = "" if seen.ready else "the node is not ready; "
        waits = progress.waits or "the node has not reported"
        return turn.put_back(f"the layout is not applied after {record.timeout:g} s: {dead}{waits}")
    return Wait(f"{progress.waits}: {progress.reason}" if progress.reason else progress.waits)


def _retrying(turn: _Turn) -> NextStep:
    """Write the name again once mig-manager has answered to another, or does not."""
    record = turn.record
    if turn.value not in (NO_CONFIGURATION, record.before):
        return turn.overtaken()
    if turn.late:
        return turn.put_back(f"the layout is not applied after {record.timeout:g} s")
    if turn.seen.gpus.state not in ENDED and turn.now < record.since + Attempt.between:
        return Wait("waiting for mig-manager to answer to another configuration")
    moved = turn.moved(Phase.WRITTEN, begun=False)
    return turn.write(record.after, moved, f"{record.key} written again")


def _putting_back(turn: _Turn) -> NextStep:
    """Wait a while until the node offers its old devices again."""
    record = turn.record
    if turn.value != record.before:
        return turn.finish(record.result, f"{record.reason}; {_MEANWHILE.format(record.key)}")
    if turn.seen.offered == record.offered:
        back = "" if record.before == record.after else "; the old layout is back"
        return turn.finish(record.result, f"{record.reason}{back}")
    if (resumed := turn.resume(*ENDED)) is not None:
        return resumed
    if turn.late:
        seconds = record.until - record.since
        text = f"the old layout is written again, and not applied after {seconds:g} s"
        return turn.finish(record.result, f"{record.reason}; {text}")
    return Wait(f"{record.reason}; waiting for the old devices")


_PHASES: Final[Mapping[Phase, Callable[[_Turn], NextStep]]] = {
    Phase.CORDONED: _before_write,
    Phase.WAITING: _before_write,
    Phase.WRITTEN: _written,
    Phase.RETRYING: _retrying,
    Phase.PUTTING_BACK: _putting_back,
}


def _patch(
    seen: NodeSnapshot,
    record: RolloutRecord | None,
    told: str,
    spec: Mapping[str, Any] | None = None,
    *,
    labels: Mapping[str, str | None] | None = None,
    annotations: Mapping[str, str | None] | None = None,
) -> Patch:
    """A merge patch with the node's version."""
    noted = {ROLLOUT: written(record)} if record is not None else {}
    metadata = {
        "resourceVersion": seen.node.metadata.resource_version,
        "annotations": {**noted, **(annotations or {})},
        **({"labels": dict(labels)} if labels else {}),
    }
    return Patch({"metadata": metadata, **({"spec": dict(spec)} if spec else {})}, told)
