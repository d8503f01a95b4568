"""What a status and Events say of the autopilot's decisions: rows, sentences, and what became of each. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from msgspec.structs import replace

from tessera.controller.layouts.plan import SeenNode
from tessera.core.autopilot.shares import HOUR, Allowances
from tessera.core.autopilot.values import Charge, Proposal, Recut, Refusal, Use
from tessera.core.mig.known import KnownLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import profile_counts
from tessera.core.text import counts_in_words, number_of, shortened
from tessera.inventory.known import known_layout
from tessera.protocol.kubernetes.objects import moment, seconds
from tessera.protocol.mig.miglayout import (
    DRY_RUN,
    GONE,
    UNDER_WAY,
    AutopilotStatus,
    DemandRow,
    HistoryRow,
    NamespaceRow,
    RecutRow,
    RefusalRow,
    read_past,
)
from tessera.protocol.mig.nodes import gpu_node
from tessera.protocol.mig.rollouts import Result
from tessera.rollout.values import Outcome

_MOST_DEMAND: Final = 32
_MOST_RECUTS: Final = 20
_MOST_REFUSALS: Final = 10
_MOST_HISTORY: Final = 30
_MOST_NAMESPACES: Final = 20
_LONGEST: Final = 300  # characters of a sentence


class Rollouts(Protocol):
    """What a process knows of rollouts beside the nodes."""

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """By node: how its last rollout ended."""

    def put_off(self, node: str) -> str:
        """Why a node is not looked at for a while."""


def demand_rows(proposal: Proposal) -> list[DemandRow]:
    return [
        DemandRow(
            str(profile),
            one.waiting,
            one.fell_back,
            one.rejected,
            one.in_use,
            one.idle,
            round(one.forecast, 1),
        )
        for profile, one in proposal.demand.items()
    ][:_MOST_DEMAND]


def recut_rows(recuts: Iterable[Recut], waits: str) -> list[RecutRow]:
    return [
        RecutRow(
            one.node,
            one.number,
            one.before.words,
            one.after.words,
            profile_counts(one.serves),
            profile_counts(one.takes),
            round(one.gain, 2),
            round(one.cost, 2),
            shortened(one.reason, _LONGEST),
            waits,
        )
        for one in recuts
    ][:_MOST_RECUTS]


def refusal_rows(proposal: Proposal) -> list[RefusalRow]:
    return [
        RefusalRow(str(one.profile), one.number, str(one.why), shortened(_reason_of(one), _LONGEST))
        for one in proposal.refusals
    ][:_MOST_REFUSALS]


def _reason_of(refusal: Refusal) -> str:
    if refusal.until is None:
        return refusal.reason
    return f"{refusal.reason}; free again at {moment(refusal.until)} at the latest"


def namespace_rows(charges: Sequence[Charge], recuts_per_hour: int) -> list[NamespaceRow]:
    """What namespaces have spent, those first that have most re-cuts which their pods did not take."""
    counts = Counter((charge.namespace, charge.use) for charge in charges)
    allowances = Allowances(charges, recuts_per_hour)
    rows = []
    for namespace in {charge.namespace for charge in charges}:
        used, unused, undecided = (counts[namespace, use] for use in (Use.USED, Use.UNUSED, Use.OPEN))
        free_at = allowances.free_at(namespace)
        rows.append(NamespaceRow(namespace, used, unused, undecided, moment(free_at) if free_at else ""))
    rows.sort(key=lambda row: (-row.unused - row.undecided, -row.used, row.namespace))
    return rows[:_MOST_NAMESPACES]


def summary(
    proposal: Proposal, left: Sequence[Recut], begun: Sequence[Recut], stopped: str, unseen: str = ""
) -> str:
    """What is decided, in one sentence; `unseen`: what could not be read."""
    parts = []
    if begun:
        parts.append(f"the controller begins to re-cut {number_of(len(begun), 'card')} {_what_for(begun)}")
    if left:
        then = f"{number_of(len(left), 'card')} would be re-cut {_what_for(left)}"
        parts.append(f"{stopped}: {then}" if stopped else f"{then}, after the nodes that are being changed")
    if proposal.refusals:
        none = Counter[MigProfile]()
        for one in proposal.refusals:
            none[one.profile] += one.number
        parts.append(f"no room for {_counted(none)}")
    if not parts:
        parts.append(
            "what is wanted is there, or on its way"
            if any(one.waiting or one.fell_back or one.rejected for one in proposal.demand.values())
            else "nothing is wanted that is not there"
        )
    text = shortened("; ".join([*parts, unseen] if unseen else parts), _LONGEST)
    return f"{text[0].upper()}{text[1:]}."


def begun_rows(history: Sequence[HistoryRow], recuts: Iterable[Recut], now: float) -> list[HistoryRow]:
    """The history with re-cuts that begin now."""
    return _newest([*(_row(one, now, UNDER_WAY) for one in recuts), *history])


def dry_rows(
    history: Sequence[HistoryRow], recuts: Iterable[Recut], now: float, keeps: int
) -> list[HistoryRow]:
    """The history with re-cuts that would begin now, as far as the status has them, each once.

    `keeps`: how many an hour of those that serve nobody yet. What is idle changes all the time, and with it which cards would be cut.
    """
    dry = [one for one in history if one.result == DRY_RUN]
    known = {_what(one) for one in dry}
    left = keeps - sum(not one.serves and now - (seconds(one.at) or 0.0) < HOUR for one in dry)
    rows = []
    for one in (_row(one, now, DRY_RUN) for one in islice(recuts, _MOST_RECUTS)):
        if _what(one) not in known and (one.serves or left > 0):
            rows.append(one)
            left -= not one.serves
    return _newest([*rows, *history])


def with_rows(history: Sequence[HistoryRow], recuts: Mapping[str, Sequence[Recut]]) -> list[str]:
    """The nodes that may begin, in order, so that the history has a row for each card that is under way; one may at any rate."""
    under_way = sum(one.result == UNDER_WAY for one in history)
    may: list[str] = []
    for name, some in recuts.items():
        under_way += len(some)
        if under_way > max(_MOST_HISTORY, len(some)):
            break
        may.append(name)
    return may


def ended_rows(
    history: Sequence[HistoryRow],
    nodes: Mapping[str, SeenNode],
    uid: str,
    slots: Collection[str],
    rollouts: Rollouts,
) -> list[HistoryRow]:
    """The history, in which re-cuts whose nodes have given their slots back have their result."""
    return [
        _ended(one, nodes.get(one.node), uid, rollouts)
        if one.result == UNDER_WAY and one.node not in slots
        else one
        for one in history
    ]


def _ended(
    row: HistoryRow,
    node: SeenNode | None,
    uid: str,
    rollouts: Rollouts,
) -> HistoryRow:
    if node is None:
        return replace(row, result=GONE)
    if node.record is not None and node.record.owner.uid == uid:
        return row
    end = node.end
    if (outcome := rollouts.outcomes.get(row.node)) is not None:
        result, reason = outcome.result, outcome.reason
    elif end is not None and end.owner.uid == uid and end.at >= (seconds(row.at) or 0.0):
        result, reason = end.result, end.reason  # an earlier leader ended it
    elif _shows(node, row):
        result, reason = Result.DONE, ""
    else:
        result, reason = Result.NOT_BEGUN, rollouts.put_off(row.node)
    return replace(row, result=str(result), told=shortened(reason, _LONGEST))


def _shows(node: SeenNode, row: HistoryRow) -> bool:
    """Whether a card is cut as it was to be; also where that is not known."""
    known = known_layout(gpu_node(node.node))
    cards = known.layout.cards if isinstance(known, KnownLayout) else ()
    return not 0 <= row.card < len(cards) or cards[row.card].words == row.after


def changed_rows(old: AutopilotStatus, new: AutopilotStatus) -> Iterator[HistoryRow]:
    """Rows of a history that are new, or have another result, the oldest first."""
    # of one card two rows may be of the same second: a dry run, and in earnest
    known = Counter((one.at, one.node, one.card, one.result) for one in old.history)
    for one in reversed(new.history):
        which = one.at, one.node, one.card, one.result
        if known[which]:
            known[which] -= 1
        else:
            yield one


def decisions(status: AutopilotStatus) -> object:
    """What of a status is a decision."""
    recuts = [(one.node, one.card, one.before, one.after, one.waits) for one in status.recuts]
    refusals = [(one.profile, one.why) for one in status.refusals]
    past = read_past(status.past)
    charges = past.charges if past is not None else ()
    spent = [(charge.namespace, charge.use, charge.offered is None) for charge in charges]
    return status.dry_run, recuts, refusals, status.history, spent


def numbers(status: AutopilotStatus) -> object:
    """What of a status people read."""
    demand = [replace(one, forecast=0.0) for one in status.demand]
    recuts = [replace(one, gain=0.0, cost=0.0) for one in status.recuts]
    return replace(status, demand=demand, recuts=recuts, past="")


def _newest(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    """Without the oldest rows; what is under way stays, to be told how it ends."""
    under_way = sum(one.result == UNDER_WAY for one in rows)
    left, kept = max(0, _MOST_HISTORY - under_way), []
    for one in rows:
        if one.result == UNDER_WAY or left > 0:
            kept.append(one)
            left -= one.result != UNDER_WAY
    return kept


def _row(one: Recut, now: float, result: str) -> HistoryRow:
    return HistoryRow(
        moment(now),
        one.node,
        one.number,
        one.before.words,
        one.after.words,
        profile_counts(one.serves),
        shortened(one.reason, _LONGEST),
        result,
    )


def _what(row: HistoryRow) -> tuple[str, int, str, str]:
    return row.node, row.card, row.before, row.after


def _what_for(recuts: Iterable[Recut]) -> str:
    serves, keeps = Counter[MigProfile](), Counter[MigProfile]()
    for one in recuts:
        serves.update(one.serves)
        if not one.serves:
            keeps.update(one.brings)
    served = [f"for {_counted(serves)}"] if serves else []
    return " and ".join([*served, *([f"to keep room for {_counted(keeps)}"] if keeps else [])])


def _counted(counts: Mapping[MigProfile, int]) -> str:
    return counts_in_words(profile_counts(counts).items())
