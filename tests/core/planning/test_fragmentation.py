"""Which cards are empty, when only the number of used devices is known."""

from collections import Counter
from itertools import product as combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import packed, rooms
from tests.build import GPU, MIG

SIM = product_named("H200-70GB")
PROFILES = {name: MigProfile.parse(name) for name in ("1g.10gb", "2g.20gb", "3g.30gb")}


def cut(*names):
    return CardLayout.cut(SIM, [PROFILES[name] for name in names])


MIXED = cut("2g.20gb", "2g.20gb", "3g.30gb")
SMALL = cut(*["1g.10gb"] * 7)
WHOLE = CardLayout(SIM)


def used_of(cards):
    """What is used on each card, as text."""
    return [
        "all" if card.whole_in_use else ",".join(sorted(str(i.profile) for i in card.used)) for card in cards
    ]


@pytest.mark.parametrize(
    ("cards", "used", "strategy", "expected"),
    [
        ([MIXED, MIXED], {}, Strategy.MIXED, ["", ""]),
        ([MIXED, MIXED], {"2g.20gb": 2, "3g.30gb": 1}, Strategy.MIXED, ["2g.20gb,2g.20gb,3g.30gb", ""]),
        ([MIXED, MIXED], {"2g.20gb": 3}, Strategy.MIXED, ["2g.20gb,2g.20gb", "2g.20gb"]),
        ([SMALL, MIXED], {"1g.10gb": 2, "3g.30gb": 1}, Strategy.MIXED, ["1g.10gb,1g.10gb", "3g.30gb"]),
        ([WHOLE, MIXED, WHOLE], {"gpu": 1, "2g.20gb": 1}, Strategy.MIXED, ["all", "2g.20gb", ""]),
        ([MIXED], {"2g.20gb": 9, "1g.10gb": 1}, Strategy.MIXED, ["2g.20gb,2g.20gb"]),
        ([SMALL, SMALL], {"gpu": 8}, Strategy.SINGLE, [",".join(["1g.10gb"] * 7), "1g.10gb"]),
        ([MIXED, SMALL], {"gpu": 1}, Strategy.NONE, ["all", ""]),
    ],
)
def test_packed(cards, used, strategy, expected):
    """Used devices lie together on few cards; more than there are cannot be used."""
    names = {GPU if name == "gpu" else MIG + name: number for name, number in used.items()}
    assert used_of(packed(NodeLayout(tuple(cards)), names, strategy)) == expected


@given(
    card=st.sampled_from([MIXED, SMALL, cut("1g.10gb", "2g.20gb", "3g.30gb"), cut("1g.10gb", "1g.10gb")]),
    number=st.integers(1, 4),
    data=st.data(),
)
def test_law_of_packing(card, number, data):
    """Every used device is somewhere, once, and where cards are alike no fewer of them could hold them."""
    layout = NodeLayout((card,) * number)
    used = {
        profile.resource: data.draw(st.integers(0, number * count)) for profile, count in card.counts.items()
    }
    cards = packed(layout, used)
    found = Counter(instance.profile.resource for one in cards for instance in one.used)
    assert found == Counter({resource: count for resource, count in used.items() if count})
    for one in cards:
        assert len(set(one.used)) == len(one.used)
        assert set(one.used) <= set(one.layout.instances)
    fewest = max((-(-used[profile.resource] // count) for profile, count in card.counts.items()), default=0)
    assert sum(bool(one.used) for one in cards) == fewest


@given(
    cards=st.lists(st.sampled_from([MIXED, SMALL, WHOLE]), min_size=1, max_size=3),
    used=st.dictionaries(st.sampled_from([GPU, *(p.resource for p in PROFILES.values())]), st.integers(0, 5)),
)
def test_law_of_room(cards, used):
    """What is cut and free is what is cut less what is used; cutting again never brings less than there is."""
    layout = NodeLayout(tuple(cards))
    found = rooms(packed(layout, used))
    for profile in PROFILES.values():
        there = layout.resources().get(profile.resource, 0)
        room = found[profile]
        assert room.free == there - min(there, used.get(profile.resource, 0))
        assert room.recut >= room.free + room.beside
        assert room.lost >= 0


def test_room_counts_alike_cards_once_each():
    """Many cards cut and used alike have as much room as the sum of each of them."""
    few = [packed(NodeLayout((one, other)), {MIG + "2g.20gb": 1}) for one, other in combinations([MIXED, SMALL], repeat=2)]  # fmt: skip
    single = [rooms(cards) for cards in few]
    together = rooms([card for cards in few for card in cards])
    for profile, room in together.items():
        assert room.free == sum(one[profile].free for one in single)
        assert room.recut == sum(one[profile].recut for one in single)
