"""How a node's cards are cut, from every source there is."""

import gc
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.mig.geometry import product_named
from tessera.core.mig.known import KnownLayout
from tessera.core.mig.layout import CardLayout, DoesNotFit, NodeLayout, Strategy, entries_of
from tessera.core.mig.placement import Wish, place
from tessera.inventory.known import known_layout
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.kubernetes.objects import Metadata
from tessera.protocol.mig.documents import Format, MigDocument, convert, write
from tessera.protocol.mig.nodes import gpu_labels, gpu_node
from tests.build import GPU, MIG
from tests.examples import examples
from tests.inventory.objects import config_map, node, operator_node
from tests.inventory.test_inventory import taken
from tests.protocol.dra.samples import class_, device, slice_

MANAGER, LABELS, CAPACITY = (
    "label nvidia.com/mig.config with mig-manager's ConfigMap",
    "labels of GPU Feature Discovery",
    "the node's capacity",
)
NOTHING = (
    "nothing says how its cards are cut: no annotation run.ai/mig.config, no label nvidia.com/mig.config, "
    "no GPUs or MIG devices in its capacity"
)
LABELLED = NOTHING.replace("no label nvidia.com/mig.config, ", "")


def said(*documents, name="n"):
    """The source and what the cards are cut into, cards that are alike together; or why that is not known."""
    known = taken(*documents).known(name)
    if not isinstance(known, KnownLayout):
        return str(known)
    cards: dict[str, int] = {}
    for card in known.layout.cards:
        cut = "+".join(f"{number}×{profile}" for profile, number in card.counts.items())
        key = cut or ("empty" if card.mig_enabled else "gpu")
        cards[key] = cards.get(key, 0) + 1
    return str(known.source), cards, known.placed


