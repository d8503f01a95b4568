"""Which of mig-manager's configurations a node gets."""

import pytest

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, LayoutEntry, NodeLayout
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.configurations import (
    applied,
    choose,
    configuration_name,
    named_for,
    parted_entries,
)

A100, H200 = product_named("A100-80GB"), product_named("H200")
ONE, TWO, THREE, FOUR = MigProfile(1, 10), MigProfile(2, 20), MigProfile(3, 40), MigProfile(4, 40)
SMALL = CardLayout.cut(A100, [ONE] * 7)
PRESENT = NodeLayout((SMALL,) * 8)


def entry(*profiles, cards=None, filters=()):
    return LayoutEntry(cards, bool(profiles), tuple(map(Wish, profiles)), filters)


BALANCED = (entry(*[ONE] * 2, TWO, THREE),)
CONFIGS = {
    "all-disabled": (entry(),),
    "all-1g.10gb": (entry(*[ONE] * 7),),
    "all-balanced": BALANCED,
    "for-h200": (entry(*[MigProfile(1, 18)] * 7),),
}


def with_card(*profiles):
    return NodeLayout((CardLayout.cut(A100, profiles), *PRESENT.cards[1:]))


@pytest.mark.parametrize(
    ("planned", "fixed", "serves", "name", "instead"),
    [
        (with_card(THREE), (), {THREE: 1}, "all-balanced", None),
        (with_card(THREE, THREE), (), {THREE: 2}, "all-balanced", None),  # on eight cards it has eight of them
        (with_card(FOUR, *[ONE] * 3), (), {FOUR: 1}, None, None),
        (with_card(FOUR, THREE), (), {FOUR: 1, THREE: 1}, None, ("all-balanced", 1)),
        # pods are on card 7: what changes it is no choice
        (with_card(THREE), (7,), {THREE: 1}, None, None),
    ],
)  # fmt: skip
def test_an_existing_configuration_goes_first(planned, fixed, serves, name, instead):
    """One that serves all that the plan serves on the node, and leaves fixed cards alone; else a new one, of the plan's own layout."""
    found = choose(planned, PRESENT, fixed, serves, CONFIGS)
    assert found.new is (name is None)
    assert (found.instead and found.instead[:2]) == instead
    if name:
        assert found.name == name
    else:
        assert found.layout == planned
        assert found.name == configuration_name(parted_entries(planned))


def test_the_one_that_changes_the_least():
    """Of several that serve the plan, that which changes the fewest cards."""
    one_card = (entry(THREE, cards=(3,)),)
    found = choose(with_card(THREE), PRESENT, (), {THREE: 1}, CONFIGS | {"one": one_card})
    assert (found.name, [n for n in range(8) if found.layout.cards[n] != SMALL]) == ("one", [3])


def test_what_pods_need_is_left_to_them():
    """A configuration that leaves less of it than the plan does is no choice; what it would do is said."""
    found = [
        choose(with_card(THREE), PRESENT, (), {THREE: 1}, CONFIGS, needed)
        for needed in ((), (TWO, THREE), (ONE,))
    ]
    assert [one.new or one.name for one in found] == ["all-balanced", "all-balanced", True]
    assert found[2].instead == ("all-balanced", 1, applied(BALANCED, PRESENT))


def test_the_one_that_removes_the_least():
    """Of several that change as many cards."""
    all_threes = {"all-3g.40gb": (entry(THREE, THREE),)}
    assert choose(with_card(THREE), PRESENT, (), {THREE: 1}, all_threes | CONFIGS).name == "all-balanced"


def test_what_is_free_beside_the_plan_is_not_counted():
    """Devices that a card has already, and that the plan leaves alone, are for others."""
    present = NodeLayout((SMALL, CardLayout.cut(A100, [THREE])))
    planned = NodeLayout((CardLayout.cut(A100, [THREE]), present.cards[1]))
    kept = {"kept": (entry(THREE, cards=(1,)),), "both": (entry(THREE),)}
    assert choose(planned, present, (), {THREE: 1}, kept).name == "both"


def test_cards_that_no_entry_concerns_stay():
    """As mig-parted does it."""
    assert applied((entry(FOUR, cards=(2,)),), PRESENT).cards == (
        *PRESENT.cards[:2],
        CardLayout.cut(A100, [FOUR]),
        *PRESENT.cards[3:],
    )
    assert applied((entry(FOUR, filters=H200.pci_ids[:1]),), PRESENT) == PRESENT


def test_names_are_made_of_the_content():
    """The same layout has the same name, wherever its devices lie; another one has another."""
    low, high = (NodeLayout((CardLayout.cut(A100, [Wish(THREE, at)]), SMALL)) for at in (0, 4))
    names = [configuration_name(parted_entries(layout)) for layout in (low, high, PRESENT)]
    assert names[0] == names[1] != names[2]
    assert all(len(name) == len("tessera-12345678") and name.startswith("tessera-") for name in names)
    assert applied(parted_entries(low), PRESENT.__class__((SMALL, SMALL))).resources() == low.resources()


ONES = NodeLayout((SMALL,) * 2)


@pytest.mark.parametrize(
    ("entries", "present", "gives"),
    [
        ([entry(*[ONE] * 7)], None, True),
        ([entry(*[ONE] * 7, cards=(0,)), entry(*[ONE] * 7, cards=(1,))], None, True),
        ([entry(*[ONE] * 7, cards=(0,))], None, False),  # mig-parted leaves card 1 as it is
        ([entry(*[ONE] * 7, cards=(0,))], ONES, True),
        ([entry(*[ONE] * 6)], ONES, False),
        ([entry()], ONES, False),
        ([entry(*[ONE] * 7, filters=(0x1,))], None, False),
        ([entry(*[ONE] * 7), entry(TWO, cards=(1,))], ONES, False),
    ],
)
def test_a_configuration_that_makes_just_this(entries, present, gives):
    """Every card gets its devices by one entry, or has them and is named by none; else it is another configuration."""
    assert named_for(ONES, present, {"one": entries}) == ("one" if gives else None)


def test_several_that_make_the_same():
    """The preferred one is taken, if it is there; else the first."""
    configs = {"first": (entry(*[ONE] * 7),), "second": (entry(*[ONE] * 7),)}
    assert [named_for(ONES, None, configs, prefer) for prefer in ([], ["second"], ["gone"])] == [
        "first",
        "second",
        "first",
    ]
