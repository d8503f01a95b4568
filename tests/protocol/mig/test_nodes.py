"""What a node tells of its GPUs."""

import pytest

from tessera.core.mig.geometry import PRODUCTS
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.kubernetes.objects import Metadata
from tessera.protocol.mig.nodes import encode_mapping, gpu_node, mapping_of, present_layout


@pytest.mark.parametrize(
    ("labels", "product", "cards", "strategy"),
    [
        ({}, None, None, Strategy.MIXED),
        (
            {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771", "nvidia.com/gpu.count": "8"},
            "NVIDIA H200",
            8,
            Strategy.MIXED,
        ),
        (
            {
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
                "nvidia.com/gpu.memory": "4864",
                "nvidia.com/gpu.count": "56",
                "nvidia.com/mig.strategy": "single",
            },
            "NVIDIA A100-40GB",
            None,
            Strategy.SINGLE,
        ),
        (
            {
                "nvidia.com/gpu.product": "NVIDIA-H200",
                "nvidia.com/gpu.memory": "many",
                "nvidia.com/gpu.count": "-1",
                "nvidia.com/mig.strategy": "?",
            },
            "NVIDIA H200",
            None,
            Strategy.MIXED,
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.count": "1000000000000"}, "NVIDIA H200", None, Strategy.MIXED),
    ],
)  # fmt: skip
def test_labels(labels, product, cards, strategy):
    """Labels tell product, number of cards and strategy; under the single strategy the number is of MIG devices."""
    node = gpu_node(NodeIn(Metadata(name="a", labels=labels, annotations={"run.ai/mig.config": "3g.71gb=1"})))
    assert (node.product and node.product.name, node.cards, node.strategy) == (product, cards, strategy)
    assert node.layout == "3g.71gb=1"


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.short_name)
def test_a_mapping_names_devices_as_their_cards_usually_do(product):
    """Where two names share a profile id (7g.79gb and 7g.80gb of an A100), the usual one is reported; pods ask for that."""
    for shape in product.shapes:
        layout = NodeLayout((CardLayout.cut(product, [shape.profile]),))
        labels = {"nvidia.com/gpu.product": product.label, "nvidia.com/gpu.memory": str(product.memory_mib)}
        annotations = {"run.ai/mig-mapping": encode_mapping(mapping_of(layout, "a"))}
        told = present_layout(gpu_node(NodeIn(Metadata(name="a", labels=labels, annotations=annotations))))
        usual = max(other.profile for other in product.shapes if other.profile_id == shape.profile_id)
        assert told is not None
        assert told.resources() == {usual.resource: 1}
