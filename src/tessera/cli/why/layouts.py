"""How far a MigLayout is, why, and what to do next: as text, and as a document."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tessera.cli.common.output import Output, Style, block, headed, table
from tessera.cli.why.pods import MOST_NAMES, first_rows, remedy_documents, remedy_lines, unseen_block
from tessera.core.text import age, counts_in_words, first_of
from tessera.diagnosis.layouts.gather import LayoutEvidence
from tessera.diagnosis.layouts.next_steps import LayoutDiagnosis, diagnose_layout
from tessera.diagnosis.layouts.status import cut
from tessera.diagnosis.layouts.words import card_words, decided, decided_why, result_of, worth
from tessera.protocol.kubernetes.objects import seconds
from tessera.protocol.mig.autopilot import AutopilotStatus, HistoryRow, RecutRow

_MARKS: Final = {"Failed": "✗", "Invalid": "✗"}
_DEMAND: Final = ("devices", "waiting", "fell back", "rejected", "in use", "idle", "forecast")


def show(seen: LayoutEvidence, output: Output) -> None:
    """Print the answer in the form that was asked for."""
    found = diagnose_layout(seen)
    output.show(lambda: _document(found), lambda style: _text(found, seen, style))


def _document(found: LayoutDiagnosis) -> dict[str, Any]:
    status, autopilot = found.status, msgspec.to_builtins(found.autopilot)
    return {
        "object": found.title,
        "cause": found.cause,
        "answer": found.answer,
        "mode": found.mode,
        "about": found.about,
        "counts": {
            "desired": status.desired,
            "current": status.current,
            "updating": status.updating_count,
            "failed": status.failed,
        },
        "conditions": status.conditions,
        "nodes": found.nodes,
        "rollouts": found.rollouts,
        "autopilot": autopilot and {key: value for key, value in autopilot.items() if key != "past"},
        "remedies": remedy_documents(found.remedies),
        "unseen": found.unseen,
    }


def _text(found: LayoutDiagnosis, seen: LayoutEvidence, style: Style) -> list[str]:
    return [
        style.bold(found.answer),
        *block("mode", found.about),
        *block("nodes", _nodes(found, seen, style)),
        *block("conditions", _conditions(found, seen)),
        *block("rollouts", _rollouts(found, seen, style)),
        *(_autopilot(found.autopilot, found.answer, style) if found.autopilot is not None else ()),
        *unseen_block(found.unseen, style),
        *block("next", remedy_lines(found.remedies, style, between="")),
    ]


def _nodes(found: LayoutDiagnosis, seen: LayoutEvidence, style: Style) -> list[str]:
    one = found.status
    counts = (
        f"desired {one.desired}, current {one.current}, updating {one.updating_count}, failed {one.failed}"
    )
    selected = f"{seen.selected} selected by " if seen.selected is not None else "selected by "
    # what is waited for on nodes that are being changed stands with their rollouts
    rows = [
        (_MARKS.get(group.state, "-"), first_of(group.nodes, MOST_NAMES), group.state, group.reason)
        for group in found.nodes
        if group.state != "Updating" or not found.rollouts
    ]
    lines = first_rows(rows, "more group", " of nodes", style)
    rest = (
        [style.dim(f"… and {found.more} more, whose reasons the status does not have")] if found.more else []
    )
    return [f"{counts}; {selected}{cut(seen.layout.selector)}", *lines, *rest]


def _conditions(found: LayoutDiagnosis, seen: LayoutEvidence) -> list[str]:
    rows = [
        (one.type, one.status, one.reason, age(seen.now, one.since or 0.0), one.message)
        for one in found.status.conditions
    ]
    return table(rows) if rows else []


def _rollouts(found: LayoutDiagnosis, seen: LayoutEvidence, style: Style) -> list[str]:
    rows = [
        (
            one.node,
            one.phase,
            age(seen.now, seconds(one.since) or 0.0) if one.since else "",
            one.owner,
            "; ".join(filter(None, (one.words, one.reason))),
        )
        for one in found.rollouts
    ]
    return first_rows(rows, "more rollout", "", style)


def _autopilot(one: AutopilotStatus, answer: str, style: Style) -> Iterator[str]:
    said = decided(one)
    yield from block("decides", [] if said in answer else [said])
    yield from block("wanted", _demand(one, style))
    recuts = (line for recut in one.recuts for line in _recut(recut, one))
    yield from block("would cut" if one.dry_run else "cuts next", recuts)
    refusals = (f"{counts_in_words([(no.profile, no.number)])}: {no.reason}" for no in one.refusals)
    yield from block("no room", refusals)
    history = (line for row in one.history for line in _past(row))
    yield from block("history", history)


def _recut(recut: RecutRow, one: AutopilotStatus) -> Iterator[str]:
    yield card_words(recut)
    yield f"  {worth(recut)}"
    yield f"  {recut.reason}"
    if recut.waits and not one.dry_run:  # which was said
        yield f"  not at once: {recut.waits}"


def _past(row: HistoryRow) -> Iterator[str]:
    yield f"{row.at}  {card_words(row)}"
    yield f"  {'; '.join(filter(None, (result_of(row)[1], decided_why(row))))}"


def _demand(one: AutopilotStatus, style: Style) -> list[str]:
    rows = [
        (row.profile, *map(str, (row.waiting, row.fell_back, row.rejected, row.in_use, row.idle)), f"{row.forecast:g}")
        for row in one.demand
    ]  # fmt: skip
    return headed([_DEMAND, *rows], style) if rows else []
