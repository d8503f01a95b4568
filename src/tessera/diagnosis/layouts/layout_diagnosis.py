"""The answer about a MigLayout: one line first, then its nodes, its rollouts, what its autopilot decides, and what to do next.

The most useful step stands first, with what to type for it.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any, Final

import msgspec

from tessera.core.autopilot.values import Why
from tessera.core.errors import InvalidInput
from tessera.diagnosis.layouts.gather import LayoutEvidence
from tessera.diagnosis.layouts.status import ShownRollout, cut, shown_autopilot, shown_rollouts, shown_status
from tessera.diagnosis.layouts.words import about, counted, decided, unreadable, unseen_change
from tessera.diagnosis.remedy import Remedy
from tessera.kube.rest.client import is_name
from tessera.kube.view.lease import CONTROLLER
from tessera.protocol.mig.miglayout import AutopilotStatus, LayoutStatus, MigLayout, RefusalRow
from tessera.protocol.mig.rollouts import RESULT, ROLLOUT, Phase, RolloutRecord


class LayoutCause(StrEnum):
    """What the first line is about."""

    UNREADABLE = "unreadable"
    CONTROLLER_AWAY = "controller-away"
    NOT_OBSERVED = "not-observed"  # the controller has not looked at it as it is
    INVALID = "invalid"
    FAILED = "failed"
    CONFLICT = "conflict"
    NO_NODES = "no-nodes"
    PAUSED = "paused"
    DRY_RUN = "dry-run"
    STOPPED = "stopped"  # the autopilot re-cuts nothing, whatever is wanted
    ROLLING_OUT = "rolling-out"
    NO_ROOM = "no-room"
    COMPLETE = "complete"


def cause_of(
    seen: LayoutEvidence, status: LayoutStatus, autopilot: AutopilotStatus | None
) -> tuple[LayoutCause, str]:
    """What matters most, and how the sentence goes on after the name."""
    layout = seen.layout
    ready, moves, degraded, invalid = map(status.condition, ("Ready", "Progressing", "Degraded", "Invalid"))
    if seen.controller is not None and not seen.controller.at_work:
        before = f"; when it was last looked at: {ready.message}" if ready.message else ""
        return (
            LayoutCause.CONTROLLER_AWAY,
            f" is kept by nobody: {cut(seen.controller.words(seen.now))}{before}",
        )
    if unseen := unseen_change(layout, status):
        return LayoutCause.NOT_OBSERVED, f": {unseen}"
    if invalid.status == "True":
        what = "cannot be carried out" if invalid.reason == "BadSpec" else "does not fit"
        return LayoutCause.INVALID, f" {what}: {invalid.message}"
    if degraded.status == "True" and degraded.reason == "Conflict":
        return LayoutCause.CONFLICT, f" does not keep all nodes that it selects: {degraded.message}"
    if degraded.status == "True":
        stopped = "; no further node begins" if moves.reason == "Stopped" else ""
        return LayoutCause.FAILED, f" failed on a node: {degraded.message}{stopped}"
    if not (status.desired or seen.selected):
        return LayoutCause.NO_NODES, f" has no nodes: no node has the labels {cut(layout.selector)}"
    if autopilot is not None:
        return _following(seen, status, autopilot)
    if layout.spec.paused:
        return LayoutCause.PAUSED, f" is paused, no further node begins: {ready.message}"
    if ready.status == "True":
        return LayoutCause.COMPLETE, f" is complete: {ready.message}"
    waits = f"; {moves.message}" if moves.message else ""
    return LayoutCause.ROLLING_OUT, f" is being rolled out: {ready.message}{waits}"


def _following(
    seen: LayoutEvidence, status: LayoutStatus, autopilot: AutopilotStatus
) -> tuple[LayoutCause, str]:
    said = decided(autopilot)
    if seen.layout.spec.paused:
        return LayoutCause.PAUSED, f" is paused, no further node begins. {said}"
    if autopilot.dry_run:
        return LayoutCause.DRY_RUN, f" follows demand, in a dry run. {said}"
    cause = LayoutCause.NO_ROOM if autopilot.refusals else LayoutCause.COMPLETE
    if status.condition("Progressing").reason == "Stopped":
        cause = LayoutCause.STOPPED
    elif not autopilot.summary:
        cause = LayoutCause.NOT_OBSERVED
    elif status.updating_count or autopilot.recuts:
        cause = LayoutCause.ROLLING_OUT
    return cause, f" follows demand. {said}"


_MOST_NODES: Final = 3  # that are named in commands

# what does not keep anybody from ending a dry run
_WHILE_DRY: Final = (LayoutCause.DRY_RUN, LayoutCause.FAILED, LayoutCause.CONFLICT)
# by why something gets no room: which limit to change, and what it is now
_LIMITS: Final[Mapping[str, str]] = {
    Why.BUDGET: "raise spec.autopilot.recutsPerHour ({recuts_per_hour} now), or wait: cards are counted for an hour",
    Why.SHARE: "raise spec.autopilot.recutsPerHour ({recuts_per_hour} now), or find out why pods of their namespaces do not take what is cut for them",
    Why.COOL_DOWN: "lower spec.autopilot.coolDown ({cool_down} now), or wait until it is over",
    Why.MINIMUM: "lower spec.autopilot.minimum ({minimum} now)",
    Why.MAXIMUM: "raise spec.autopilot.maximum ({maximum} now)",
    Why.KEEP_WHOLE: "lower spec.autopilot.keepWhole ({keep_whole} now)",
}
_WAITS: Final[Mapping[str, str]] = {
    Why.NO_ROOM: "it gets room when pods end, when nodes can be cut that are left alone now, or when the MigLayout selects more",
    Why.NO_NODE: "one pod wants several devices of one node: it gets room when pods end there, or when the MigLayout selects more nodes",
    Why.NAMESPACE: "nothing more: they count when others of their namespace have their devices",
    Why.NOT_WORTH_IT: "nothing more: it is cut once it is worth more than what goes for it",
}


def next_steps(
    seen: LayoutEvidence, cause: LayoutCause, status: LayoutStatus, autopilot: AutopilotStatus | None
) -> Iterator[Remedy]:
    """What to do about the cause; then what else would help."""
    layout = seen.layout
    match cause:
        case LayoutCause.CONTROLLER_AWAY:
            yield from _by_controller(seen, status)
            return
        case LayoutCause.NOT_OBSERVED | LayoutCause.UNREADABLE:
            text = "nothing more: the controller looks at it within seconds; if it does not, its log says why"
            yield Remedy("wait", text, (_logs(seen),))
            return
        case LayoutCause.STOPPED:
            why = status.condition("Progressing").message
            yield Remedy("wait", f"no card is re-cut as long as this holds: {why}", (_logs(seen),))
        case LayoutCause.INVALID:
            yield Remedy("change", "correct what is named", (_edit(layout),))
        case LayoutCause.CONFLICT:
            text = "change the nodeSelector of one of them, or delete one: the oldest keeps a node"
            yield Remedy("change", text, ("kubectl get miglayouts",))
        case LayoutCause.NO_NODES:
            labels = (layout.spec.node_selector or {}).items()
            label = shlex.join(
                ["kubectl", "label", "node", "NODE", *(cut(f"{key}={value}") for key, value in labels)]
            )
            yield Remedy("change", "label nodes, or change its nodeSelector", (label, _edit(layout)))
        case LayoutCause.PAUSED:
            yield Remedy("change", "let it go on", (_patch(layout, {"paused": False}),))
        case LayoutCause.ROLLING_OUT:
            yield from _during_rollout(seen, status, autopilot)
    yield from _for_failed(seen, status)
    if autopilot is not None and layout.spec.autopilot.dry_run and cause in _WHILE_DRY:
        yield from _out_of_dry_run(layout, autopilot)
    yield from _for_refusals(layout, autopilot.refusals if autopilot is not None else ())


def _by_controller(seen: LayoutEvidence, status: LayoutStatus) -> Iterator[Remedy]:
    part = seen.controller
    if part is None:
        return
    if part.since is not None:  # it was there
        yield Remedy("mend", part.remedy, (part.command,))
        return
    upgrade = f"helm upgrade tessera charts/tessera -n {seen.namespace} --reset-then-reuse-values"
    install = f"{upgrade} --set controller.enabled=true --set layouts.enabled=true"
    yield Remedy("mend", part.remedy, (install, part.command))
    if status.conditions:
        text = "if it runs in another namespace, name that with --tessera-namespace"
        yield Remedy("change", text)


def _out_of_dry_run(layout: MigLayout, autopilot: AutopilotStatus) -> Iterator[Remedy]:
    act = _patch(layout, {"autopilot": {"dryRun": False}})
    if autopilot.history:
        yield Remedy("change", "let it act, if you agree with what it would do", (act,))
    else:
        yield Remedy("wait", "let it run dry for longer: it has decided nothing so far")
        yield Remedy("change", "let it act", (act,))


def _during_rollout(
    seen: LayoutEvidence, status: LayoutStatus, autopilot: AutopilotStatus | None
) -> Iterator[Remedy]:
    layout, rollout = seen.layout, seen.layout.spec.rollout
    phases = [one.phase for one in seen.rollouts.values() if isinstance(one, RolloutRecord)]
    for_pods = autopilot is None and Phase.CORDONED in phases
    then = ", once the pods end that are waited for" if for_pods else ""
    yield Remedy("wait", f"nothing more: it goes on by itself{then}")
    left = status.desired - status.current - status.updating_count
    if not status.updating_count or (left if autopilot is None else len(autopilot.recuts)) <= 0:
        return
    if for_pods and rollout.when_in_use == "Wait":
        text = "have pods evicted that hold devices which go, on the nodes that begin from now on"
        yield Remedy("change", text, (_patch(layout, {"rollout": {"whenInUse": "Drain"}}),))
    now = cut(str(rollout.max_unavailable))
    text = f"more nodes at a time: raise spec.rollout.maxUnavailable ({now} now)"
    yield Remedy("limit", text, (_edit(layout),))


def _for_failed(seen: LayoutEvidence, status: LayoutStatus) -> Iterator[Remedy]:
    layout = seen.layout
    named = [one.name for one in status.nodes if one.state == "Failed" and is_name(one.name)]
    unreadable = [name for name in named if isinstance(seen.rollouts.get(name), str)]
    if unreadable:
        commands = (
            (f"kubectl annotate node {name} {ROLLOUT}-", f"kubectl uncordon {name}")
            for name in unreadable[:_MOST_NODES]
        )
        text = "remove the annotations that cannot be read, once nobody cuts these nodes, and uncordon them"
        yield Remedy("mend", text, tuple(chain.from_iterable(commands)))
    if failed := [name for name in named if name not in unreadable]:
        again = tuple(f"kubectl annotate node {name} {RESULT}-" for name in failed[:_MOST_NODES])
        yield Remedy("change", "have the failed nodes tried again, once the reason is gone", again)
        if not layout.follows_demand:
            yield Remedy("change", "change the layout", (_edit(layout),))


def _for_refusals(layout: MigLayout, refusals: Iterable[RefusalRow]) -> Iterator[Remedy]:
    by_why: dict[str, dict[str, int]] = {}
    for one in refusals:
        numbers = by_why.setdefault(one.why, {})
        numbers[one.profile] = numbers.get(one.profile, 0) + one.number
    spec = layout.spec.autopilot
    now = {
        "recuts_per_hour": spec.recuts_per_hour,
        "cool_down": cut(spec.cool_down),
        "minimum": counted(spec.minimum or {}) or "none",
        "maximum": counted(spec.maximum or {}) or "none",
        "keep_whole": spec.keep_whole,
    }
    for why, numbers in by_why.items():
        what = f"for {counted(numbers)}: "
        if limit := _LIMITS.get(why):
            yield Remedy("limit", what + limit.format(**now), (_edit(layout),))
        elif waits := _WAITS.get(why):
            yield Remedy("wait", what + waits)


def _patch(layout: MigLayout, spec: dict[str, Any]) -> str:
    change = msgspec.json.format(msgspec.json.encode({"spec": spec}), indent=0).decode()
    return f"kubectl patch miglayout {layout.name} --type merge -p {shlex.quote(change)}"


def _logs(seen: LayoutEvidence) -> str:
    return f"kubectl logs -n {seen.namespace} -l app={CONTROLLER}"


def _edit(layout: MigLayout) -> str:
    return f"kubectl edit miglayout {layout.name}"


_TURN: Final = "waits for its turn"  # a node that may begin has no reason in the status
_MOST_SLOTS: Final = 100  # that are named without a rollout on their node


@dataclass(frozen=True, slots=True)
class NodeReason:
    """Nodes that do not have their layout for the same reason."""

    state: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayoutDiagnosis:
    """How far a MigLayout is and why, in parts. All texts may be printed as they are."""

    title: str
    cause: LayoutCause
    answer: str  # one line
    mode: str
    about: tuple[str, ...]  # what its mode means, and what limits it
    status: LayoutStatus
    nodes: tuple[NodeReason, ...] = ()
    more: int = 0  # nodes without their layout whose reasons the status does not have
    rollouts: tuple[ShownRollout, ...] = ()
    autopilot: AutopilotStatus | None = None  # None: its layouts do not follow demand
    remedies: tuple[Remedy, ...] = ()  # what to do next
    unseen: Mapping[str, str] = field(default_factory=dict)


def diagnose_layout(seen: LayoutEvidence) -> LayoutDiagnosis:
    layout, title = seen.layout, f"MigLayout {cut(seen.layout.name)}"
    autopilot = shown_autopilot(layout)
    try:
        status = shown_status(layout)
        cause, said = cause_of(seen, status, autopilot)
    except InvalidInput as error:
        status, cause, said = LayoutStatus(), LayoutCause.UNREADABLE, f": {unreadable(error)}"
    nodes = _grouped(status)
    named = sum(len(one.nodes) for one in nodes if one.state != "Conflict")
    return LayoutDiagnosis(
        title,
        cause,
        f"{title}{said}",
        cut(layout.spec.mode),
        tuple(about(layout)),
        status,
        nodes,
        max(0, status.desired - status.current - named),
        tuple(_rollouts(seen, status)),
        autopilot,
        tuple(next_steps(seen, cause, status, autopilot)),
        {cut(what): cut(why) for what, why in seen.unseen.items()},
    )


def _grouped(status: LayoutStatus) -> tuple[NodeReason, ...]:
    """Nodes with the same reason together, in the controller's order: what is worst first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in status.nodes:
        reason = one.reason or (_TURN if one.state == "Pending" else "")
        groups.setdefault((one.state, reason), []).append(one.name)
    return tuple(NodeReason(state, reason, tuple(names)) for (state, reason), names in groups.items())


def _rollouts(seen: LayoutEvidence, status: LayoutStatus) -> list[ShownRollout]:
    """What stands on the nodes; then the nodes that have a slot, and nothing that is seen of a rollout."""
    told = {one.name: one.reason for one in status.nodes if one.state == "Updating"}
    slots = [name for name in seen.layout.updating if name not in seen.rollouts][:_MOST_SLOTS]
    nothing = "its node could not be read" if seen.selected is None else "no rollout stands on the node"
    return [
        *shown_rollouts(seen.rollouts, status.nodes),
        *(ShownRollout(cut(name), told.get(cut(name)) or f"it has a slot; {nothing}") for name in slots),
    ]