def labelled(**counts):
    """Labels of GPU Feature Discovery: `_1g_10gb=56`."""
    return {f"mig-{name[1:].replace('_', '.')}.count": str(number) for name, number in counts.items()}


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        # the very node of a cluster of NVIDIA's operator: without the ConfigMap, and with it
        (operator_node("n", {"1g.10gb": 56}, "all-1g.10gb"), (CAPACITY, {"7×1g.10gb": 8}, True)),
        (operator_node("n", {"gpu": 8}, "all-disabled"), (CAPACITY, {"gpu": 8}, True)),
        (operator_node("n", {"gpu": 8}), (CAPACITY, {"gpu": 8}, True)),
        (operator_node("n", {}, **labelled(_1g_10gb=56)), (LABELS, {"7×1g.10gb": 8}, True)),
        (operator_node("n", {"1g.10gb": 56}, **labelled(_1g_10gb=56)), (CAPACITY, {"7×1g.10gb": 8}, True)),
        (operator_node("n", {}), NOTHING),
        (operator_node("n", {"cpu": 8}, cards=0), NOTHING),
        (operator_node("n", {"gpu": 8}, cards=0), 'no number of cards for "NVIDIA-A100-SXM4-80GB"'),
        (operator_node("n", {"gpu": 8}, product="Tesla-T4"), 'unknown product "Tesla-T4"'),
        (operator_node("n", {"1g.10gb": 56}, **labelled(_1g_10gb=49)), "its capacity and the labels of GPU Feature Discovery differ (it has 56 × 1g.10gb, they say 49 × 1g.10gb)"),
        (operator_node("n", {"gpu": 8}, **labelled(_1g_10gb=49)), "its capacity and the labels of GPU Feature Discovery differ (it has none, they say 49 × 1g.10gb)"),
        (operator_node("n", {"gpu": 1, "1g.10gb": 49}), "its cards are not cut alike, and counts do not tell which card is which (it has 49 × 1g.10gb, 1 × gpu on 8 cards)"),
        # not proven to be whole: seven of the eight may have MIG on, and no devices
        (operator_node("n", {"gpu": 1}), "its cards are not cut alike, and counts do not tell which card is which (it has 1 × gpu on 8 cards)"),
        (operator_node("n", {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}), "there is more than one way to cut its cards into what it has (it has 16 × 1g.10gb, 8 × 2g.20gb, 8 × 3g.40gb on 8 cards)"),
        (operator_node("n", {"1g.10gb": 56}, **{"mig.config": "x", "mig.config.state": "pending"}), "its layout is being changed (state pending)"),
        (operator_node("n", {"1g.10gb": 48}, **{"mig.config": "x", "mig.config.state": "failed"}), "there is more than one way to cut its cards into what it has; mig-manager has not made x (state failed) (it has 48 × 1g.10gb on 8 cards)"),
        (operator_node("n", {"gpu": 8}, **{"mig.strategy": "none"}), "under the MIG strategy none nothing says how its cards are cut"),
        (operator_node("n", {"3g.40gb": 16}, **labelled(_1c_3g_40gb=16)), "it has nvidia.com/mig-1c.3g.40gb, which is no known MIG profile"),
    ],
)  # fmt: skip
def test_what_is_observed(document, answer):
    """Capacity and labels say how cards are cut where they agree and leave one way; a card is whole only if that is proven."""
    assert said(document) == answer


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        (operator_node("n", {"1g.10gb": 56}, "all-1g.10gb"), (MANAGER, {"7×1g.10gb": 8}, True)),
        (operator_node("n", {}, "all-1g.10gb"), (MANAGER, {"7×1g.10gb": 8}, True)),
        (operator_node("n", {}, "all-1g.10gb", product="NVIDIA-A100-SXM4-40GB"), f"{LABELLED}; all-1g.10gb may not be for all of its cards"),
        (operator_node("n", {"1g.10gb": 32}, "all-1g.10gb", product="NVIDIA-A100-SXM4-40GB"), (MANAGER, {"4×1g.10gb": 8}, True)),
        (operator_node("n", {"1g.18gb": 48}, "all-1g.10gb", product="NVIDIA-H200"), "there is more than one way to cut its cards into what it has; all-1g.10gb has no entry for NVIDIA H200 (it has 48 × 1g.18gb on 8 cards)"),
        (operator_node("n", {"1g.10gb": 16, "2g.20gb": 8, "3g.40gb": 8}, "all-balanced"), (MANAGER, {"2×1g.10gb+1×2g.20gb+1×3g.40gb": 8}, False)),
        (operator_node("n", {}, "all-disabled"), (MANAGER, {"gpu": 8}, True)),
        (operator_node("n", {"gpu": 7, "3g.40gb": 2}, "mine"), (MANAGER, {"2×3g.40gb": 1, "gpu": 7}, True)),
        # the device plugin takes those with media engines for plain ones, GPU Feature Discovery does not
        (operator_node("n", {"1g.10gb": 56}, "media", **labelled(_1g_10gb=48) | {"mig-1g.10gb.me.count": "8"}), (MANAGER, {"6×1g.10gb+1×1g.10gb+me": 8}, False)),
        (operator_node("n", {"1g.10gb": 56}, "media", **labelled(_1g_10gb=56)), (CAPACITY, {"7×1g.10gb": 8}, True)),
        # mig-parted leaves cards alone that no entry names: that they are whole must be seen
        (operator_node("n", {"gpu": 6, "3g.40gb": 4}, "some"), (MANAGER, {"2×3g.40gb": 2, "gpu": 6}, True)),
        (operator_node("n", {}, "some"), f"{LABELLED}; some may not be for all of its cards"),
        (operator_node("n", {"3g.40gb": 6}, "some"), "its cards are not cut alike, and counts do not tell which card is which; its label nvidia.com/mig.config says some, which makes other devices (it has 6 × 3g.40gb, not 4 × 3g.40gb, 6 × gpu)"),
        (operator_node("n", {"3g.40gb": 6}, "gone"), 'its cards are not cut alike, and counts do not tell which card is which; ConfigMap gpu-operator/default-mig-parted-config has no configuration "gone" (it has 6 × 3g.40gb on 8 cards)'),
        (operator_node("n", {"gpu": 8}, "all-disabled", **{"mig.strategy": "none"}), (MANAGER, {"gpu": 8}, True)),
        # one such node must not keep any command from the others
        (operator_node("n", {}, "all-balanced", cards="", **{"mig.strategy": "single"}), f"{LABELLED}; all-balanced does not say how many cards there are"),
        (operator_node("n", {}, "mine", cards="", **{"mig.strategy": "single"}), f"{LABELLED}; mine does not fit: MIG strategy single: all cards must have MIG on, or all off; use strategy mixed"),
        (operator_node("n", {"3g.40gb": 3}, "mine", cards=2), "its cards are not cut alike, and counts do not tell which card is which; mine does not fit: cards 2-7: not there; the node has cards 0-1 (it has 3 × 3g.40gb on 2 cards)"),
    ],
)  # fmt: skip
def test_with_mig_managers_configurations(document, answer):
    """The entry for this product tells which card has what, where it makes just the devices that are there."""
    assert said(document, config_map()) == answer


def test_a_configuration_that_contradicts_is_not_used_and_that_is_said():
    """Observed devices go before what the label says; the answer has it as a note."""
    document = operator_node("n", {"1g.10gb": 56}, "all-balanced")
    found = taken(document, config_map()).known("n")
    assert isinstance(found, KnownLayout)
    assert (str(found.source), found.note) == (
        CAPACITY,
        "its label nvidia.com/mig.config says all-balanced, which makes other devices (it has 56 × 1g.10gb, not 16 × 1g.10gb, 8 × 2g.20gb, 8 × 3g.40gb)",
    )


