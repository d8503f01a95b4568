"""What pods wait for, with devices of DRA among those that are there."""

import pytest

from tessera.core.dra.slices import DRIVER as OURS
from tessera.core.kubernetes.blocked import Block
from tessera.core.mig.profile import MigProfile
from tessera.inventory.pending import Pending, pending_inventory
from tessera.kube.object_files import objects_in_documents
from tests.build import MIG, bridged, claim_document
from tests.inventory.objects import LAYOUT, node, pod
from tests.protocol.dra.samples import DRIVER, class_, device, slice_

RESOURCE = MIG + "2g.20gb"
NAME = "gpu-1-mig-2g-20gb-0"


def pending(*more, waits=None):
    """A node whose cards are cut and whose devices DRA hands out, and a pod that waits for one of them."""
    inventory = pending_inventory()
    documents = [
        node("gpu-0", {}, "NVIDIA-H200", layout=LAYOUT),
        waits or pod("waits", "", RESOURCE),
        slice_("s", device(NAME, profile="2g.20gb"), node="gpu-0"),
        *more,
    ]
    inventory.take(objects_in_documents(documents, "test"))
    return Pending(inventory, "")


def claim(driver=DRIVER):
    return claim_document("c", {"driver": driver, "pool": "gpu-0", "device": NAME}, namespace="ml")


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


def test_of_tesseras_driver_only_what_claims_hold_stays():
    """Its devices are named by their places: the others of the same kind may go."""
    ours = [class_("all"), slice_("t", device(NAME), node="gpu-0", driver=OURS), claim(OURS)]
    kept = [[(str(one.profile), one.position) for one in card.kept] for card in pending(*ours).cards().cards]
    assert kept == [[], [("2g.20gb", 0)]]


def test_where_the_device_plugin_says_what_pods_hold_the_rest_may_go():
    """What the node says is believed where just these pods hold just so many by the API; else all of the resource stays."""

    def kept(said, *uids):
        one = node("gpu-0", {RESOURCE: "4"}, "NVIDIA-H200", layout=LAYOUT)
        one["metadata"]["annotations"] |= {"tessera.dev/devices-in-use": said} if said else {}
        pods = [pod(f"runs-{uid}", "gpu-0", RESOURCE, uid=uid) for uid in uids]
        inventory = pending_inventory()
        inventory.take(objects_in_documents([*pods, one, pod("waits", "", MIG + "1g.10gb")], "test"))
        return [[one.position for one in card.kept] for card in Pending(inventory, "").cards().cards]

    said = '{"1": {"2g.20gb@2": "aaaaaaaa"}}'
    every = kept("", "aaaaaaaa-1")
    assert kept(said, "aaaaaaaa-1") == [[], [2]]
    assert kept("{}") == [[], []]
    assert [len(some) for some in every] == [2, 2]
    for wrong in (said.replace("aaaaaaaa", "bbbbbbbb"), said.replace("@2", "@9"), "{}", "nonsense"):
        assert kept(wrong, "aaaaaaaa-1") == every
    assert kept(said, "aaaaaaaa-1", "cccccccc-2") == every


def test_bridged_pods_wait_for_what_they_asked_for():
    """A pod whose request is a claim is demand for its first wish, unless something free is among its alternatives."""
    plain = pod("waits", "", "cpu")

    def waiting(text, *more):
        serves = class_("two", resource=RESOURCE)
        return pending(serves, *more, waits=bridged(plain, text))

    three_else_two = "1*3g.30gb=3g.30gb/tessera-any,2g.20gb/tessera-any"
    free, held = waiting(three_else_two), waiting(three_else_two, claim())
    assert [group.names for group in free.waiting.free] == [("default/waits",)]
    assert [str(wanted.profile) for wanted in free.waiting.wanted] == []
    assert {str(wanted.profile): n for wanted, n in held.waiting.wanted.items()} == {"3g.30gb": 1}
    assert list(held.words()) == ["pods without a node ask for 1 × 3g.30gb"]


def test_bridged_pods_that_fell_back():
    """A pod that the scheduler gave less than it had asked for is demand as one is that the webhook gave less."""
    plain = pod("runs", "gpu-0", "cpu", annotations={"gpu-webhook.k8s.io/fallback": "3g.30gb->2g.20gb"})
    found = pending(waits=bridged(plain, "1*3g.30gb=3g.30gb/tessera-any,2g.20gb/tessera-any"))
    assert {str(profile): n for profile, n in found.demand.fell_back.items()} == {"3g.30gb": 1}


def test_cards_that_are_cut_on_demand_take_no_layout():
    """A node whose cards are cut as claims ask for it is passed over by a plan."""
    counted = slice_("s2", node="gpu-0", driver="gpu.tessera.dev", sharedCounters=[{"name": "card-0"}])
    found = pending(class_("all"), counted).cards()
    assert found.cards == []
    assert found.skipped == [
        "node gpu-0: skipped: its cards are cut for claims on demand, so they take no layout"
    ]


def test_fault_70_a_pod_that_asks_for_more_than_is_counted_wants_nothing():
    """No card is cut for a pod with thousands of resources; pods besides it are planned for as ever."""
    large = pod("large", "", RESOURCE)
    amounts = large["spec"]["containers"][0]["resources"]
    invented = {f"ex.io/invented-{number}": "1" for number in range(2000)}
    amounts["limits"] = amounts["requests"] = {**amounts["requests"], **invented}
    one = pending(large)
    assert [group.names for group, _ in one.waiting.to_plan] == [("default/waits",)]
    assert dict(one.demand.waiting) == {MigProfile.of_resource(RESOURCE): 1}


@pytest.mark.parametrize("gates", [[], [{"name": "x.io/y"}]])
def test_a_pod_with_scheduling_gates_wants_nothing(gates):
    """It waits for something else first: the autopilot makes no room for it."""
    document = pod("waits", "", RESOURCE)
    document["spec"]["schedulingGates"] = gates
    inventory = pending_inventory()
    inventory.take(objects_in_documents([document], "test"))
    found = Pending(inventory, "", now=0.0)
    assert dict(found.demand.waiting) == ({} if gates else {MigProfile.of_resource(RESOURCE): 1})
    assert dict(found.blocked) == ({"default/waits": Block.HELD} if gates else {})
