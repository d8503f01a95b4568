"""Layouts: what fits, where it lies, why it does not fit, what it offers."""

from itertools import combinations
from itertools import product as cartesian

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.errors import InvalidInputs
from tessera.core.mig.geometry import PRODUCTS, SIMULATED_H200_70GB, Product, product_named
from tessera.core.mig.layout import (
    CardLayout,
    DoesNotFit,
    LayoutEntry,
    NodeLayout,
    Slot,
    Strategy,
    entries_of,
    named_cards,
    resolve,
)
from tessera.core.mig.placement import Instance, Wish, place
from tessera.core.mig.profile import MigProfile

H200 = product_named("H200")


def wishes(text: str) -> tuple[Wish, ...]:
    """`3g.71gb@4 1g.18gb` as wishes; `@4/4` gives the size too."""
    found = []
    for word in text.split():
        name, _, place_text = word.partition("@")
        position, _, size = place_text.partition("/")
        found.append(
            Wish(MigProfile.parse(name), int(position) if position else None, int(size) if size else None)
        )
    return tuple(found)


def on(
    cards: tuple[int, ...] | None, asked: tuple[Wish, ...], device_filter: tuple[int, ...] = ()
) -> LayoutEntry:
    return LayoutEntry(cards, mig_enabled=True, wishes=asked, device_filter=device_filter)


def cut(text: str, name: str = "H200") -> CardLayout:
    return CardLayout.cut(product_named(name), wishes(text))


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("H200", "", ""),
        ("H200", "7g.141gb", "7g.141gb at 0"),
        ("H200", "3g.71gb", "3g.71gb at 4"),
        ("H200", "3g.71gb 4g.71gb", "4g.71gb at 0, 3g.71gb at 4"),
        ("H200", "3g.71gb@0 3g.71gb", "3g.71gb at 0, 3g.71gb at 4"),
        ("H200", "1g.18gb 1g.18gb 2g.35gb 3g.71gb", "1g.18gb at 0, 1g.18gb at 1, 2g.35gb at 2, 3g.71gb at 4"),
        ("H200", "2g.35gb 2g.35gb 2g.35gb 1g.35gb", "2g.35gb at 0, 2g.35gb at 2, 2g.35gb at 4, 1g.35gb at 6"),
        ("H200", "1g.35gb@0/2", "1g.35gb at 0"),
        ("H200-70GB", "2g.20gb 2g.20gb 3g.30gb", "2g.20gb at 0, 2g.20gb at 2, 3g.30gb at 4"),
        ("A30", "2g.12gb+me 1g.6gb 1g.6gb", "1g.6gb at 0, 1g.6gb at 1, 2g.12gb+me at 2"),
        (
            "RTX PRO 6000",
            "1g.24gb+gfx 1g.24gb+me.all 2g.48gb",
            "1g.24gb+me.all at 0, 1g.24gb+gfx at 1, 2g.48gb at 2",
        ),
    ],
)
def test_places(name, text, places):
    """Every multiset of profiles has one canonical placement, whatever the order it is asked in."""
    assert ", ".join(map(str, cut(text, name).instances)) == places
    assert cut(" ".join(reversed(text.split())), name) == cut(text, name)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "H200",
            "3g.30gb",
            ("unknown profile 3g.30gb for NVIDIA H200; it has 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, "
            "4g.71gb, 7g.141gb"),
        ),
        (
            "A30",
            "1g.5gb 1g.5gb 1g.10gb",
            ("unknown profiles 1g.5gb and 1g.10gb for NVIDIA A30; it has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, "
            "4g.24gb"),
        ),
        ("H200", "2g.35gb 2g.35gb 2g.35gb 2g.35gb", "2g.35gb ×4 is more than the 3 an H200 holds"),
        ("B200", "1g.23gb+me 1g.23gb+me", "1g.23gb+me ×2 is more than the 1 a B200 holds"),
        ("A30", "1g.6gb+me 2g.12gb+me", "1g.6gb+me + 2g.12gb+me each need the media engines, which an A30 has once"),
        (
            "RTX PRO 6000",
            "1g.24gb+me 1g.24gb+me.all",
            "1g.24gb+me + 1g.24gb+me.all each need the media engines, which an RTX PRO 6000 Blackwell has once",
        ),
        ("H200", "3g.71gb@2", "3g.71gb cannot start at slice 2; it starts at 0 or 4"),
        ("H200", "4g.71gb@4", "4g.71gb cannot start at slice 4; it starts at 0"),
        ("H200", "2g.35gb@6", "2g.35gb cannot start at slice 6; it starts at 0, 2 or 4"),
        ("H200", "3g.71gb@4/3", "3g.71gb takes 4 slices of an H200, not 3"),
        ("H200", "3g.71gb 3g.71gb 1g.18gb", "3g.71gb ×2 + 1g.18gb need 9 memory slices, an H200 has 8"),
        ("H200", "4g.71gb 2g.35gb 2g.35gb@0", "4g.71gb + 2g.35gb ×2 need 8 compute slices, an H200 has 7"),
        ("H200", "3g.71gb@0 4g.71gb", "4g.71gb needs slices 0-3, taken by 3g.71gb; put 3g.71gb at 4"),
        ("H200", "4g.71gb@0 3g.71gb@0", "4g.71gb needs slices 0-3, taken by 3g.71gb; put 3g.71gb at 4"),
        ("H200", "3g.71gb@0 3g.71gb@0", "3g.71gb needs slices 0-3, taken by 3g.71gb; put one of them at 4"),
        ("H200", "1g.18gb@3 1g.18gb@3", "1g.18gb needs slices 3, taken by 1g.18gb; put one of them at 6"),
        (
            "H200",
            "1g.18gb@0 1g.18gb@4 3g.71gb",
            "1g.18gb at 0 + 1g.18gb at 4 + 3g.71gb cannot lie on an H200 together; move 1g.18gb from 0 to 6",
        ),
        (
            "H200",
            "1g.18gb@3 2g.35gb 2g.35gb 2g.35gb",
            "1g.18gb at 3 + 2g.35gb ×3 cannot lie on an H200 together; move 1g.18gb from 3 to 6",
        ),
        (
            "H200",
            "1g.18gb@0 1g.18gb@1 1g.18gb@4 1g.18gb@5 3g.71gb",
            "1g.18gb at 1 + 1g.18gb at 5 + 3g.71gb cannot lie on an H200 together; without positions all devices fit",
        ),
    ],
)  # fmt: skip
def test_misfits(name, text, sentence):
    """What does not fit is explained in one sentence that says what to change."""
    with pytest.raises(DoesNotFit) as caught:
        cut(text, name)
    assert str(caught.value) == sentence


