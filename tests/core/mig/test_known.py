"""What counts of devices say about cards."""

from collections import Counter
from itertools import product as every_combination

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.mig.geometry import product_named
from tessera.core.mig.known import UnknownLayout, card_alike, is_placed
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.core.mig.placement import Wish, every_pattern, place
from tessera.core.mig.profile import MigProfile
from tessera.protocol.mig.entries import read_counts
from tests.examples import examples

A100, H200, A30 = map(product_named, ("A100-80GB", "H200", "A30"))


def alike(product, cards, text):
    """What each card is cut into by counts, or why that is not known."""
    found = card_alike(product, cards, tuple(sorted(read_counts(text).items())))
    if isinstance(found, UnknownLayout):
        return str(found)
    return ",".join(f"{profile}={number}" for profile, number in found.counts.items())


@pytest.mark.parametrize(
    ("cards", "counts", "each"),
    [
        (8, "1g.10gb=56", "1g.10gb=7"),
        (8, "3g.40gb=8,4g.40gb=8", "3g.40gb=1,4g.40gb=1"),
        (8, "7g.80gb=8", "7g.80gb=1"),
        (8, "1g.10gb=8,2g.20gb=24", "1g.10gb=1,2g.20gb=3"),
        (1, "1g.10gb=2,3g.40gb=1", "1g.10gb=2,3g.40gb=1"),
        # a card may be without devices: seven cards have seven of them, and one has none
        (8, "1g.10gb=49", "its cards are not cut alike, and counts do not tell which card is which (it has 49 × 1g.10gb on 8 cards)"),
        (2, "1g.10gb=2", "there is more than one way to cut its cards into what it has (it has 2 × 1g.10gb on 2 cards)"),
        (
            8,
            "1g.10gb=16,2g.20gb=8,3g.40gb=8",
            "there is more than one way to cut its cards into what it has (it has 16 × 1g.10gb, 8 × 2g.20gb, 8 × 3g.40gb on 8 cards)",
        ),
        (8, "1g.10gb=64", "its cards are not cut alike, and counts do not tell which card is which (it has 64 × 1g.10gb on 8 cards)"),
        (1, "1g.5gb=1", "it has 1g.5gb, which is no profile of NVIDIA A100-80GB"),
        # nobody has such a server, and no search begins for it
        (65, "1g.10gb=455", "there is more than one way to cut its cards into what it has (it has 455 × 1g.10gb on 65 cards)"),
    ],
)  # fmt: skip
def test_counts_are_enough_where_they_leave_one_way(cards, counts, each):
    """56 × 1g.10gb on eight cards are seven on each; most mixtures leave more ways, or do not show which card is which."""
    assert alike(A100, cards, counts) == each


def ways(product, cards, counts):
    """Every way to cut cards into these devices, by card: brute force."""
    profiles = sorted(counts)
    patterns = every_pattern(product, [], profiles, [counts[profile] for profile in profiles])
    wanted = tuple(counts[profile] for profile in profiles)
    return [
        cut
        for cut in every_combination(patterns, repeat=cards)
        if tuple(map(sum, zip(*cut, strict=True))) == wanted
    ]


@settings(max_examples=examples(100))
@given(st.data())
def test_what_is_inferred_is_the_layout(data):
    """Cut cards at random and count their devices: what is inferred is that very layout; it is unknown only where there is another."""
    product = data.draw(st.sampled_from((A100, A30)))
    cards = data.draw(st.integers(1, 3))
    one = st.lists(st.sampled_from(product.profiles), max_size=7).filter(
        lambda some: place(product, map(Wish, some)) is not None
    )
    cut = data.draw(st.one_of(st.tuples(*[one] * cards), one.map(lambda some: (some,) * cards)))
    counts = sum((Counter(some) for some in cut), Counter[MigProfile]())
    if not counts:
        return
    found = card_alike(product, cards, tuple(sorted(counts.items())))
    if isinstance(found, CardLayout):
        assert [Counter(found.counts)] * cards == [Counter(some) for some in cut]
    assert isinstance(found, CardLayout) == (len(ways(product, cards, counts)) == 1)


@pytest.mark.parametrize(
    ("counts", "placed"),
    [
        ("1g.18gb=7", True),
        ("1g.18gb=6", False),
        ("3g.71gb=2", True),
        ("3g.71gb=1", False),
        ("3g.71gb=1,4g.71gb=1", True),
        ("1g.18gb=1,2g.35gb=3", True),
        ("1g.18gb=2,2g.35gb=1,3g.71gb=1", False),
        ("7g.141gb=1", True),
    ],
)
def test_places_are_certain_where_there_is_only_one(counts, placed):
    """Where slices lie is known of a card that is cut into as many as it has places for, and of a whole one."""
    profiles = [profile for profile, number in read_counts(counts).items() for _ in range(number)]
    assert is_placed(NodeLayout((CardLayout(H200), CardLayout.cut(H200, profiles)))) is placed
