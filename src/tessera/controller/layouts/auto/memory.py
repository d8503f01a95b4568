"""What the autopilot remembers of each MigLayout: re-cuts as the status has them, demand as this process has seen it since."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Final, TypeVar

from tessera.core.autopilot.shares import HOUR, count_lately
from tessera.core.autopilot.values import Charge, Cut, Past, Use
from tessera.protocol.kubernetes.objects import seconds
from tessera.protocol.mig.miglayout import DRY_RUN, HistoryRow, MigLayout, read_past, write_past
from tessera.protocol.mig.rollouts import Result

# Re-cuts that are remembered: with the longest names of nodes, and of namespaces that spent what, they take a little more than half of what the API
# server takes of an object (1.5 MiB).
# 20 an hour, the default, with a cool-down of 4 days.
MOST_CUTS: Final = 2000
# Re-cuts that ended so cost nothing of the budget: no card was cut, or another client of the node has undone it. So a node that always undoes its
# re-cuts spends nothing.
_REFUNDED: Final = (Result.NOT_BEGUN, Result.IN_USE, Result.OVERTAKEN)

T = TypeVar("T", Cut, Charge)


class Memory:
    """Of re-cuts only what the status has counts: every write to it has the version of what was read."""

    def __init__(self) -> None:
        self._past: dict[str, Past] = {}  # by the MigLayout's UID

    def clear(self) -> None:
        self._past.clear()

    def keep(self, layout: MigLayout, past: Past) -> None:
        self._past[layout.uid] = past

    def forget_others(self, uids: Collection[str]) -> None:
        """Forget MigLayouts that are gone."""
        self._past = {uid: past for uid, past in self._past.items() if uid in uids}

    def of(self, layout: MigLayout, now: float) -> Past:
        """What is remembered. Where the status cannot be read, all that may be cut within an hour counts as cut now."""
        stored = read_past(layout.autopilot.past)
        if stored is None:
            stored = Past(cuts=(*_told(layout), *_all(layout, now)))
        stored = sane(stored, now)
        mine = self._past.get(layout.uid)
        return stored if mine is None else replace(mine, cuts=stored.cuts, charges=stored.charges)


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
    longest = max(HOUR, layout.spec.autopilot.limits.cool_down)
    cuts = tuple(one for one in past.cuts if now - one.at < longest)
    return replace(past, cuts=cuts, charges=count_lately(past.charges, now))


def note_ends(past: Past, rows: Iterable[tuple[HistoryRow, HistoryRow]], now: float) -> Past:
    """What is remembered once re-cuts have ended: some are refunded, and some nodes offer from now on what was made for a namespace."""
    for before, after in rows:
        if before.result == after.result:
            continue
        if after.result in _REFUNDED:
            cut = _last_of_card(past.cuts, after)
            past = replace(past, cuts=tuple(one for one in past.cuts if one is not cut))
        under_way = (one for one in past.charges if one.use is Use.OPEN and one.offered is None)
        if (charge := _last_of_card(under_way, after)) is not None:
            offered = (replace(charge, offered=now),) if after.result == Result.DONE else ()
            place = past.charges.index(charge)
            past = replace(past, charges=(*past.charges[:place], *offered, *past.charges[place + 1 :]))
    return past


def _last_of_card(of_cards: Iterable[T], row: HistoryRow) -> T | None:
    of_card = (one for one in of_cards if (one.node, one.number) == (row.node, row.card))
    return max(of_card, key=attrgetter("at"), default=None)


def note_ends_in(text: str, rows: Iterable[tuple[HistoryRow, HistoryRow]], now: float) -> str:
    """The same as the status has it, for who decides nothing now: no other time in it is changed."""
    past = read_past(text)
    noted = None if past is None else note_ends(past, rows, now)
    return text if noted is None or noted == past else write_past(noted)


def _told(layout: MigLayout) -> Iterable[Cut]:
    """Re-cuts that the history tells of, for their cool-down."""
    for row in layout.autopilot.history:
        if row.result not in (DRY_RUN, Result.NOT_BEGUN):
            yield Cut(seconds(row.at) or 0.0, row.node, row.card)


def _all(layout: MigLayout, now: float) -> Iterable[Cut]:
    """As many as the budget allows, of no card."""
    return (Cut(now, "", number) for number in range(layout.spec.autopilot.recuts_per_hour))