def test_a_layout_that_exists_fits():
    """No card layout can be made that overlaps, or has devices with MIG off."""
    three = Instance(MigProfile.parse("3g.71gb"), 0, 4)
    four = Instance(MigProfile.parse("4g.71gb"), 0, 4)
    with pytest.raises(DoesNotFit):
        CardLayout(H200, mig_enabled=True, instances=(three, four))
    with pytest.raises(DoesNotFit):
        CardLayout(H200, mig_enabled=False, instances=(three,))


def brute_force(product: Product, profiles: list[MigProfile]) -> bool:
    """All ways to place the profiles, by trying everything; an oracle that shares nothing with the search."""
    shapes = [next(s for s in product.shapes if s.profile == profile) for profile in profiles]
    if (
        sum(s.compute for s in shapes) > product.compute_slices
        or sum(s.media for s in shapes) > product.media_sets
    ):
        return False
    if any(shapes.count(shape) > shape.most for shape in shapes):
        return False
    for starts in cartesian(*(shape.starts for shape in shapes)):
        spans = [set(range(start, start + shape.size)) for start, shape in zip(starts, shapes, strict=True)]
        if all(one.isdisjoint(other) for one, other in combinations(spans, 2)):
            return True
    return False


@given(st.data())
def test_the_search_finds_what_brute_force_finds(data):
    """A multiset of profiles has a placement exactly when trying all placements finds one."""
    product = data.draw(st.sampled_from(PRODUCTS))
    profiles = data.draw(st.lists(st.sampled_from(product.profiles), max_size=5))
    found = place(product, [Wish(profile) for profile in profiles])
    assert (found is not None) == brute_force(product, profiles)


@given(st.data())
def test_fits_or_says_why(data):
    """Any wishes either become a layout that holds exactly them, where they were put, or one sentence."""
    product = data.draw(st.sampled_from(PRODUCTS))
    asked = data.draw(
        st.lists(
            st.builds(
                Wish,
                st.sampled_from(product.profiles),
                st.none() | st.integers(0, product.memory_slices),
                st.none() | st.integers(1, 4),
            ),
            max_size=6,
        )
    )
    sentence = ""
    try:
        layout: CardLayout | None = CardLayout.cut(product, asked)
    except DoesNotFit as error:
        layout, sentence = None, str(error)
    if layout is None:
        assert sentence
        assert "\n" not in sentence
        assert place(product, asked) is None
        return
    left = list(layout.instances)
    for wish in sorted(asked, key=lambda wish: wish.position is None):
        match = next(i for i in left if i.profile == wish.profile and wish.position in (None, i.position))
        left.remove(match)
    assert not left


NODE = resolve(
    [LayoutEntry(None, mig_enabled=True, wishes=wishes("2g.20gb 2g.20gb 3g.30gb"))], [SIMULATED_H200_70GB] * 4
)


