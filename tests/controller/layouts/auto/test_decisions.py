"""What the status says of decisions is bounded, and says each once."""

from dataclasses import replace

import msgspec
import pytest

from tessera.controller.layouts.auto.decisions import (
    begun_rows,
    changed_rows,
    decisions,
    demand_rows,
    dry_rows,
    namespace_rows,
    recut_rows,
    refusal_rows,
    summary,
    with_rows,
)
from tessera.controller.layouts.auto.memory import MOST_CUTS
from tessera.core.autopilot.shares import settle
from tessera.core.autopilot.values import Charge, Cut, Past, ProfileDemand, Proposal, Recut, Refusal, Use, Why
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile
from tessera.protocol.mig.miglayout import AutopilotStatus, HistoryRow, NamespaceRow, write_past
from tests.rollout.plugin import CARDS

NOW = 1_800_000_000.0


def recut(node: str, number: int = 0) -> Recut:
    card = CardLayout(CARDS[0])
    return Recut(node, number, card, card, {}, {}, 1.0, 1.0, "why")


def row(node: str, result: str) -> HistoryRow:
    return HistoryRow("2027-01-15T07:00:00Z", node, 0, "a", "b", {}, "why", result)


def test_a_dry_run_of_many_cards_is_told_once():
    """However many cards would be cut, the same plan adds nothing to the history the next time: neither a write nor an Event."""
    many = [recut(f"n-{number}") for number in range(500)]
    first = dry_rows([], many, NOW, 20)
    assert len(first) == 20
    assert dry_rows(first, many, NOW + 10, 20) == first


def test_a_dry_run_tells_of_no_more_cuts_for_nobody_than_there_would_be():
    """Which idle cards would be kept whole changes with every pod that comes or goes: in an hour no more of them are told than would be cut. What pods wait for is told always."""
    history: list[HistoryRow] = []
    for number in range(100):
        history = dry_rows(history, [recut(f"n-{number}"), recut(f"m-{number}")], NOW + 10 * number, 3)
    assert [one.node for one in history] == ["n-1", "n-0", "m-0"]
    waits = replace(recut("waits"), serves={MigProfile.parse("4g.40gb"): 1})
    found = dry_rows(history, [recut("late"), waits], NOW + 1000, 3)
    assert [one.node for one in found] == ["waits", "n-1", "n-0", "m-0"]
    assert [one.node for one in dry_rows(history, [recut("late")], NOW + 3601, 3)][:2] == ["late", "n-1"]
    assert dry_rows([], [recut("n")], NOW, 0) == []


def test_what_is_under_way_stays_in_the_history():
    """A re-cut that takes long is told how it ends, however many others have begun and ended since."""
    old = [*(row(f"done-{number}", "Done") for number in range(29)), row("slow", "UnderWay")]
    found = begun_rows(old, [recut(f"n-{number}") for number in range(10)], NOW)
    assert len(found) == 30
    assert [one.node for one in found if one.result == "UnderWay"] == [
        *(f"n-{number}" for number in range(10)),
        "slow",
    ]
    assert [one.node for one in found if one.result == "Done"] == [f"done-{number}" for number in range(19)]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ([], ["DryRun"], ["DryRun"]),
        (["DryRun"], ["DryRun"], []),
        (["DryRun"], ["UnderWay", "DryRun"], ["UnderWay"]),
        (["UnderWay", "DryRun"], ["Done", "DryRun"], ["Done"]),
        (["Done", "DryRun"], ["Done", "DryRun"], []),
        (["NotBegun"], ["UnderWay", "NotBegun"], ["UnderWay"]),
        (["UnderWay", "NotBegun"], ["NotBegun", "NotBegun"], ["NotBegun"]),
        (["Done", "DryRun"], ["Done"], []),
    ],
)
def test_each_decision_and_its_end_are_told_once(old, new, told):
    """Also where several decisions about one card are of the same second, as a dry run and the re-cut in earnest may be."""
    was, now = (AutopilotStatus(history=[row("n", one) for one in some]) for some in (old, new))
    assert [one.result for one in changed_rows(was, now)] == told


def test_no_more_begin_than_the_history_has_rows_for():
    """Each card that is cut has its row, which says what became of it. A node with more cards than there are rows begins alone."""
    some = {f"n-{number}": [recut(f"n-{number}", card) for card in range(8)] for number in range(5)}
    assert with_rows([], some) == ["n-0", "n-1", "n-2"]
    assert with_rows([row("x", "Done")] * 9 + [row("y", "UnderWay")] * 8, some) == ["n-0", "n-1"]
    assert with_rows([row("y", "UnderWay")] * 24, some) == []
    large = {"large": [recut("large", card) for card in range(40)], **some}
    assert with_rows([], large) == ["large"]
    assert with_rows([row("y", "UnderWay")], large) == []