SINGLE = {"mig.strategy": "single"}
CUT = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"


@pytest.mark.parametrize(
    ("document", "answer"),
    [
        (operator_node("n", {"gpu": 8}, **SINGLE), (LABELS, {"gpu": 8}, True)),
        (operator_node("n", {}, **SINGLE), (LABELS, {"gpu": 8}, True)),
        (operator_node("n", {"gpu": 7}, **SINGLE), "its capacity and the labels of GPU Feature Discovery differ (it has 7 × gpu, they say 8 × gpu)"),
        # the labels count slices: the configuration tells how many cards have them
        (operator_node("n", {"gpu": 56}, "all-1g.10gb", CUT, 56, **SINGLE), (MANAGER, {"7×1g.10gb": 8}, True)),
        (operator_node("n", {"gpu": 56}, "all-balanced", CUT, 56, **SINGLE), "nothing says how many cards have its slices; all-balanced does not fit: MIG strategy single: one profile on all cards, not 1g.10gb and 2g.20gb and 3g.40gb; use strategy mixed"),
        (operator_node("n", {"gpu": 50}, "all-1g.10gb", CUT, 50, **SINGLE), "nothing says how many cards have its slices; all-1g.10gb does not say how many cards there are"),
        (operator_node("n", {"gpu": 56}, "", CUT, 56, **SINGLE), "nothing says how many cards have its slices"),
        (operator_node("n", {}, "", "NVIDIA-A100-SXM4-80GB-MIG-INVALID", 0, **SINGLE), "its cards are not cut alike, which the MIG strategy single does not allow"),
    ],
)  # fmt: skip
def test_the_single_strategy(document, answer):
    """Slices are called GPUs there, and counted as such; without `-MIG-` in the product no card is cut."""
    assert said(document, config_map()) == answer


@pytest.mark.parametrize(
    ("devices", "labels", "answer"),
    [
        ({"1g.10gb": 224}, {"mig-1g.10gb.replicas": "4"}, (CAPACITY, {"7×1g.10gb": 8}, True)),
        ({"1g.10gb.shared": 224}, {"mig-1g.10gb.replicas": "4"}, (CAPACITY, {"7×1g.10gb": 8}, True)),
        ({"gpu": 32}, {"gpu.replicas": "4"}, (CAPACITY, {"gpu": 8}, True)),
        ({"1g.10gb.shared": 224}, {}, "it has 1g.10gb.shared, and nothing says how many share one device"),
        # quantities as the API server writes them
        ({"1g.10gb": "7k", "gpu": 0}, {"mig-1g.10gb.replicas": "125"}, (CAPACITY, {"7×1g.10gb": 8}, True)),
        ({"3g.40gb": 16, "1g.10gb.shared": "4k"}, {}, "it has 1g.10gb.shared, and nothing says how many share one device"),
        ({"3g.40gb": 16, "1g.10gb": "4M"}, {}, "it has 1g.10gb.shared, and nothing says how many share one device"),
        ({"1g.10gb": 226}, {"mig-1g.10gb.replicas": "4"}, "it has 1g.10gb.shared, and nothing says how many share one device"),
    ],
)  # fmt: skip
def test_what_pods_share_is_counted_once(devices, labels, answer):
    """Devices that several pods share are divided by how many share one, or nothing is known."""
    assert said(operator_node("n", devices, **labels)) == answer


def test_what_the_kubelet_remembers_is_no_device():
    """For five minutes after a change the capacity names what is gone; what is allocatable and labelled is there."""
    document = operator_node("n", {"1g.10gb": 56}, "all-1g.10gb", **labelled(_1g_10gb=56))
    document["status"]["capacity"] |= {GPU: "8", MIG + "3g.40gb": "16"}
    document["status"]["allocatable"] |= {GPU: "0", MIG + "3g.40gb": "0"}
    assert said(document) == (CAPACITY, {"7×1g.10gb": 8}, True)
    document["metadata"]["labels"]["nvidia.com/mig.config.state"] = "failed"
    assert str(said(document)).startswith("its capacity and the labels of GPU Feature Discovery differ")


def test_without_a_strategy_label_gpu_feature_discovery_runs_with_none():
    """It writes `mig.capable` and no strategy there, and whole GPUs may then be cut ones."""
    document = operator_node("n", {"gpu": 8}, **{"mig.capable": "true"})
    del document["metadata"]["labels"]["nvidia.com/mig.strategy"]
    assert said(document) == "under the MIG strategy none nothing says how its cards are cut"


