"""What a node tells of its GPUs."""

import pytest

from tessera.core.mig.layout import Strategy
from tessera.protocol.kubernetes.objects import MetaIn, NodeIn
from tessera.protocol.mig.nodes import gpu_node


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
    node = gpu_node(NodeIn(MetaIn(name="a", labels=labels, annotations={"run.ai/mig.config": "3g.71gb=1"})))
    assert (node.product and node.product.name, node.cards, node.strategy) == (product, cards, strategy)
    assert node.layout == "3g.71gb=1"
