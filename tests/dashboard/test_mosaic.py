"""Cards as tiles: where slices lie, and whose they are."""

from dataclasses import replace

import pytest

from tessera.core.mig.known import UnknownLayout
from tessera.core.mig.layout import Slot
from tessera.dashboard.mosaics import layout_of, mosaic_of
from tessera.inventory.dra import ClaimedDevice
from tessera.inventory.known import known_layout
from tessera.protocol.mig.nodes import MAPPING, encode_mapping, mapping_of
from tests.dashboard.objects import MIG, by_operator, ids, layout, node, pod

MEDIUM = "2g.20gb=2,3g.30gb=1"


def laid_out(one, pods, claimed=None, *, on_demand=False):
    """A node's mosaic, by the layout that it tells, or by what claims hold of it."""
    claimed = claimed or {}
    return mosaic_of(one, layout_of(one, known_layout(one.gpus), claimed, on_demand=on_demand), pods, claimed)


def drawn(mosaic):
    """Cards as texts: `2g.20gb@0+2 pod`, with a mark for what is special."""

    def one(tile):
        marks = "?" * tile.guessed + "~" * tile.leaving + "!" * tile.out
        return f"{tile.what or '-'}@{tile.start}+{tile.size}{marks} {tile.pod}".strip()

    return [[one(tile) for tile in card.tiles] for card in mosaic.cards]


def test_a_node_of_nvidias_operator():
    """Its cards are drawn by what it has, with the name of the source; which pod is on which slice is a guess."""
    uuid = "MIG-0b1f5a7e-6b7d-5a51-9d1c-2f0f5f3d9f10"  # as NVIDIA's plugin calls it, where the kubelet writes that down
    for held in (pod("a", "n", p1g_10gb=1), pod("a", "n", {f"{MIG}1g.10gb": [uuid]})):
        mosaic = laid_out(by_operator("all-1g.10gb", {"1g.10gb": 56}), [held])
        assert drawn(mosaic)[1:] == [[*(f"1g.10gb@{at}+1" for at in range(7)), "-@7+1"]] * 7
        assert drawn(mosaic)[0][0] == "1g.10gb@0+1? ml/a"
        assert (mosaic.source, mosaic.placed, mosaic.loose) == ("the node's capacity", True, {})
        assert not any(tile.id for card in mosaic.cards for tile in card.tiles)


def test_a_layout_that_the_node_reports_needs_no_source():
    """Its mapping names each device; a layout that is only desired says so."""
    assert laid_out(node(cut=MEDIUM), []).source == ""
    desired = node(
        annotations={"run.ai/mig.config": MEDIUM}, allocatable={f"{MIG}2g.20gb": 2, f"{MIG}3g.30gb": 1}
    )
    assert laid_out(desired, []).source == "annotation run.ai/mig.config"


def test_where_slices_lie_is_not_certain():
    """Six of seven places: what the card is cut into is known, where its slices lie is not, and that is marked."""
    mosaic = laid_out(by_operator("six", {"1g.10gb": 6}, cards=1), [])
    assert ([tile.what for tile in mosaic.cards[0].tiles if tile.what], mosaic.placed) == (
        ["1g.10gb"] * 6,
        False,
    )


def test_why_cards_are_not_drawn():
    """Counts that leave several ways to cut the cards: no cards are drawn, and the reason is there."""
    one = by_operator("mixed", {"1g.10gb": 4, "2g.20gb": 4, "3g.40gb": 4}, cards=4)
    seen = layout_of(one, known_layout(one.gpus), {}, on_demand=False)
    assert isinstance(seen, UnknownLayout)
    assert "more than one way" in seen.reason
    mosaic = mosaic_of(one, seen, [], {})
    assert (mosaic.cards, {short: len(tiles) for short, tiles in mosaic.loose.items()}) == (
        (),
        {f"{MIG}1g.10gb": 4, f"{MIG}2g.20gb": 4, f"{MIG}3g.40gb": 4},
    )


def test_a_layout():
    """Tiles are as wide as their slices, and cover the card."""
    assert (
        drawn(laid_out(node(cut=MEDIUM, cards=2), [])) == [["2g.20gb@0+2", "2g.20gb@2+2", "3g.30gb@4+3"]] * 2
    )
    assert drawn(laid_out(node(cut="2g.20gb=1"), [])) == [["-@0+5", "2g.20gb@5+2"]]


def test_pods_on_their_very_tiles():
    """Where the status of a pod names its devices, that is where it is."""
    second = ids(MEDIUM, "2g.20gb", cards=2)[2]
    held = [pod("train", "n", {f"{MIG}2g.20gb": [second]})]
    (first, card) = drawn(laid_out(node(cut=MEDIUM, cards=2), held))
    assert not any("train" in tile for tile in first)
    assert card == ["2g.20gb@0+2 ml/train", "2g.20gb@2+2", "3g.30gb@4+3"]


