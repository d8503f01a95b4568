"""The report of an inventory: what is shown, added up."""

import json

import pytest

from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import Room
from tessera.core.resources import is_any_gpu
from tessera.inventory.report import amount, pod_state, report_of, state_of
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tests.build import GPU, MIG
from tests.inventory.objects import LAYOUT, OBJECTS, node
from tests.inventory.test_inventory import taken


def report(inventory, shown=is_any_gpu, *, with_pods=False, with_rooms=False):
    return report_of(inventory, shown, with_pods=with_pods, with_rooms=with_rooms)


def test_products_and_the_whole():
    """Nodes by product, their sums, and what pods without a node ask for."""
    found = report(taken(*OBJECTS))
    assert [one.node.name for one in found.nodes] == ["sim-0", "sim-1", "v100"]
    assert {name: number for name, (number, _) in found.products.items()} == {
        "NVIDIA-H200": 2,
        "Tesla-V100": 1,
    }
    assert {name: int(usage.available.value) for name, usage in found.total.items()} == {
        GPU: 4,
        MIG + "2g.20gb": 5,
        MIG + "3g.30gb": 3,
    }
    assert {name: str(number) for name, number in found.asked.items()} == {
        MIG + "2g.20gb": "3",
        MIG + "1g.10gb": "1",
    }
    assert (found.pods, found.rooms) == (None, {})


def test_only_what_is_to_be_shown():
    """More may have been counted: a node, a pod and a sum without anything that is shown are left out."""
    found = report(taken(*OBJECTS), GPU.__eq__, with_pods=True)
    assert [one.node.name for one in found.nodes] == ["sim-0", "v100"]
    assert (list(found.total), found.asked) == ([GPU], {})
    assert [(one.name, pod_state(one)) for one in found.pods or ()] == [("c", "holds")]


def test_pods():
    """Who waits first, then node by node; a pod on a node that was not looked at is not there."""
    found = report(taken(*OBJECTS, selector="nvidia.com/gpu.product=NVIDIA-H200"), with_pods=True)
    assert [(one.name, one.node, pod_state(one)) for one in found.pods or ()] == [
        ("waits", "", "waits"),
        ("nowhere", "", "waits"),
        ("a", "sim-0", "holds"),
        ("b", "sim-0", "holds"),
        ("going", "sim-1", "ending"),
    ]


def test_rooms():
    """How many more devices the cards could hold; a node whose layout cannot be is left out here alone."""
    cut = [one for one in OBJECTS if one["metadata"]["name"] != "v100"]
    rooms = report(taken(*cut), with_rooms=True).rooms
    assert rooms[MigProfile.parse("2g.20gb")] == Room(free=5, beside=0, recut=7)
    broken = node("bad", {}, "NVIDIA-H200", layout=LAYOUT.replace("3g.30gb", "9g.90gb"))
    found = report(taken(*cut, broken), with_rooms=True)
    assert found.rooms == rooms


@pytest.mark.parametrize(
    ("taint", "state"),
    [("", "ready"), ("unschedulable", "cordoned"), ("not-ready", "not ready"), ("unreachable", "unreachable"), ("disk-pressure", "ready")],
)  # fmt: skip
def test_states_of_nodes(taint, state):
    """Whether a node takes pods, by the taints that Kubernetes sets."""
    assert state_of(node_of(decode_node(json.dumps(node("n", {}, taint=taint)).encode()))) == state


@pytest.mark.parametrize(("text", "shown"), [("20000", "20000"), ("20k", "20000"), ("1500m", "1500m"), ("2Gi", "2Gi"), ("0", "0")])  # fmt: skip
def test_amounts(text, shown):
    """A quantity as Kubernetes writes it, but whole numbers in full."""
    assert amount(Quantity.parse(text)) == shown
