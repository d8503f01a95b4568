"""The answer about a MigLayout: one line first, then its nodes, its rollouts, what its autopilot decides, and what to do next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.diagnosis.layouts.cause import LayoutCause, cause_of
from tessera.diagnosis.layouts.gather import LayoutEvidence
from tessera.diagnosis.layouts.next_steps import next_steps
from tessera.diagnosis.layouts.rollouts import ShownRollout, shown_rollouts
from tessera.diagnosis.layouts.status import cut, shown_autopilot, shown_status
from tessera.diagnosis.layouts.words import about, unreadable
from tessera.diagnosis.remedies.changes import Remedy
from tessera.protocol.mig.autopilot import AutopilotStatus
from tessera.protocol.mig.layout_status import LayoutStatus

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
