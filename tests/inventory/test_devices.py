"""Which devices there are on a node's cards, and which of them pods hold."""

import json

import pytest

from tessera.core.mig.geometry import product_named
from tessera.core.resources import is_any_gpu, is_extended
from tessera.inventory.inventory import held_by
from tessera.inventory.layouts import placed_devices
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.kubernetes.pod import decode_pod
from tessera.protocol.mig.documents import read_layout
from tessera.protocol.mig.nodes import MAPPING, encode_mapping, gpu_node, mapping_of
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node

CUT = read_layout(LAYOUT, [product_named("H200-70GB")] * 2)
TWO = MIG + "2g.20gb"


def described(**annotations):
    document = node("n", {}, "NVIDIA-H200", layout=LAYOUT)
    document["metadata"]["annotations"] |= annotations
    return gpu_node(decode_node(json.dumps(document).encode()))


@pytest.mark.parametrize(
    ("status", "held"),
    [
        ({}, ()),
        ({"containerStatuses": None}, ()),
        ({"containerStatuses": [{"name": "main"}]}, ()),
        ({"containerStatuses": [{"allocatedResourcesStatus": [{"name": TWO, "resources": None}]}]}, ()),
        (
            {
                "containerStatuses": [
                    {"allocatedResourcesStatus": [{"name": TWO, "resources": [{"resourceID": "MIG-1", "health": "Healthy"}]}]},
                    {
                        "allocatedResourcesStatus": [
                            {"name": TWO, "resources": [{"resourceID": "MIG-2"}]},
                            {"name": "claim:x", "resources": [{"resourceID": "y"}]},
                        ]
                    },
                ]
            },
            ((TWO, "MIG-1"), (TWO, "MIG-2")),
        ),
    ],
)  # fmt: skip
def test_devices_that_a_pod_holds(status, held):
    """As its kubelet wrote them down, of the resources that are asked about; nothing where it did not."""
    assert held_by(decode_pod(json.dumps({"metadata": {}, "status": status}).encode()), is_any_gpu) == held


def test_devices_of_claims_are_no_devices_of_a_plugin():
    """A 1.36 kubelet lists a claim's devices too, by the names of claim and request and by CDI names: the claim has them."""
    by_claim = {
        "name": "claim:tessera-gpu/gpu-0",
        "resources": [{"resourceID": "gpu.tessera.dev/claim=u-1-x"}],
    }
    listed = [
        {"name": "claim:mine", "resources": [{"resourceID": "d/n/x"}]},
        by_claim,
        {"name": TWO, "resources": [{"resourceID": "MIG-1"}]},
    ]
    status = {"containerStatuses": [{"name": "main", "allocatedResourcesStatus": listed}]}
    pod = decode_pod(json.dumps({"metadata": {}, "status": status}).encode())
    assert held_by(pod, lambda _: True) == held_by(pod, is_extended) == ((TWO, "MIG-1"),)


def test_devices_have_the_ids_that_the_node_tells():
    """A mapping's ids go before those of a simulated node; one that cannot be read is as if there were none."""
    simulated = [one.id for one in placed_devices(described(), CUT)]
    assert simulated == [slot.uuid("n") for slots in CUT.slots().values() for slot in slots]
    mapping = mapping_of(CUT, "other")
    told = [one.id for one in placed_devices(described(**{MAPPING: encode_mapping(mapping)}), CUT)]
    assert sorted(told) == sorted(one.device_uuid for devices in mapping.values() for one in devices)
    assert [one.id for one in placed_devices(described(**{MAPPING: "?"}), CUT)] == simulated
