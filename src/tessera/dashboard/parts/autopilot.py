"""What the autopilot of a MigLayout sees, would do and did, as the status says it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tessera.core.text import counts_in_words, shortened
from tessera.protocol.mig.autopilot import DRY_RUN, GONE, UNDER_WAY, HistoryRow, RecutRow
from tessera.protocol.mig.miglayout import MigLayout
from tessera.protocol.mig.rollouts import Result

# as many as the controller writes
_MOST_PROFILES: Final = 32
_MOST_RECUTS: Final = 20
_MOST_REFUSALS: Final = 10
_MOST_PAST: Final = 30
_LONGEST: Final = 300  # characters of a text

# how a decision ended: how it is marked, and in words; what is not here is shown as it is
_RESULTS: Final = {
    DRY_RUN: ("offers", "dry run: nothing was changed"),
    UNDER_WAY: ("pending", "under way"),
    GONE: ("failed", "the node was deleted"),
    Result.DONE: ("success", "done"),
    Result.FAILED: ("failed", "failed, the old layout is back"),
    Result.IN_USE: ("offers", "given up: a pod took a device first"),
    Result.NOT_READY: ("failed", "given up: the node is dead"),
    Result.OVERTAKEN: ("offers", "given up: somebody else changed the node"),
    Result.NOT_BEGUN: ("offers", "not begun"),
    Result.CANCELLED: ("offers", "given up: no longer wanted"),
}


def autopilot_part(layout: MigLayout) -> dict[str, Any] | None:
    """None where the layouts do not follow demand."""
    if not layout.follows_demand:
        return None
    status = layout.autopilot
    return {
        "dryRun": status.dry_run,
        "summary": cut(status.summary) or "it has not looked yet",
        "demand": [
            {**msgspec.to_builtins(one), "profile": cut(one.profile)} for one in status.demand[:_MOST_PROFILES]
        ],
        "recuts": [
            {**_card(one), "takes": _counted(one.takes), "gain": one.gain, "cost": one.cost, "waits": "" if status.dry_run else cut(one.waits)}
            for one in status.recuts[:_MOST_RECUTS]
        ],
        "refusals": [
            {"what": cut(counts_in_words([(one.profile, one.number)])), "reason": cut(one.reason)}
            for one in status.refusals[:_MOST_REFUSALS]
        ],
        "history": [_past(one) for one in status.history[:_MOST_PAST]],
    }  # fmt: skip


def _past(one: HistoryRow) -> dict[str, Any]:
    kind, words = _RESULTS.get(one.result, ("offers", one.result))
    said = ": ".join(filter(None, (words, one.told)))
    return {**_card(one), "when": cut(one.at), "kind": kind, "result": cut(said)}


def _card(one: RecutRow | HistoryRow) -> dict[str, Any]:
    return {
        "node": cut(one.node),
        "card": one.card,
        "before": cut(one.before),
        "after": cut(one.after),
        "serves": _counted(one.serves),
        "reason": cut(one.reason),
    }


def _counted(counts: Mapping[str, int]) -> str:
    return cut(counts_in_words(counts.items()))


def cut(text: str) -> str:
    """A text of a status: anybody who may write there may have written it."""
    return shortened(text, _LONGEST)
