"""MigLayouts as their status says it, and the rollouts that nodes are in. Nothing is judged here: that is the controller's."""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.dashboard.parts.autopilot import autopilot_part
from tessera.diagnosis.layouts.rollouts import Rollout, shown_rollouts
from tessera.diagnosis.layouts.status import cut, shown_status
from tessera.diagnosis.layouts.words import Said, says, unreadable
from tessera.protocol.mig.layout_status import LayoutStatus, NodeStatus
from tessera.protocol.mig.miglayout import MigLayout

MOST_LAYOUTS: Final = 50
MOST_ROLLOUTS: Final = 100


def layouts_part(layouts: Iterable[MigLayout], unseen: str) -> dict[str, Any]:
    """By name; all are counted, some are shown. `unseen`: why they cannot be read."""
    found = list(layouts)
    shown = nsmallest(MOST_LAYOUTS, found, key=lambda one: one.name)
    return {"unseen": unseen, "count": len(found), "first": [_row(one) for one in shown]}


def rollouts_part(rollouts: Mapping[str, Rollout], layouts: Iterable[MigLayout]) -> dict[str, Any]:
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
