"""What the autopilot remembers of each MigLayout: re-cuts as the status has them, demand as this process has seen it since."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tessera.core.autopilot.values import Cut, Past
from tessera.protocol.kubernetes.objects import seconds
from tessera.protocol.mig.miglayout import DRY_RUN, HistoryRow, MigLayout, read_past, write_past
from tessera.protocol.mig.rollouts import Result

# Re-cuts that are remembered: with the longest names of nodes they take half of what the API server takes of an object (1.5 MiB).
# 20 an hour, the default, with a cool-down of 4 days.
MOST_CUTS: Final = 2000
_HOUR: Final = 3600.0  # seconds that the budget is for


class Memory:
    """Of re-cuts only what the status has counts: every write to it has the version of what was read."""

    def __init__(self) -> None:
        self._past: dict[str, Past] = {}  # by the MigLayout's UID

    def clear(self) -> None:
        self._past.clear()

    def keep(self, layout: MigLayout, past: Past) -> None:
        self._past[layout.uid] = past

    def of(self, layout: MigLayout, now: float) -> Past:
        """What is remembered. Where the status cannot be read, all that may be cut within an hour counts as cut now."""
        stored = read_past(layout.autopilot.past)
        if stored is None:
            stored = Past(cuts=(*_told(layout), *_all(layout, now)))
        stored = sane(stored, now)
        mine = self._past.get(layout.uid)
        return stored if mine is None else replace(mine, cuts=stored.cuts)


def is_readable(layout: MigLayout) -> bool:
    return read_past(layout.autopilot.past) is not None


def stored_cuts(layout: MigLayout) -> tuple[Cut, ...] | None:
    """The re-cuts that the status has, as they are there; None where it cannot be read."""
    past = read_past(layout.autopilot.past)
    return None if past is None else past.cuts


def sane(past: Past, now: float) -> Past:
    """Without times that are yet to come, which a clock that was ahead has written: they count as now, and so are over some day."""
    if (past.at is None or past.at <= now) and all(one.at <= now for one in past.cuts):
        return past
    cuts = tuple(replace(one, at=min(one.at, now)) for one in past.cuts)
    return replace(past, at=None if past.at is None else min(past.at, now), cuts=cuts)


def lately(past: Past, layout: MigLayout, now: float) -> Past:
    """What is remembered, without re-cuts that count neither for the budget nor for a cool-down any more."""
    longest = max(_HOUR, layout.spec.autopilot.limits.cool_down)
    return replace(past, cuts=tuple(one for one in past.cuts if now - one.at < longest))


def refunded(past: Past, rows: Iterable[tuple[HistoryRow, HistoryRow]]) -> Past:
    """What is remembered, without the last re-cut of cards whose nodes were not even cordoned."""
    for before, after in rows:
        if before.result != after.result == Result.NOT_BEGUN:
            cuts = list(past.cuts)
            of = [one for one in cuts if (one.node, one.number) == (after.node, after.card)]
            if of:
                cuts.remove(max(of, key=lambda one: one.at))
            past = replace(past, cuts=tuple(cuts))
    return past


def refunded_text(text: str, rows: Iterable[tuple[HistoryRow, HistoryRow]]) -> str:
    """The same as the status has it, for who decides nothing now: no time in it is changed."""
    past = read_past(text)
    found = None if past is None else refunded(past, rows)
    return text if found is None or found == past else write_past(found)


def _told(layout: MigLayout) -> Iterable[Cut]:
    """Re-cuts that the history tells of, for their cool-down."""
    for row in layout.autopilot.history:
        if row.result not in (DRY_RUN, Result.NOT_BEGUN):
            yield Cut(seconds(row.at) or 0.0, row.node, row.card)


def _all(layout: MigLayout, now: float) -> Iterable[Cut]:
    """As many as the budget allows, of no card."""
    return (Cut(now, "", number) for number in range(layout.spec.autopilot.recuts_per_hour))
