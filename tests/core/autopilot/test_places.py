"""Idle places are kept whole, for what pods have waited for."""

import pytest

from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.values import CardSupply, Cut, Limits, Past
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way
from tests.core.autopilot.test_propose import H100, P1, P2, P3, P4, P7, card, want

DAY = {
    str(P1): (6.0, 40.0),
    str(P3): (2.0, 5.0, 0.1),
    str(P4): (2.0, 5.0, 0.1),
}  # pods have waited for 3g and 4g
NOW = 1000.0
ME = MigProfile.parse("1g.10gb+me")


def cut(cards: list[CardSupply], past: Past | None = None, limits: Limits | None = None) -> list[str]:
    """How cards are re-cut although nothing is wanted."""
    past = Past(NOW, DAY) if past is None else past
    return [one.after.words for one in propose([], cards, past, limits or Limits(), NOW).recuts]


def test_small_idle_devices_become_large_places() -> None:
    """Where a large device fits beside what is held, idle small ones make room for it before anybody waits."""
    here = card(0, *[P1] * 7, held=3)
    [recut] = propose([], [here], Past(NOW, DAY), Limits(), NOW).recuts
    assert recut.after.counts == {P1: 3, P4: 1}
    assert {*here.held} <= {*recut.after.instances}
    assert (dict(recut.serves), dict(recut.takes), recut.brings) == ({}, {P1: 4}, {P4: 1})
    assert recut.reason == "keeps room for 1 × 4g.40gb, which pods have waited for; idle 4 × 1g.10gb go"


@pytest.mark.parametrize(
    ("why", "cards", "past", "limits"),
    [
        ("nothing has been wanted", [card(0, *[P1] * 7)], Past(), Limits()),
        ("it has hardly been wanted", [card(0, *[P1] * 7)], Past(NOW, {str(P4): (0.4, 5.0, 0.4)}), Limits()),
        ("nobody has waited for it", [card(0, *[P1] * 7)], Past(NOW, {str(P4): (2.0, 5.0, 0.04)}), Limits()),
        ("it is whole", [card(0, P4, P3)], Past(NOW, DAY), Limits()),
        ("no large place is idle", [card(0, *[P1] * 7, held=7)], Past(NOW, DAY), Limits()),
        ("mig-manager would clear what is held", [card(0, *[P1] * 7, held=1, way=Way.MIG_MANAGER)], Past(NOW, DAY), Limits()),
        ("a whole GPU stays", [CardSupply("n", 0, CardLayout(H100, mig_enabled=False))], Past(NOW, DAY), Limits()),
        ("minimum", [card(0, *[P1] * 7)], Past(NOW, DAY), Limits(minimum={P1: 5})),
        ("maximum", [card(0, *[P1] * 7, held=3)], Past(NOW, DAY), Limits(maximum={P4: 0, P3: 0})),
        ("cool-down", [card(0, *[P1] * 7)], Past(NOW, DAY, (Cut(NOW - 9, "node-0", 0),)), Limits()),
        ("half of the budget is left", [card(0, *[P1] * 7)], Past(NOW, DAY, (Cut(NOW - 9, "x", 0),)), Limits(recuts_per_hour=2)),
        ("a budget of one is for what waits", [card(0, *[P1] * 7)], Past(NOW, DAY), Limits(recuts_per_hour=1)),
    ],
)  # fmt: skip
def test_what_is_left_as_it_is(why: str, cards: list[CardSupply], past: Past, limits: Limits) -> None:
    """Nothing is cut that nobody is expected to want, and all limits hold."""
    assert cut(cards, past, limits) == [], why


def test_no_more_than_is_expected() -> None:
    """One device that was always in use keeps one place, not every card."""
    cards = [card(number, *[P1] * 7) for number in range(4)]
    always = {str(P1): (7.0, 49.0, 0.0), str(P7): (1.0, 1.0, 0.1)}
    assert cut([*cards, card(5, P7, held=1)], Past(NOW, always)) == []
    assert cut([*cards, card(5, P2, P2, P2)], Past(NOW, always)) == ["7g.80gb ×1"]


def test_what_waits_comes_first() -> None:
    """While a card is re-cut for what waits, none is re-cut for what is expected; and one want alone has not been demand."""
    cards = [card(number, *[P1] * 7) for number in range(3)]
    assert [one.serves for one in propose([want(P4)], cards, Past(NOW, DAY), Limits(), NOW).recuts] == [
        {P4: 1}
    ]
    first = propose([want(P7)], cards, Past(), Limits(), NOW)
    left = [cards[1], cards[2], card(0, P7, held=1)]
    assert propose([], left, first.past, Limits(), NOW + 10).recuts == ()


def test_engines_stay() -> None:
    """An idle device with extra engines is not taken for what is only expected: a card has these once."""
    assert cut([card(0, ME, *[P1] * 6)]) == ["1g.10gb ×3 + 1g.10gb+me ×1 + 3g.40gb ×1"]


def test_mig_manager_cuts_whole_idle_cards() -> None:
    """A card of mig-manager on which nothing is held is kept whole like any other."""
    assert cut([card(0, *[P1] * 7, way=Way.MIG_MANAGER)]) == ["3g.40gb ×1 + 4g.40gb ×1"]
