"""A MigLayout's status in plain words. The status is one that may be shown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.text import counts_in_words
from tessera.diagnosis.layouts.status import cut
from tessera.protocol.kubernetes.objects import Condition
from tessera.protocol.mig.miglayout import (
    DRY_RUN,
    GONE,
    UNDER_WAY,
    AutopilotStatus,
    HistoryRow,
    LayoutStatus,
    MigLayout,
    RecutRow,
)
from tessera.protocol.mig.rollouts import Result

NOT_LOOKED: Final = "no controller has looked at it yet"
LOOKED_BEFORE: Final = "the controller has not looked at its last change yet"
NOT_DECIDED: Final = "it has not looked yet"  # the autopilot

# what a condition's reason adds to its message; one that is not here is called by the condition's name
_CONDITIONS: Final = {
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
# reasons why nothing goes on that need no word: a dry run is marked as such
_IDLE: Final = ("Idle", "DryRun")
_KINDS: Final = {"Ready": "good", "Progressing": "note", "Degraded": "bad", "Invalid": "bad"}

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


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence about a MigLayout: good, bad, or to be noted."""

    kind: str
    text: str
    since: str = ""  # as the API server writes it


def unreadable(error: Exception) -> str:
    """That a status is none that the controller writes."""
    return cut(f"its status cannot be read: {error}")


def unseen_change(layout: MigLayout, status: LayoutStatus) -> str:
    """That the controller has not looked at it as it is; empty where it has."""
    if not status.conditions:
        return NOT_LOOKED
    return LOOKED_BEFORE if status.observed_generation < layout.metadata.generation else ""


def says(layout: MigLayout, status: LayoutStatus) -> Iterator[Said]:
    """The conditions that hold, and why nothing goes on."""
    if unseen := unseen_change(layout, status):
        yield Said("note", unseen)
    for one in status.conditions:
        holds = one.status == "True"
        if holds or one.type == "Ready" or (one.type == "Progressing" and one.reason not in _IDLE):
            kind = _KINDS.get(one.type, "note") if holds else "note"
            yield Said(kind, _words(one), one.last_transition_time or "")


def _words(one: Condition) -> str:
    return cut(": ".join(filter(None, (_CONDITIONS.get(one.reason, one.type.lower()), one.message))))


def about(layout: MigLayout) -> Iterator[str]:
    """What its mode means, and what limits it."""
    spec, at_once = layout.spec, f"nodes at a time: {cut(str(layout.spec.rollout.max_unavailable))}"
    if not layout.follows_demand:
        yield "Fixed: nodes get the layouts that it has"
        yield f"{at_once}; pods that hold devices which go: {cut(spec.rollout.when_in_use)}"
    else:
        limits, acts = spec.autopilot, "dry run: nothing is changed" if spec.autopilot.dry_run else "it acts"
        yield f"Auto: idle devices are re-cut for what pods want; {acts}"
        yield f"{at_once}; cards an hour: {limits.recuts_per_hour}; cool-down {cut(limits.cool_down)}"
        stays = [f"at least {one}" for one in [counted(limits.minimum or {})] if one]
        stays += [f"at most {one}" for one in [counted(limits.maximum or {})] if one]
        stays += [f"cards that stay whole: {limits.keep_whole}"] if limits.keep_whole else []
        if stays:
            yield "; ".join(stays)
    if spec.paused:
        yield "paused: no further node begins"


def decided(status: AutopilotStatus) -> str:
    """What the autopilot decides now, in a sentence; that it is a dry run, or paused, is said elsewhere."""
    return (
        (status.summary or f"{NOT_DECIDED.capitalize()}.").removeprefix("Dry run: ").removeprefix("Paused: ")
    )


def counted(counts: Mapping[str, int]) -> str:
    return cut(counts_in_words(counts.items()))


def card_words(one: RecutRow | HistoryRow) -> str:
    """Which card, and how it is cut before and after."""
    return f"{one.node}, card {one.card}: {one.before} → {one.after}"


def worth(one: RecutRow) -> str:
    """What a re-cut makes room for, what goes for it, and what that is worth."""
    takes = counted(one.takes)
    taken = f"{takes} (idle)" if takes else "nothing"
    if not one.serves:
        return f"serves nobody yet, takes {taken}"
    return f"serves {counted(one.serves)}, takes {taken}; gain {_round(one.gain)}, cost {_round(one.cost)}"


def _round(number: float) -> str:
    return f"{round(number, 1):g}"


def decided_why(one: HistoryRow) -> str:
    """What a decision was for, and why."""
    return ": ".join(filter(None, (f"for {counted(one.serves)}" if one.serves else "", one.reason)))


def result_of(one: HistoryRow) -> tuple[str, str]:
    """How a decision ended: how that is marked, and in words."""
    kind, words = _RESULTS.get(one.result, ("offers", one.result))
    return kind, ": ".join(filter(None, (words, one.told)))
