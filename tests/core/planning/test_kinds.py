"""Kinds: which devices of a node stay, and which cards are alike."""

import pytest

from tessera.core.devices.held import Held
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import CardToCut, NodeCards, QueuedProfile, cards_beside, kinds_of
from tests.build import GPU, MIG

H200 = product_named("H200")
THREE, TWO, ONE = MigProfile(3, 71), MigProfile(2, 35), MigProfile(1, 18)
MIXED = NodeLayout(
    (CardLayout.cut(H200, [Wish(THREE), Wish(TWO)]), CardLayout.cut(H200, [TWO]), CardLayout.cut(H200, []))
)
SINGLE = NodeLayout((CardLayout.cut(H200, [THREE, THREE]),) * 2)
PARTLY = NodeLayout((CardLayout.cut(H200, [THREE]), CardLayout(H200)))


@pytest.mark.parametrize(
    ("layout", "strategy", "held", "kept"),
    [
        (MIXED, Strategy.MIXED, [], ["", "", ""]),
        (MIXED, Strategy.MIXED, ["2g.35gb"], ["2g.35gb", "2g.35gb", ""]),
        (MIXED, Strategy.MIXED, ["3g.71gb"], ["3g.71gb", "", ""]),
        (MIXED, Strategy.MIXED, ["2g.35gb", "3g.71gb"], ["2g.35gb 3g.71gb", "2g.35gb", ""]),
        # what is held has another name than all that the layout has: any of them may be it
        (MIXED, Strategy.MIXED, ["1g.18gb"], ["2g.35gb 3g.71gb", "2g.35gb", ""]),
        (SINGLE, Strategy.SINGLE, ["gpu"], ["3g.71gb 3g.71gb", "3g.71gb 3g.71gb"]),
        (SINGLE, Strategy.SINGLE, [], ["", ""]),
        (PARTLY, Strategy.MIXED, ["3g.71gb"], ["3g.71gb", ""]),
    ],
)
def test_what_pods_hold_stays(layout, strategy, held, kept):
    """All devices of a resource of which some are held stay: which ones they are is not known here."""
    resources = frozenset(GPU if name == "gpu" else MIG + name for name in held)
    cards = cards_beside(layout, strategy, Held(resources))
    assert [" ".join(str(one.profile) for one in card.kept) for card in cards] == kept


def test_devices_that_are_known_to_be_held_stay_and_no_others():
    """Where single devices are known, the others of their resource may go; what is given out comes from those."""
    layout = NodeLayout((CardLayout.cut(H200, [ONE] * 7), CardLayout.cut(H200, [ONE] * 7)))
    third = layout.slots()[MIG + "1g.18gb"][2]
    held = Held(frozenset(), frozenset({third}))
    assert [card.kept for card in cards_beside(layout, Strategy.MIXED, held)] == [(third.instance,), ()]
    given = cards_beside(layout, Strategy.MIXED, held, {MIG + "1g.18gb": 2})
    assert [len(card.kept) for card in given] == [3, 0]
    assert third.instance in given[0].kept


@pytest.mark.parametrize("held", [GPU, GPU + ".shared"])
def test_whole_cards_of_which_some_are_in_use_are_fixed(held):
    """Which whole card it is cannot be seen from outside; the other cards of the node may be cut."""
    cut, whole = cards_beside(PARTLY, Strategy.MIXED, Held(frozenset({held})))
    assert (cut.fixed, whole.fixed) == (False, True)
    assert [bool(card.kept) for card in (cut, whole)] == [held != GPU, False]


def test_what_is_given_out_stays_on_as_few_cards_as_it_can():
    """No pod has it yet: cards that stay anyway keep it, and other cards of the node are free."""
    layout = NodeLayout((CardLayout.cut(H200, [ONE] * 7),) * 3 + (CardLayout.cut(H200, [TWO, ONE]),))

    def kept(held, given):
        held_now = Held(frozenset(MIG + name for name in held))
        cards = cards_beside(layout, Strategy.MIXED, held_now, {MIG + "1g.18gb": given}, whole_only=True)
        return [len(card.kept) for card in cards], [card.fixed for card in cards]

    assert kept([], 8) == ([7, 1, 0, 0], [True, True, False, False])
    assert kept(["2g.35gb"], 2) == ([1, 0, 0, 2], [True, False, False, True])
    assert kept(["1g.18gb"], 1) == ([7, 7, 7, 1], [True] * 4)


def test_what_is_given_out_of_an_unknown_resource_fixes_all():
    """The layout does not say which card it is on."""
    cards = cards_beside(PARTLY, Strategy.MIXED, Held(frozenset()), {MIG + "1g.18gb": 1}, whole_only=True)
    assert [card.fixed for card in cards] == [True, True]


def test_by_mig_manager_a_card_is_cut_as_a_whole_or_not_at_all():
    """One device that stays fixes the card; elsewhere there is room beside it."""
    resources = Held(frozenset({MIG + "2g.35gb"}))
    for whole_only, fixed in ((True, [True, True, False]), (False, [False, False, False])):
        cards = cards_beside(MIXED, Strategy.MIXED, resources, whole_only=whole_only)
        assert [card.fixed for card in cards] == fixed
    wanted = {QueuedProfile(ONE): 9}
    found = kinds_of(wanted, (ONE,), cards_beside(MIXED, Strategy.MIXED, resources, whole_only=True), [NodeCards("a", range(3))])  # fmt: skip
    assert [kind is None for kind in found.of_card] == [True, True, False]


def test_cards_that_take_the_same_are_of_one_kind():
    """What a card holds does not matter, only what it can take beside that, and for whom."""
    low = CardToCut(H200, CardLayout.cut(H200, [Wish(THREE, 0)]).instances)
    other = CardToCut(H200, CardLayout.cut(H200, [Wish(MigProfile(4, 71), 0)]).instances)
    full = CardToCut(H200, CardLayout.cut(H200, [Wish(MigProfile(7, 141), 0)]).instances)
    cards = [low, other, full, CardToCut(H200), CardToCut(H200), low]
    places = [
        NodeCards("a", range(2)),
        NodeCards("b", range(2, 4)),
        NodeCards(None, range(4, 5)),
        NodeCards("c", range(5, 6), frozenset({7})),
    ]
    found = kinds_of({QueuedProfile(THREE): 9, QueuedProfile(THREE, 7): 1}, (THREE,), cards, places)
    assert found.of_card == (0, 0, None, 1, 1, 2)
    assert found.types == {((0, 2),): (0,), ((1, 1),): (1,), ((2, 1),): (3,)}
    assert found.unnamed == {1: 1}
