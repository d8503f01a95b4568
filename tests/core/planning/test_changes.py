"""What a plan makes of a node: what goes, what comes, and which cards differ."""

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import NodeChange, Way

A100 = product_named("A100-80GB")
ONE, THREE, FOUR = MigProfile(1, 10), MigProfile(3, 40), MigProfile(4, 40)
SMALL = CardLayout.cut(A100, [ONE] * 7)
MIXED = CardLayout.cut(A100, [Wish(FOUR, 0), *(Wish(ONE, at) for at in (4, 5, 6))])


def test_a_card_of_mig_manager_is_cleared_first():
    """All that was on a card that changes is removed, and all that it gets is added; other cards stay."""
    change = NodeChange("a", Way.MIG_MANAGER, NodeLayout((SMALL, SMALL)), NodeLayout((MIXED, SMALL)))
    assert (change.removed, change.added) == ({"1g.10gb": 7}, {"1g.10gb": 3, "4g.40gb": 1})
    assert change.changed == (0,)


def test_by_the_annotation_only_what_differs_changes():
    """Devices in the same place stay."""
    change = NodeChange("a", Way.ANNOTATION, NodeLayout((SMALL, SMALL)), NodeLayout((MIXED, SMALL)))
    assert (change.removed, change.added) == ({"1g.10gb": 4}, {"4g.40gb": 1})
    assert change.changed == (0,)


def test_mig_manager_compares_counts():
    """The same devices in other places are no change to it."""
    low, high = (CardLayout.cut(A100, [Wish(THREE, at)]) for at in (0, 4))
    same = NodeChange("a", Way.MIG_MANAGER, NodeLayout((low,)), NodeLayout((high,)))
    assert (same.removed, same.added, same.changed) == ({}, {}, ())
    moved = NodeChange("a", Way.ANNOTATION, NodeLayout((low,)), NodeLayout((high,)))
    assert (moved.removed, moved.added) == ({"3g.40gb": 1}, {"3g.40gb": 1})


def test_a_whole_gpu_that_is_cut_is_lost():
    """It counts as what it was."""
    change = NodeChange("a", Way.ANNOTATION, NodeLayout((CardLayout(A100),)), NodeLayout((SMALL,)))
    assert (change.removed, change.added) == ({"gpu": 1}, {"1g.10gb": 7})
