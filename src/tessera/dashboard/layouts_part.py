"""What the autopilot of a MigLayout sees, would do and did, as the status says it.

MigLayouts as their status says it, and the rollouts that nodes are in. Nothing is judged here: that is the controller's.
"""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.text import counts_in_words
from tessera.diagnosis.layouts.status import cut, shown_autopilot, shown_rollouts, shown_status
from tessera.diagnosis.layouts.words import NOT_DECIDED, Said, decided_why, result_of, says, unreadable, worth
from tessera.protocol.mig.miglayout import HistoryRow, LayoutStatus, MigLayout, NodeStatus, RecutRow
from tessera.protocol.mig.rollouts import SeenRollout


def autopilot_part(layout: MigLayout) -> dict[str, Any] | None:
    """None where the layouts do not follow demand."""
    status = shown_autopilot(layout)
    if status is None:
        return None
    return {
        "dryRun": status.dry_run,
        "summary": status.summary or NOT_DECIDED,
        "demand": msgspec.to_builtins(status.demand),
        "recuts": [
            {**_card(one), "says": [worth(one), one.reason, "" if status.dry_run else one.waits]}
            for one in status.recuts
        ],
        "refusals": [
            {"what": counts_in_words([(one.profile, one.number)]), "reason": one.reason}
            for one in status.refusals
        ],
        "history": [_past(one) for one in status.history],
    }


def _past(one: HistoryRow) -> dict[str, Any]:
    kind, words = result_of(one)
    return {**_card(one), "when": one.at, "kind": kind, "says": [words, decided_why(one)]}


def _card(one: RecutRow | HistoryRow) -> dict[str, Any]:
    return {"node": one.node, "card": one.card, "before": one.before, "after": one.after}


MOST_LAYOUTS: Final = 50
MOST_ROLLOUTS: Final = 100


def layouts_part(layouts: Iterable[MigLayout], unseen: str) -> dict[str, Any]:
    """By name; all are counted, some are shown. `unseen`: why they cannot be read."""
    found = list(layouts)
    shown = nsmallest(MOST_LAYOUTS, found, key=lambda one: one.name)
    return {"unseen": unseen, "count": len(found), "first": [_row(one) for one in shown]}


def rollouts_part(rollouts: Mapping[str, SeenRollout], layouts: Iterable[MigLayout]) -> dict[str, Any]:
    """Those that are under way, by node."""
    nodes = [node for one in layouts for node in _nodes(one)] if rollouts else []
    shown = shown_rollouts(rollouts, nodes, MOST_ROLLOUTS)
    rows = [{**msgspec.to_builtins(one), "kind": "pending" if one.well else "failed"} for one in shown]
    return {"count": len(rollouts), "first": rows}


def _row(layout: MigLayout) -> dict[str, Any]:
    row = {"name": layout.name, "mode": cut(layout.spec.mode), "selector": cut(layout.selector)}
    try:
        status = shown_status(layout)
    except InvalidInput as error:
        return {**row, "says": msgspec.to_builtins([Said("bad", unreadable(error))])}
    return {
        **row,
        "desired": status.desired,
        "current": status.current,
        "updating": status.updating_count,
        "failed": status.failed,
        "says": msgspec.to_builtins(list(says(layout, status))),
        "nodes": msgspec.to_builtins(status.nodes),
        "autopilot": autopilot_part(layout),
    }


def _nodes(layout: MigLayout) -> list[NodeStatus]:
    try:
        return LayoutStatus.of(layout.raw_status).nodes
    except InvalidInput:
        return []
