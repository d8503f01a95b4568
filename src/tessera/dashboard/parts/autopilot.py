"""What the autopilot of a MigLayout sees, would do and did, as the status says it."""

from typing import Any

import msgspec

from tessera.core.text import counts_in_words
from tessera.diagnosis.layouts.status import shown_autopilot
from tessera.diagnosis.layouts.words import NOT_DECIDED, decided_why, result_of, worth
from tessera.protocol.mig.autopilot import HistoryRow, RecutRow
from tessera.protocol.mig.miglayout import MigLayout


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
