"""What matters most about a MigLayout: the cause, and the first line."""

from enum import StrEnum

from tessera.diagnosis.layouts.gather import LayoutEvidence
from tessera.diagnosis.layouts.status import cut
from tessera.diagnosis.layouts.words import decided, unseen_change
from tessera.protocol.mig.autopilot import AutopilotStatus
from tessera.protocol.mig.miglayout import LayoutStatus


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