def test_what_cards_are_re_cut_for():
    """What pods wait for and what is only expected are told apart."""
    one, four, three = (MigProfile.parse(name) for name in ("1g.10gb", "4g.40gb", "3g.40gb"))
    product = product_named("H100-80GB")
    small, large = (CardLayout.cut(product, some) for some in ([one] * 7, [four, three]))
    waits = Recut("n", 0, small, large, {four: 1}, {one: 7}, 1.0, 0.0, "why")
    keeps = replace(waits, serves={})
    assert summary(Proposal(), [], [waits], "") == "The controller begins to re-cut 1 card for 1 × 4g.40gb."
    room = "to keep room for 1 × 3g.40gb, 1 × 4g.40gb"
    assert summary(Proposal(), [keeps], [], "dry run") == f"Dry run: 1 card would be re-cut {room}."
    both = f"The controller begins to re-cut 2 cards for 1 × 4g.40gb and {room}."
    assert summary(Proposal(), [], [waits, keeps], "") == both


def test_a_status_is_small_at_any_size_of_a_cluster():
    """4,000 nodes with the longest names, all cards wanted and refused, as much remembered as may be: a little more than half of what the API server takes of an object (1.5 MiB)."""
    longest = ["n" * 248 + f"-{number:04}" for number in range(4000)]
    many = [replace(recut(name, card), reason="why " * 500) for name in longest for card in range(8)]
    refusals = tuple(Refusal(MigProfile(1 + n % 7, n + 1), n, Why.NO_ROOM, "why " * 500) for n in range(500))
    demand = {one.profile: ProfileDemand(1, 1, 1, 1, 1, 1.0) for one in refusals}
    proposal = Proposal(tuple(many), refusals, Past(), demand)
    cuts = tuple(Cut(NOW + number / 7, name, 7) for number, name in enumerate(longest[:MOST_CUTS]))
    spaces = [f"{number:04}".rjust(63, "n") for number in range(1000)]
    made = [
        Charge(NOW + number / 7, longest[number], 7, name, ("7g.80gb",), NOW)
        for number, name in enumerate(spaces)
    ]
    charges = settle(made, lambda _: (), NOW + 200)
    assert {charge.use for charge in charges} == {Use.UNUSED}
    status = AutopilotStatus(
        summary=summary(proposal, many, many, "", "unseen " * 500),
        demand=demand_rows(proposal),
        recuts=recut_rows(many, "waits"),
        refusals=refusal_rows(proposal),
        namespaces=namespace_rows(charges, 1),
        history=dry_rows([], many, NOW, 20),
        past=write_past(Past(NOW, {}, cuts, charges)),
    )
    assert len(msgspec.json.encode(status)) < 1.5 * 2**20 * 0.6
    assert len(msgspec.json.encode(msgspec.structs.replace(status, past=""))) < 64 * 2**10


def charge(namespace: str, use: Use = Use.OPEN, at: float = NOW) -> Charge:
    return Charge(at, "n", 0, namespace, (), NOW, use)


def test_who_has_spent_what() -> None:
    """By namespace: used, unused, undecided; those first whose pods took least. Where a share is spent, when it is free again."""
    charges = [
        charge("fair", Use.USED),
        charge("fair", Use.USED),
        charge("greedy", Use.UNUSED, NOW - 600),
        charge("greedy"),
        charge("half", Use.UNUSED),
    ]
    assert namespace_rows(charges, 8) == [
        NamespaceRow("greedy", 0, 1, 1, "2027-01-15T08:50:00Z"),
        NamespaceRow("half", 0, 1, 0),
        NamespaceRow("fair", 2, 0, 0),
    ]
    assert len(namespace_rows([charge(f"team-{number}") for number in range(500)], 8)) == 20


def test_when_a_share_is_free_again_is_said() -> None:
    """The reason of a refusal has the time, in the API's form."""
    refusal = Refusal(MigProfile.parse("4g.40gb"), 3, Why.SHARE, "why", NOW)
    (row_,) = refusal_rows(Proposal(refusals=(refusal,)))
    assert (row_.why, row_.reason) == ("share", "why; free again at 2027-01-15T08:00:00Z at the latest")


def test_what_is_spent_is_written_at_once() -> None:
    """That a re-cut was used is a decision, for the next leader; it waits for no other news."""
    was, now = (
        AutopilotStatus(past=write_past(Past(charges=(charge("team", use),)))) for use in (Use.OPEN, Use.USED)
    )
    assert decisions(was) != decisions(now)
    assert decisions(was) == decisions(was)
    assert decisions(AutopilotStatus(past="{")) == decisions(AutopilotStatus())
