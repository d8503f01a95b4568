"""Labels of simulated nodes: those that GPU feature discovery would set."""

import pytest

from tessera.core.mig.geometry import SIMULATED_H200_70GB
from tessera.core.mig.layout import NodeLayout, Strategy
from tessera.protocol.mig.documents import read_layout
from tessera.protocol.mig.nodes import gpu_labels, stale_labels

CARDS = [SIMULATED_H200_70GB] * 4
COMMON = {"nvidia.com/gpu.present": "true", "nvidia.com/mig.capable": "true"}
WHOLE = {
    **COMMON,
    "nvidia.com/gpu.product": "NVIDIA-H200-70GB",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.memory": "71680",
}


@pytest.mark.parametrize(
    ("layout", "strategy", "labels"),
    [
        ("2g.20gb=2,3g.30gb=1", Strategy.NONE, {**WHOLE, "nvidia.com/mig.strategy": "none"}),
        (
            "2g.20gb=2,3g.30gb=1",
            Strategy.MIXED,
            {
                **WHOLE,
                "nvidia.com/mig.strategy": "mixed",
                "nvidia.com/mig-2g.20gb.count": "8",
                "nvidia.com/mig-2g.20gb.memory": "20480",
                "nvidia.com/mig-2g.20gb.product": "NVIDIA-H200-70GB-MIG-2g.20gb",
                "nvidia.com/mig-3g.30gb.count": "4",
                "nvidia.com/mig-3g.30gb.memory": "30720",
                "nvidia.com/mig-3g.30gb.product": "NVIDIA-H200-70GB-MIG-3g.30gb",
            },
        ),
        (
            "1g.10gb=7",
            Strategy.SINGLE,
            {
                **COMMON,
                "nvidia.com/mig.strategy": "single",
                "nvidia.com/gpu.count": "28",
                "nvidia.com/gpu.memory": "10240",
                "nvidia.com/gpu.product": "NVIDIA-H200-70GB-MIG-1g.10gb",
            },
        ),
    ],
)
def test_labels(layout: str, strategy: Strategy, labels: dict[str, str]) -> None:
    """Each strategy has its labels, in full."""
    assert gpu_labels(read_layout(layout, CARDS), strategy) == labels


def test_no_cards_no_labels() -> None:
    """A node without cards is not labelled."""
    assert gpu_labels(NodeLayout(()), Strategy.MIXED) == {}


def test_labels_of_vanished_profiles_are_named() -> None:
    """Only labels of profiles are stale, and only those of profiles that have gone."""
    present = [
        "nvidia.com/mig-1g.10gb.count",
        "nvidia.com/mig-2g.20gb.count",
        "nvidia.com/mig.strategy",
        "team",
    ]
    assert stale_labels(present, ["nvidia.com/mig-2g.20gb.count"]) == ["nvidia.com/mig-1g.10gb.count"]
