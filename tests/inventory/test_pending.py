"""What pods wait for, with devices of DRA among those that are there."""

from tessera.inventory.pending import Pending, pending_inventory
from tessera.kube.object_files import objects_in_documents
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node, pod
from tests.protocol.dra.samples import DRIVER, class_, device, slice_

RESOURCE = MIG + "2g.20gb"
NAME = "gpu-1-mig-2g-20gb-0"


def pending(*more):
    """A node whose cards are cut and whose devices DRA hands out, and a pod that waits for one of them."""
    inventory = pending_inventory()
    documents = [
        node("gpu-0", {}, "NVIDIA-H200", layout=LAYOUT),
        pod("waits", "", RESOURCE),
        slice_("s", device(NAME, profile="2g.20gb"), node="gpu-0"),
        *more,
    ]
    inventory.take(objects_in_documents(documents, "test"))
    return Pending(inventory, "")


def claim():
    results = [{"driver": DRIVER, "pool": "gpu-0", "device": NAME}]
    return {
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ml", "name": "c"},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def test_what_dra_serves_need_not_be_cut():
    """A pod that DRA has a free device for is not planned for; one whose device is held is."""
    serves = class_("two", resource=RESOURCE)
    assert [group.names for group, _ in pending(serves).waiting.to_plan] == []
    assert [group.names for group, _ in pending(serves, claim()).waiting.to_plan] == [("default/waits",)]
    assert [group.names for group, _ in pending().waiting.to_plan] == [("default/waits",)]


def test_what_claims_hold_stays():
    """Cards keep devices of a kind that claims hold, by whatever class: not every claim is for an extended resource."""
    free, held = (
        [[str(one.profile) for one in card.kept] for card in pending(*more).cards().cards]
        for more in ([class_("all")], [class_("all"), claim()])
    )
    assert free == [[], []]
    assert held == [["2g.20gb", "2g.20gb"]] * 2
