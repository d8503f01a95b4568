"""Whether a node shows its layout: its state and what it offers, side by side."""

import pytest

from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig.nodes import gpu_node
from tessera.rollout.progress import Progress, offered_by, progress_of
from tests.build import GPU, MIG

ONES, TWOS = MIG + "1g.10gb", MIG + "2g.20gb"


def node(state="", reason="", **allocatable):
    labels = b'{"nvidia.com/mig.config.state": "%s"}' % state.encode() if state else b"{}"
    text = b'{"metadata": {"name": "n", "labels": %s, "annotations": {"nvidia.com/mig.config.reason": "%s"}}}'
    return gpu_node(decode_node(text % (labels, reason.encode())))


@pytest.mark.parametrize(
    ("state", "reason", "offered", "expected", "progress"),
    [
        ("success", "", {ONES: 4}, {ONES: 4}, Progress(shown=True)),
        ("success", "", {ONES: 4}, None, Progress(shown=True)),
        ("success", "", {ONES: 3}, {ONES: 4}, Progress(shown=False, waits="state success; 1g.10gb current 3, desired 4")),
        ("", "", {TWOS: 8}, {TWOS: 0}, Progress(shown=False, waits="waiting for the node's state; 2g.20gb current 8, desired 0")),
        ("", "", {}, None, Progress(shown=False, waits="waiting for the node's state")),
        ("pending", "ml/train", {TWOS: 1}, {ONES: 4}, Progress(shown=False, waits="state pending; 1g.10gb current 0, desired 4; 2g.20gb current 1, desired 0", reason="ml/train")),
        ("success", "", {ONES: 7}, {ONES: 6, ONES + ".me": 1}, Progress(shown=True)),
        ("failed", "no such card", {ONES: 4}, {ONES: 4}, Progress(shown=False, refused="no such card")),
        ("failed", "", {}, None, Progress(shown=False, refused="the node reports failed, without a reason")),
    ],
)  # fmt: skip
def test_progress(state, reason, offered, expected, progress):
    """A layout holds when the state is success and nothing is missing; else what is missing is named."""
    assert progress_of(node(state, reason), offered, expected) == progress


def test_what_a_node_offers():
    """GPUs and MIG devices alone, and none of which there are none."""
    status = f'{{"allocatable": {{"{ONES}": "4", "{TWOS}": "0", "{GPU}": "2", "cpu": "64"}}}}'
    one = decode_node(f'{{"metadata": {{"name": "n"}}, "status": {status}}}'.encode())
    assert offered_by(one) == {ONES: 4, GPU: 2}


@pytest.mark.parametrize("name", [ONES, ONES + ".shared"])
def test_what_a_node_offers_to_several_pods_each(name):
    """Devices that NVIDIA's plugin shares are counted once, so that a layout of such a node is seen to hold; not where nobody says how many share one."""
    status = f'{{"allocatable": {{"{name}": "16", "{GPU}": "0", "{ONES}.me": "1"}}}}'
    labels = f'"labels": {{"{ONES}.replicas": "4", "{GPU}.replicas": "4"}}'
    one = decode_node(f'{{"metadata": {{"name": "n", {labels}}}, "status": {status}}}'.encode())
    assert offered_by(one) == {ONES: 4, ONES + ".me": 1}
    unsaid = decode_node(f'{{"metadata": {{"name": "n"}}, "status": {status}}}'.encode())
    assert offered_by(unsaid) == {ONES + ".me": 1} | ({ONES: 16} if name == ONES else {})
