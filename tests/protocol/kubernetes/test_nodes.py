"""Nodes that are kept for long."""

import msgspec

from tessera.protocol.kubernetes.nodes import decode_node, kept_small, node_of
from tessera.protocol.mig.nodes import gpu_node
from tests.inventory.objects import LAYOUT, node
from tests.rollout.machine.world import BIG


def encoded(name: str, ready: str = "True") -> bytes:
    document = node(name, BIG, "NVIDIA-H200", layout=LAYOUT, pool="a")
    document["status"]["capacity"] = {"cpu": 8, "nvidia.com/gpu": "4"}
    document["status"]["conditions"] = [
        {"type": "MemoryPressure", "status": "False", "message": "kubelet has sufficient memory available"},
        {"type": "Ready", "status": ready, "message": "kubelet is posting ready status"},
    ]
    document["spec"] = {"taints": [{"key": "a", "effect": "NoSchedule"}], "unschedulable": True}
    return msgspec.json.encode(document)


def test_a_node_that_is_kept_small_says_the_same():
    """Whatever is read of it later is as in the node that came."""
    for ready in ("True", "False", "Unknown"):
        one = decode_node(encoded("n", ready))
        kept = kept_small(one)
        assert (kept.metadata, kept.spec, kept.status.ready) == (one.metadata, one.spec, ready == "True")
        assert (node_of(kept), gpu_node(kept)) == (node_of(one), gpu_node(one))
    bare = decode_node(b'{"metadata":{"name":"bare"}}')
    assert node_of(kept_small(bare)) == node_of(bare)


def test_nodes_that_are_kept_small_share_what_they_say_alike():
    """The texts of their labels and resources are the same objects."""
    one, other = kept_small(decode_node(encoded("n"))), kept_small(decode_node(encoded("m")))
    for key, text in (one.metadata.labels or {}).items():
        if (other.metadata.labels or {})[key] == text:
            assert (other.metadata.labels or {})[key] is text
    shared = {id(key) for key in one.status.allocatable or ()} & {
        id(key) for key in other.status.allocatable or ()
    }
    assert len(shared) == len(one.status.allocatable or ())
