"""Layouts of nodes, as the nodes say them."""

import pytest

from tessera.core.mig.geometry import product_named
from tessera.inventory.layouts import Source, Unreadable, node_layouts
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import encode_mapping, mapping_of
from tests.build import MIG, claim_document
from tests.inventory.objects import LAYOUT, OBJECTS, node
from tests.inventory.test_inventory import taken
from tests.protocol.dra.samples import class_, device, slice_

DRIVER = "gpu.tessera.dev"

H200 = product_named("H200-70GB")


def one_node(layout=LAYOUT, product="NVIDIA-H200", **annotations):
    document = node("n", {}, product, layout=layout)
    document["metadata"]["annotations"] |= {
        f"run.ai/{key}".replace("_", "-"): text for key, text in annotations.items()
    }
    return document


def test_every_node_that_is_cut():
    """With what pods hold of it, where pods were read; nodes without a layout are not there."""
    found = node_layouts(taken(*OBJECTS), with_used=True)
    assert [one.where for one in found] == ["node sim-0", "node sim-1"]
    (source,) = node_layouts(taken(*OBJECTS), with_used=True, only=["sim-0"])
    assert isinstance(source, Source)
    assert (source.product, source.cards) == (H200, 2)
    assert source.used == {"nvidia.com/gpu": 0, MIG + "2g.20gb": 2, MIG + "3g.30gb": 1}
    assert source.layout(source.document.select(None)) == mig.read_layout(LAYOUT, [H200] * 2)
    (without,) = node_layouts(taken(*OBJECTS), only=["sim-0"])
    assert isinstance(without, Source)
    assert without.used is None


def test_what_is_goes_before_what_is_desired():
    """How the cards are cut is what the node says they became; where it desires nothing, that is its layout."""
    present = mig.read_layout("1g.10gb=7", [H200] * 2)
    mapping = encode_mapping(mapping_of(present, "n"))
    (both,) = node_layouts(taken(one_node(mig_mapping=mapping)))
    assert isinstance(both, Source)
    assert both.present == present
    assert both.layout(both.document.select(None)) == mig.read_layout(LAYOUT, [H200] * 2)
    document = one_node(mig_mapping=mapping)
    del document["metadata"]["annotations"]["run.ai/mig.config"]
    (only,) = node_layouts(taken(document))
    assert isinstance(only, Source)
    assert only.layout(only.document.select(None)) == present


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (one_node(product="X9"), 'unknown product "X9"; set it with --product'),
        (one_node(product=""), "no label nvidia.com/gpu.product; set it with --product"),
        (one_node(layout="[1, 2]"), None),
    ],
)
def test_unreadable(document, reason):
    """A node whose product is unknown, or whose annotation is no layout, is named with the reason."""
    (found,) = node_layouts(taken(document))
    assert isinstance(found, Unreadable)
    assert found.where == "node n"
    assert reason is None or found.reason == reason


def test_what_the_caller_says_goes_first():
    """A product and a number of cards that were given hold for every node."""
    (found,) = node_layouts(taken(one_node(product="X9")), H200, 1)
    assert isinstance(found, Source)
    assert (found.product, found.cards) == (H200, 1)


@pytest.mark.parametrize(
    ("held", "cards"),
    [
        ([], [[], []]),
        (["gpu-0-mig-2g-20gb-2", "gpu-1"], [["2g.20gb at 2"], None]),
        (["gpu-1-mig-3g-30gb-4"], [[], ["3g.30gb at 4"]]),
    ],
)
def test_cards_that_are_cut_on_demand(held, cards):
    """What claims hold of them now is their layout; only where it is asked what is in use."""
    plain = node("n", {}, "NVIDIA-H200", gpu_x="")
    plain["metadata"]["labels"] |= {"nvidia.com/gpu.memory": "71680", "nvidia.com/gpu.count": "2"}
    results = [{"driver": DRIVER, "pool": "n", "device": name} for name in held]
    claim = claim_document("c", *results)
    objects = [
        plain,
        class_("all"),
        slice_("c", node="n", driver=DRIVER, total=2, sharedCounters=[{"name": "card-0"}]),
        slice_("d", device("gpu-0"), node="n", driver=DRIVER, total=2),
        claim,
    ]
    assert node_layouts(taken(*objects)) == []
    (found,) = node_layouts(taken(*objects), with_used=True)
    assert isinstance(found, Source)
    assert found.present is not None
    assert [
        list(map(str, one.instances)) if one.mig_enabled else None for one in found.present.cards
    ] == cards
    in_use = found.in_use(found.present)
    assert in_use is not None
    assert (len(in_use.slots), in_use.certain) == (len(held), True)