def test_pods_whose_devices_are_not_named():
    """The first tiles of their kind are taken, and say that this is a guess."""
    (card,) = drawn(laid_out(node(cut=MEDIUM), [pod("a", "n", p2g_20gb=1), pod("b", "n", p3g_30gb=1)]))
    assert card == ["2g.20gb@0+2? ml/a", "2g.20gb@2+2", "3g.30gb@4+3? ml/b"]


def held(by, *profiles):
    return ClaimedDevice(by, tuple(f"{MIG}{one}" for one in profiles))


def by_dra(one, **served):
    """A node whose devices DRA serves; numbers by profile, dots as underscores."""
    counts = {f"{MIG}{name[1:].replace('_', '.')}": number for name, number in served.items()}
    return replace(one, node=replace(one.node, allocatable={}, dra=counts))


def test_pods_on_the_tiles_that_claims_name():
    """Where DRA hands devices out the pod is on the device that its claim holds; what no claim holds is free, and offered."""
    one = by_dra(node(cut=MEDIUM), p2g_20gb=2, p3g_30gb=1)
    claimed = {
        "gpu-0-mig-2g-20gb-2": held("ml/a", "2g.20gb"),
        "gpu-0-mig-3g-30gb-4": held("claim ml/c", "3g.30gb"),
    }
    bridged = pod(
        "a", "n", claim="1*3g.30gb=3g.30gb/tessera-any,2g.20gb/tessera-any", record="3g.30gb->2g.20gb"
    )
    told = {"claim:tessera-gpu/gpu-0": ["gpu.tessera.dev/claim=u-1-gpu-0-mig-2g-20gb-2"]}
    by_kubelet = pod("a", "n", told, claim="1*2g.20gb=2g.20gb/tessera-any")  # from Kubernetes 1.36 on
    for pods in ([], [bridged], [pod("a", "n", p2g_20gb=1)], [by_kubelet]):
        mosaic = laid_out(one, pods, claimed)
        assert drawn(mosaic) == [["2g.20gb@0+2", "2g.20gb@2+2 ml/a", "3g.30gb@4+3 claim ml/c"]]
        assert mosaic.loose == {}
    ill = by_dra(node(cut=MEDIUM), p2g_20gb=1, p3g_30gb=1)
    assert drawn(laid_out(ill, [])) == [["2g.20gb@0+2", "2g.20gb@2+2!", "3g.30gb@4+3"]]


@pytest.mark.parametrize(
    ("claimed", "cards"),
    [
        ([], [["-@0+7"], ["-@0+7"]]),
        (["gpu-0-mig-2g-20gb-2", "gpu-1"], [["-@0+2", "2g.20gb@2+2 ml/p", "-@4+3"], ["gpu@0+7 ml/p"]]),
        (["gpu-1-mig-3g-30gb-4"], [["-@0+7"], ["-@0+4", "3g.30gb@4+3 ml/p"]]),
    ],
)
def test_cards_that_are_cut_on_demand(claimed, cards):
    """What claims hold now is drawn where it is placed, the rest is free room; what could be cut is no device yet."""
    one = by_dra(node(cards=2), p1g_10gb=14, p2g_20gb=6)
    mosaic = laid_out(one, [], {name: held("ml/p") for name in claimed}, on_demand=True)
    assert drawn(mosaic) == cards
    assert mosaic.loose == {}
    assert all(tile.why for card in mosaic.cards for tile in card.tiles if not tile.what)


def test_devices_of_other_drivers():
    """Devices of DRA that lie nowhere in particular are shown as those of a plugin are, with who holds them."""
    one = by_dra(node(labels={"nvidia.com/gpu.product": "?"}), p2g_20gb=2)
    mosaic = laid_out(one, [], {"x": held("ml/p", "2g.20gb")})
    assert [(tile.id, tile.pod) for tile in mosaic.loose[f"{MIG}2g.20gb"]] == [("x", "ml/p"), ("", "")]


def test_devices_that_are_leaving():
    """A device of an earlier layout stays where it lay, in place of what is to come there."""
    (old,) = ids(MEDIUM, "3g.30gb")
    offered = {f"{MIG}1g.10gb": 4, f"{MIG}3g.30gb": 0}
    mosaic = laid_out(
        node(cut="1g.10gb=7", allocatable=offered), [pod("train", "n", {f"{MIG}3g.30gb": [old]})]
    )
    assert drawn(mosaic) == [[*(f"1g.10gb@{at}+1" for at in range(4)), "3g.30gb@4+3~ ml/train"]]
    assert not mosaic.loose


