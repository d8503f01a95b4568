"""What a node loses when its cards are re-cut."""

import pytest

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy, going
from tessera.core.mig.profile import MigProfile
from tests.build import GPU, MIG

SIM = product_named("H200-70GB")


def cut(*names):
    return CardLayout.cut(SIM, [MigProfile.parse(name) for name in names])


BIG, SMALL, WHOLE = cut("2g.20gb", "2g.20gb", "3g.30gb"), cut(*["1g.10gb"] * 7), CardLayout(SIM)


@pytest.mark.parametrize(
    ("before", "after", "offered", "strategy", "lost"),
    [
        ([BIG, BIG], [BIG, BIG], {}, Strategy.MIXED, {}),
        ([BIG, BIG], [BIG, SMALL], {}, Strategy.MIXED, {MIG + "2g.20gb": 2, MIG + "3g.30gb": 1}),
        ([WHOLE, BIG], [SMALL, BIG], {}, Strategy.MIXED, {GPU: 1}),
        # as many as before, and yet others: each device is known by its place
        ([BIG, SMALL], [SMALL, BIG], {}, Strategy.MIXED, {MIG + "1g.10gb": 7, MIG + "2g.20gb": 2, MIG + "3g.30gb": 1}),
        (None, [BIG], {MIG + "2g.20gb": 3, MIG + "3g.30gb": 1, GPU: 1}, Strategy.MIXED, {MIG + "2g.20gb": 1, GPU: 1}),
        ([SMALL, SMALL], [WHOLE, WHOLE], {}, Strategy.SINGLE, {GPU: 14}),
        # cut in a way that the strategy does not have: only the numbers show it
        ([BIG, WHOLE], [SMALL, SMALL], {GPU: 20}, Strategy.SINGLE, {GPU: 6}),
        ([BIG, BIG], [SMALL, SMALL], {}, Strategy.NONE, {}),
    ],
)  # fmt: skip
def test_going(before, after, offered, strategy, lost):
    """A device stays where the new layout has the same one in the same place, and goes else."""
    present = NodeLayout(tuple(before)) if before is not None else None
    assert going(present, NodeLayout(tuple(after)), offered, strategy) == lost
