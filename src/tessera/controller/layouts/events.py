"""What Events of a MigLayout say: conditions that begin to hold, and the autopilot's decisions. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tessera.kube.events.correlator import About, Event
from tessera.protocol.mig.autopilot import DRY_RUN, UNDER_WAY, HistoryRow
from tessera.protocol.mig.miglayout import API_VERSION, KIND, MigLayout
from tessera.protocol.mig.rollouts import Result

_DECISIONS: Final = {
    DRY_RUN: "MIGRecutPlanned",
    UNDER_WAY: "MIGRecutBegun",
    Result.DONE: "MIGRecutDone",
    Result.FAILED: "MIGRecutFailed",
}
_GIVEN_UP: Final = "MIGRecutGivenUp"


def of_conditions(layout: MigLayout, status: Mapping[str, Any]) -> Iterator[Event]:
    """Conditions that begin to hold with this status."""
    for one in status["conditions"]:
        if one["status"] != "True" or layout.condition(one["type"]).status == "True":
            continue
        kind = "Warning" if one["type"] in ("Degraded", "Invalid") else "Normal"
        yield Event(_about(layout), one["reason"], one["message"] or one["type"], kind)


def of_decision(layout: MigLayout, row: HistoryRow) -> Event:
    """A decision, or what became of it."""
    kind = "Warning" if row.result == Result.FAILED else "Normal"
    told = f"; {row.told}" if row.told else ""
    text = f"node {row.node}, card {row.card}: {row.before} → {row.after}: {row.reason}{told}"
    return Event(_about(layout), _DECISIONS.get(row.result, _GIVEN_UP), text, kind)


def _about(layout: MigLayout) -> About:
    return About(API_VERSION, KIND, layout.name, "", layout.uid)