def changing(labels=None, **more):
    """A node that is to have 1g.10gb only, and keeps a 3g.30gb for a pod."""
    mapping = encode_mapping(mapping_of(layout("1g.10gb=7"), "n", ids(MEDIUM, "3g.30gb")))
    return node(annotations={MAPPING: mapping}, labels=labels or {}, **more)


def test_devices_that_are_leaving_as_the_node_tells_it():
    """The node's own word for what is leaving; the pod that holds it may be known by its number only."""
    offered = {f"{MIG}1g.10gb": 4, f"{MIG}3g.30gb": 0}
    expected = [f"1g.10gb@{at}+1" for at in range(4)]
    for held, mark in (
        (pod("train", "n", {f"{MIG}3g.30gb": ids(MEDIUM, "3g.30gb")}), "~"),
        (pod("train", "n", p3g_30gb=1), "?~"),
    ):
        mosaic = laid_out(changing(allocatable=offered), [held])
        assert drawn(mosaic) == [[*expected, f"3g.30gb@4+3{mark} ml/train"]]
        assert not mosaic.loose
    single = laid_out(
        changing({"nvidia.com/mig.strategy": "single"}, allocatable={"nvidia.com/gpu": 4}),
        [pod("train", "n", {"nvidia.com/gpu": ids(MEDIUM, "3g.30gb")})],
    )
    assert drawn(single) == [[*expected, "3g.30gb@4+3~ ml/train"]]


def test_what_the_node_does_not_offer():
    """A layout that is only a wish, or unhealthy devices: fewer are offered than there are tiles."""
    (card,) = drawn(laid_out(node(cut=MEDIUM, allocatable={f"{MIG}2g.20gb": 1, f"{MIG}3g.30gb": 1}), []))
    assert card == ["2g.20gb@0+2", "2g.20gb@2+2!", "3g.30gb@4+3"]


def test_whole_cards():
    """Cards that are not cut are one tile each."""
    held = [pod("a", "n", {"nvidia.com/gpu": [Slot(1).uuid("n")]})]
    mosaic = laid_out(node(cards=2, allocatable={"nvidia.com/gpu": 2}), held)
    assert drawn(mosaic) == [["gpu@0+7"], ["gpu@0+7 ml/a"]]


def test_devices_without_a_place():
    """A node that says nothing about its cards has its devices side by side."""
    one = node(cards=2, allocatable={f"{MIG}2g.20gb": 3, "example.com/x": 2, "nvidia.com/shm": 10**9})
    mosaic = laid_out(one, [pod("a", "n", p2g_20gb=1), pod("b", "n", {"example.com/x": ["x-1"]})])
    assert mosaic.cards == ()
    tiles = {name: [(tile.what, tile.id, tile.pod) for tile in those] for name, those in mosaic.loose.items()}
    assert tiles == {
        f"{MIG}2g.20gb": [("2g.20gb", "", "ml/a"), ("2g.20gb", "", ""), ("2g.20gb", "", "")],
        "example.com/x": [("x", "x-1", "ml/b"), ("x", "", "")],
    }


def test_a_node_that_says_what_cannot_be():
    """Its devices are shown anyway, without a place."""
    one = node(allocatable={f"{MIG}2g.20gb": 1}, annotations={"run.ai/mig.config": "3g.30gb=9"})
    seen = layout_of(one, known_layout(one.gpus), {}, on_demand=False)
    assert isinstance(seen, UnknownLayout)
    assert "3g.30gb" in seen.reason
    assert len(mosaic_of(one, seen, [], {}).loose[f"{MIG}2g.20gb"]) == 1


@pytest.mark.parametrize(
    ("cut", "why"),
    [
        ("2g.20gb=1", ["nothing is cut here; there is room for 3g.30gb"]),
        ("1g.10gb=6", ["nothing is cut here; there is room for 1g.10gb"]),
        ("2g.20gb=2,3g.30gb=1", []),
    ],
)
def test_gaps_are_explained(cut, why):
    """Memory that is in no device says what could be made of it."""
    (card,) = laid_out(node(cut=cut), []).cards
    assert [tile.why for tile in card.tiles if not tile.what] == why


def test_a_gap_that_nothing_can_use():
    """Seven 1g devices leave an eighth of the memory of an A100 unused, and the page says why."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
    one = node(
        labels=labels, annotations={"run.ai/mig.config": "1g.10gb=7"}, allocatable={f"{MIG}1g.10gb": 7}
    )
    (card,) = laid_out(one, []).cards
    assert [(tile.start, tile.size, tile.why) for tile in card.tiles if not tile.what] == [
        (7, 1, "no device can use this memory: all 7 compute slices of the card are in devices")
    ]
