"""MigLayouts as their status says it, and the rollouts that nodes are in. Nothing is judged here: that is the controller's.

Whoever may write to a status or to a node's annotations may have written anything: texts are cut, lists have an end.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.dashboard.observed import Rollout
from tessera.dashboard.parts.autopilot import autopilot_part, cut
from tessera.dashboard.parts.history import moment
from tessera.protocol.mig.layout_status import LayoutStatus
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import Phase

MOST_LAYOUTS: Final = 50
MOST_ROLLOUTS: Final = 100
_MOST_NODES: Final = 20  # as many as a status has
_LAST: Final = 2.0**36  # seconds: no time is later

# what a condition's reason adds to its message; one that is not here is called by the condition's name
_WORDS: Final = {
    "Complete": "",
    "Incomplete": "",
    "RollingOut": "rolling out",
    "Paused": "no further node begins",
    "Stopped": "no further node begins",
    "RolloutFailed": "failed",
    "Conflict": "",
    "BadSpec": "cannot be carried out",
    "DoesNotFit": "does not fit",
}
_IDLE: Final = (
    "Idle",
    "DryRun",
)  # reasons why nothing goes on that need no word: a dry run is marked as such
_PHASES: Final = frozenset(map(str, Phase))
_KINDS: Final = {"Ready": "good", "Progressing": "note", "Degraded": "bad", "Invalid": "bad"}


def layouts_part(layouts: Iterable[MigLayout], unseen: str) -> dict[str, Any]:
    """By name; all are counted, some are shown. `unseen`: why they cannot be read."""
    found = list(layouts)
    shown = nsmallest(MOST_LAYOUTS, found, key=lambda one: one.name)
    return {"unseen": unseen, "count": len(found), "first": [_row(one) for one in shown]}


def rollouts_part(rollouts: Mapping[str, Rollout], layouts: Iterable[MigLayout]) -> dict[str, Any]:
    """Those that are under way, by node: the ones that have been in their phase for longest first."""
    shown = nsmallest(MOST_ROLLOUTS, rollouts.items(), key=lambda item: (_since(item[1]), item[0]))
    told = {name: reason for one in layouts for name, reason in _updating(one)} if shown else {}
    return {"count": len(rollouts), "first": [_rollout(name, one, told.get(name, "")) for name, one in shown]}


def _row(layout: MigLayout) -> dict[str, Any]:
    spec, row = layout.spec, {"name": layout.name, "mode": cut(layout.spec.mode)}
    row["selector"] = cut(", ".join(f"{key}={value}" for key, value in (spec.node_selector or {}).items()))
    try:
        status = LayoutStatus.of(layout.raw_status)
    except InvalidInput as error:
        return {**row, "says": [_said("bad", f"its status cannot be read: {error}")]}
    return {
        **row,
        "desired": status.desired,
        "current": status.current,
        "updating": status.updating_count,
        "failed": status.failed,
        "says": list(_says(layout, status)),
        "nodes": [
            {"name": cut(one.name), "state": cut(one.state), "reason": cut(one.reason)}
            for one in status.nodes[:_MOST_NODES]
        ],
        "autopilot": autopilot_part(layout),
    }


def _says(layout: MigLayout, status: LayoutStatus) -> Iterator[dict[str, str]]:
    """The conditions in plain words: those that hold, and why nothing goes on."""
    if not status.conditions:
        yield _said("note", "no controller has looked at it yet")
    elif status.observed_generation < layout.metadata.generation:
        yield _said("note", "the controller has not looked at its last change yet")
    for one in status.conditions[: len(_KINDS)]:
        holds = one.status == "True"
        if holds or one.type == "Ready" or (one.type == "Progressing" and one.reason not in _IDLE):
            words = filter(None, (_WORDS.get(one.reason, one.type.lower()), one.message))
            kind = _KINDS.get(one.type, "note") if holds else "note"
            yield _said(kind, ": ".join(words), one.last_transition_time)


def _said(kind: str, text: str, since: str | None = None) -> dict[str, str]:
    return {"kind": kind, "text": cut(text), "since": cut(since or "")}


def _updating(layout: MigLayout) -> Iterator[tuple[str, str]]:
    """What the rollouts of a MigLayout's nodes wait for, as its status says it."""
    try:
        nodes = LayoutStatus.of(layout.raw_status).nodes
    except InvalidInput:
        return
    # a phase by itself says less than its words
    yield from (
        (one.name, one.reason) for one in nodes if one.state == "Updating" and one.reason not in _PHASES
    )


def _rollout(node: str, one: Rollout, told: str) -> dict[str, Any]:
    if isinstance(one, str):
        return {"node": node, "kind": "failed", "words": cut(one)}
    back = one.phase is Phase.PUTTING_BACK
    return {
        "node": node,
        "kind": "failed" if back else "pending",
        "owner": cut(str(one.owner)),
        "phase": one.phase,
        "since": _time(one.since),
        "until": _time(one.until),
        "words": cut(told) or one.phase.words,
        "reason": cut(one.reason),
    }


def _since(one: Rollout) -> float:
    return 0.0 if isinstance(one, str) else one.since


def _time(seconds: float) -> str:
    return moment(seconds) if 0 <= seconds < _LAST else ""