def test_resources_of_four_cards():
    """4 cards × (2×2g.20gb + 1×3g.30gb) offer 8 and 4."""
    assert NODE.resources() == {"nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.30gb": 4}
    assert NODE.cards[0].counts == {MigProfile(2, 20): 2, MigProfile(3, 30): 1}


@pytest.mark.parametrize(
    ("strategy", "cards", "resources"),
    [
        ("mixed", ["1g.18gb+me 1g.18gb", None, ""], {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.18gb": 1, "nvidia.com/mig-1g.18gb.me": 1}),
        ("none", ["1g.18gb", None, ""], {"nvidia.com/gpu": 3}),
        ("none", [], {}),
        ("single", ["1g.18gb 1g.18gb", "1g.18gb"], {"nvidia.com/gpu": 3}),
        ("single", [None, None], {"nvidia.com/gpu": 2}),
        ("single", ["1g.18gb", None], "MIG strategy single: all cards must have MIG on, or all off; use strategy mixed"),
        ("single", ["1g.18gb", ""], "MIG strategy single: card 1 has MIG on and no devices"),
        ("single", ["1g.18gb", "3g.71gb"], "MIG strategy single: one profile on all cards, not 1g.18gb and 3g.71gb; use strategy mixed"),
    ],
)  # fmt: skip
def test_strategies(strategy, cards, resources):
    """Resources are named as NVIDIA's plugin names them under each MIG strategy."""
    node = NodeLayout(tuple(CardLayout(H200) if text is None else cut(text) for text in cards))
    if isinstance(resources, str):
        with pytest.raises(DoesNotFit) as caught:
            node.resources(Strategy(strategy))
        assert str(caught.value) == resources
    else:
        assert node.resources(Strategy(strategy)) == resources


def test_resolve_reports_every_card():
    """Cards that share a complaint share a sentence; cards that are not there are named."""
    entries = [
        LayoutEntry((0, 1, 2), mig_enabled=True, wishes=wishes("2g.35gb " * 4)),
        LayoutEntry((3,), mig_enabled=True, wishes=wishes("3g.71gb@0 4g.71gb")),
        LayoutEntry((4, 9), mig_enabled=False),
        LayoutEntry((4,), mig_enabled=True),
    ]
    with pytest.raises(InvalidInputs) as caught:
        resolve(entries, [H200] * 6)
    assert caught.value.errors == (
        "cards 0-2: 2g.35gb ×4 is more than the 3 an H200 holds",
        "card 3: 4g.71gb needs slices 0-3, taken by 3g.71gb; put 3g.71gb at 4",
        "card 4: named by entries 2 and 3; one entry per card",
        "card 9: not there; the node has cards 0-5",
    )


def test_device_filters_choose_by_pci_id():
    """An entry with a device filter concerns only cards of those PCI ids; others stay whole."""
    a30 = product_named("A30")
    entries = [
        on(None, wishes("3g.71gb"), (0x233510DE,)),
        on(None, wishes("2g.12gb 2g.12gb"), (0x20B710DE,)),
    ]
    node = resolve(entries, [H200, a30, SIMULATED_H200_70GB])
    assert node.resources() == {"nvidia.com/gpu": 1, "nvidia.com/mig-2g.12gb": 2, "nvidia.com/mig-3g.71gb": 1}


def test_entries_of_a_layout_give_it_again():
    """What a layout is written as resolves to the same layout."""
    node = NodeLayout((cut("3g.71gb@0"), CardLayout(H200), cut("3g.71gb@0"), cut("")))
    assert resolve(entries_of(node), [H200] * 4) == node
    assert [entry.cards for entry in entries_of(node)] == [(0, 2), (1,), (3,)]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "card 3"), (range(4), "cards 0-3"), ([7, 0, 5, 6, 2], "cards 0, 2, 5-7")],
)
def test_named_cards(numbers, text):
    """Cards are named shortly."""
    assert named_cards(numbers) == text


def test_device_ids_outlive_restarts():
    """A device's UUID is a function of node, card, place and profile, and of nothing else."""
    instance = NODE.cards[0].instances[0]
    assert Slot(0, instance).uuid("node-1") == "MIG-3536d911-7b61-5170-8689-f0823124779b"
    assert Slot(0).uuid("node-1") == "GPU-ec195244-73a6-5c99-9bed-7131713a5fa8"


def test_device_ids_are_different():
    """No two devices of a cluster share a UUID; a card that stays as it is keeps its devices."""
    ids = [
        slot.uuid(node) for node in ("node-1", "node-2") for slots in NODE.slots().values() for slot in slots
    ]
    assert len(set(ids)) == len(ids) == 24