@settings(max_examples=examples(60))
@given(st.data())
def test_what_a_node_shows_is_how_it_is_cut(data):
    """Of labels as GPU Feature Discovery writes them and capacity, any layout is known as it is, or not at all; with its configuration always."""
    strategy = data.draw(st.sampled_from((Strategy.MIXED, Strategy.SINGLE)))
    product = product_named(data.draw(st.sampled_from(("A100-80GB", "H200", "A30"))))
    one = st.lists(st.sampled_from(product.profiles), max_size=7).filter(
        lambda some: place(product, map(Wish, some)) is not None
    )
    card = st.one_of(st.just(CardLayout(product)), one.map(lambda some: CardLayout.cut(product, some)))
    some = st.lists(card, min_size=1, max_size=4)
    layout = NodeLayout(tuple(data.draw(st.one_of(some, card.map(lambda each: [each] * 4)))))
    try:
        resources = layout.resources(strategy)
    except DoesNotFit:  # the single strategy does not have it
        return
    document = operator_node("n", {}, "x", **{"mig.config.state": "success"})
    document["metadata"]["labels"] |= gpu_labels(layout, strategy)
    document["status"]["capacity"] |= {name: str(number) for name, number in resources.items()}
    counts = [card.counts for card in layout.cards]
    found = taken(document).known("n")
    if isinstance(found, KnownLayout):
        assert [(card.mig_enabled, card.counts) for card in found.layout.cards] == [
            (card.mig_enabled, card.counts) for card in layout.cards
        ]
    parted = convert(MigDocument(Format.RUNAI, {"x": entries_of(layout)}), Format.MIG_PARTED).document
    with_entry = taken(document, config_map(write(parted))).known("n")
    assert isinstance(with_entry, KnownLayout), with_entry
    assert [card.counts for card in with_entry.layout.cards] == counts


def test_an_annotation_that_nothing_reads_says_nothing():
    """Where mig-manager cuts the cards, the annotation is not how they are cut; elsewhere it is."""
    annotated = operator_node("n", {"1g.10gb": 56})
    annotated["metadata"]["annotations"] = {"run.ai/mig.config": "3g.40gb=2"}
    assert said(annotated) == (CAPACITY, {"7×1g.10gb": 8}, True)
    del annotated["metadata"]["labels"]["nvidia.com/gpu.deploy.mig-manager"]
    assert said(annotated) == ("annotation run.ai/mig.config", {"2×3g.40gb": 8}, True)


def test_devices_of_dra_are_devices():
    """Where DRA offers the devices of cards that are cut once and for all, those are counted."""
    document = operator_node("n", {}, cards=1)
    slices = slice_("s", *(device(f"d-{n}", profile="1g.10gb") for n in range(7)), node="n")
    one = class_("one", resource=MIG + "1g.10gb")
    assert said(document, slices, one) == (CAPACITY, {"7×1g.10gb": 1}, True)
    # the kubelet remembers a device plugin that was there before
    document["status"]["capacity"][GPU] = "1"
    assert said(document, slices, one) == (CAPACITY, {"7×1g.10gb": 1}, True)


def test_nodes_that_are_alike_are_worked_out_once():
    """Thousands of nodes are cut alike: they have one and the same layout object."""
    found = taken(*(operator_node(f"n{i}", {"1g.10gb": 56}, "all-1g.10gb") for i in range(3)), config_map())
    first, *others = (found.known(name) for name in found.gpus)
    assert all(one is first for one in others)


def test_a_node_without_gpus():
    """Nothing is known of a node that says nothing."""
    assert taken(node("n", {})).known("n") == taken().known("x")


def test_fault_72_layouts_that_fill_an_annotation_are_not_remembered():
    """A node that says a new layout of 200 KiB all the time, and one with thousands of labels: nothing of it stays."""

    def ask(number):
        known_layout(gpu_node(NodeIn(metadata=Metadata(name="n", labels=few, annotations={
            "run.ai/mig.config": (f"{number} " * 100_000)[: 200 * 1024]
        }))))  # fmt: skip
        labels = {**few, **{f"nvidia.com/mig-1g.{number}{at}gb.count": "1" for at in range(1100)}}
        known_layout(gpu_node(NodeIn(metadata=Metadata(name="n", labels=labels))))

    few = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "8"}
    tracemalloc.start()
    ask(20)  # names of profiles are remembered: a thousand, of thirty characters at most
    before, _ = tracemalloc.get_traced_memory()
    for number in range(20):
        ask(number)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept - before < 100 * 1024
