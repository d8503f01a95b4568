"""What a node's labels and layout say about devices that its status does not offer, and for how long it counts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.admission.view.offers import Offers
from tessera.core.resources import is_any_gpu
from tessera.kube.view.grace import NodesWithGrace
from tessera.kube.view.live import read_node
from tests.build import resource
from tests.kube.clock import FakeClock

ONE, TWO, THREE, GPU = resource("1g.10gb"), resource("2g.20gb"), resource("3g.30gb"), resource("gpu")
STATE, COUNT, PRODUCT = "nvidia.com/mig.config.state", "nvidia.com/gpu.count", "nvidia.com/gpu.product"
EIGHT = {TWO + ".count": "8"}
CARDS = {PRODUCT: "NVIDIA-H999-70GB", COUNT: "4"}  # which stands in no table
DEVICES, ONE = "tessera.dev/devices", resource("1g.10gb")
REAL = {PRODUCT: "NVIDIA-A100-SXM4-80GB", COUNT: "4"}
LAYOUT = """
version: v1
mig-configs:
  selected:
  - devices: [0, 1, 2, 3]
    mig-enabled: true
    mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]
"""


def raw(labels=None, layout=None, capacity=None, ready=True, **allocatable) -> bytes:
    annotations = {} if layout is None else {"run.ai/mig.config": layout}
    amounts = {"cpu": "8", **{resource(name): str(n) for name, n in allocatable.items()}}
    held = {resource(name): str(n) for name, n in (capacity or {}).items()}
    return json.dumps(
        {
            "metadata": {"name": "n", "labels": labels or {}, "annotations": annotations},
            "status": {
                "allocatable": amounts,
                "capacity": held,
                "conditions": [{"type": "Ready", "status": str(ready)}],
            },
        }
    ).encode()


class Replica:
    """A replica that has just started: it reads nodes as the webhook does."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.offers = Offers()
        self.nodes = NodesWithGrace(self.offers, self.clock)

    def sees(self, *args, **options) -> dict[str, int]:
        """A node comes from the API server; what is offered then."""
        self.nodes.put(read_node(raw(*args, **options), is_any_gpu, self.offers.nodes))
        return self.offers.anywhere()

    def later(self, seconds: float) -> dict[str, int]:
        """What is offered so much later."""
        self.clock.time += seconds
        self.nodes.expire()
        return self.offers.anywhere()


@pytest.mark.parametrize(
    ("labels", "options", "offered"),
    [
        (EIGHT, {}, {TWO: 8}),
        (EIGHT, {"2g.20gb": 0}, {TWO: 8}),
        ({**EIGHT, COUNT: "4", ONE + ".count": "28"}, {}, {TWO: 8, ONE: 28}),
        (EIGHT, {"2g.20gb": 5}, {TWO: 5}),  # what is allocatable is so
        (EIGHT, {"capacity": {"2g.20gb": 6}}, {TWO: 6}),  # and so is what the capacity has
        ({**EIGHT, ONE + ".count": "28"}, {"1g.10gb": 28}, {TWO: 8, ONE: 28}),
        ({TWO + ".count": "0"}, {}, {}),
        ({TWO + ".count": "-8"}, {}, {}),
        ({TWO + ".count": "many"}, {}, {}),
        ({TWO + ".count": "9" * 63}, {}, {}),
        ({"nvidia.com/mig-odd.count": "8"}, {}, {}),
        ({TWO + ".memory": "20000"}, {}, {}),
        # whole GPUs, where nothing says that their cards are cut
        ({COUNT: "4"}, {}, {GPU: 4}),
        ({COUNT: "4", "nvidia.com/mig.config": "all-disabled"}, {}, {GPU: 4}),
        ({COUNT: "4", "nvidia.com/mig.config": "all-1g.10gb"}, {}, {}),
        ({COUNT: "4"}, {"1g.10gb": 28}, {ONE: 28}),
        ({COUNT: "4"}, {"layout": "odd"}, {}),
        # shares by another name are neither profiles nor GPUs; by the same name they are what they were
        ({**EIGHT, TWO + ".replicas": "4", TWO + ".product": "H200-MIG-2g.20gb"}, {}, {}),
        ({**EIGHT, TWO + ".replicas": "4", TWO + ".product": "H200-MIG-2g.20gb-SHARED"}, {}, {TWO: 8}),
        ({**EIGHT, TWO + ".replicas": "1"}, {}, {TWO: 8}),
        ({COUNT: "4", "nvidia.com/gpu.replicas": "4", PRODUCT: "Tesla-T4"}, {}, {}),
        # the layout, where labels count no slices and the status has nothing
        (CARDS, {"layout": LAYOUT}, {TWO: 8, THREE: 4}),
        (CARDS, {"layout": "2g.20gb=2"}, {TWO: 8}),
        ({**CARDS, **EIGHT}, {"layout": "1g.10gb=5"}, {TWO: 8}),
        (CARDS, {"layout": LAYOUT, "gpu": 4}, {GPU: 4}),
        (CARDS, {"layout": LAYOUT + "\n#" + " " * 16384}, {}),
        ({}, {"layout": LAYOUT}, {TWO: 8, THREE: 4}),
        ({}, {"layout": "2g.20gb=2"}, {TWO: 2}),  # of one card: nobody says how many there are
        ({**CARDS, "nvidia.com/mig.strategy": "single"}, {"layout": "2g.20gb=3"}, {}),
        (
            {PRODUCT: "NVIDIA-H200-70GB", COUNT: "4", "nvidia.com/mig.strategy": "single"},
            {"layout": "2g.20gb=3"},
            {},
        ),
        ({PRODUCT: "NVIDIA-H200-70GB", COUNT: "4"}, {"layout": LAYOUT}, {TWO: 8, THREE: 4}),
        (REAL, {"layout": "2g.20gb=3"}, {TWO: 12}),
        ({PRODUCT: REAL[PRODUCT]}, {"layout": LAYOUT.replace("0, 1, 2, 3", "900")}, {TWO: 2, THREE: 1}),
        (REAL, {"layout": "2g.20gb=9"}, {}),  # no such card has room for it
        (REAL, {"layout": LAYOUT}, {}),  # nor is there a 3g.30gb
        (
            REAL,
            {"layout": LAYOUT.replace("2g.20gb, 2g.20gb, 3g.30gb", "2g.20gb").replace("1, 2, 3", "1")},
            {TWO: 2, GPU: 2},
        ),
        ({}, {}, {}),
    ],
)
def test_what_a_node_is_said_to_have(labels, options, offered):
    """Labels, then the layout, then the number of whole GPUs; never more than can be read, nor what is offered already."""
    assert Replica().sees(labels, **options) == offered


def test_it_counts_for_the_grace():
    """Two minutes from the first sight, while the node is Ready; what is said later is no first sight."""
    replica = Replica()
    assert replica.sees(EIGHT, ready=False) == {TWO: 8}
    assert replica.later(10_000) == {TWO: 8}
    assert replica.sees(EIGHT) == {TWO: 8}
    assert replica.later(119) == {TWO: 8}
    assert replica.sees({**EIGHT, "beat": "2"}) == {TWO: 8}
    assert replica.later(2) == {}
    assert replica.sees({**EIGHT, "beat": "3"}) == {}
    assert replica.sees({**EIGHT, ONE + ".count": "28"}) == {}
    assert replica.sees(EIGHT, **{"2g.20gb": 8}) == {TWO: 8}


def test_devices_that_come_back_are_what_counts():
    """The plugin is there again: its number counts, and when it goes a second time, the grace is a new one."""
    replica = Replica()
    replica.sees(EIGHT)
    assert replica.later(100) == {TWO: 8}
    assert replica.sees(EIGHT, **{"2g.20gb": 7}) == {TWO: 7}
    assert replica.sees(EIGHT, **{"2g.20gb": 0}) == {TWO: 7}
    assert replica.later(119) == {TWO: 7}


def test_it_ends_with_a_new_layout():
    """A node that is re-cut within the two minutes has what its new labels count, once its plugin offers it."""
    replica = Replica()
    assert replica.sees({**EIGHT, STATE: "success"}) == {TWO: 8}
    assert replica.sees({**EIGHT, STATE: "pending"}) == {TWO: 8}
    assert replica.sees({ONE + ".count": "28", STATE: "pending"}) == {TWO: 8}
    assert replica.sees({ONE + ".count": "28", STATE: "success"}) == {}
    assert replica.sees({ONE + ".count": "28", STATE: "success"}, **{"1g.10gb": 28}) == {ONE: 28}


def test_without_a_past():
    """Who keeps no view over time goes by the status alone."""
    assert not read_node(raw({**CARDS, **EIGHT}, LAYOUT)).offer.counts
    assert read_node(raw(EIGHT, capacity={"2g.20gb": 6})).offer.counts == ((TWO, 6),)


@pytest.mark.parametrize(
    ("labels", "capacity", "counts"),
    [
        ({DEVICES: "dra"}, {"2g.20gb": 6, "gpu": 1}, ()),
        ({DEVICES: "plugin"}, {"2g.20gb": 6}, ((TWO, 6),)),
        ({STATE: "success", ONE + ".count": "7"}, {"2g.20gb": 6}, ()),
        ({STATE: "pending", ONE + ".count": "7"}, {"2g.20gb": 6}, ((TWO, 6),)),
        ({STATE: "success", TWO + ".count": "6"}, {"2g.20gb.shared": 12}, ((TWO + ".shared", 12),)),
    ],
    ids=["moved to DRA", "moved back", "cut", "being cut", "shared"],
)
def test_a_capacity_of_the_past_is_no_offer(labels, capacity, counts):
    """The kubelet remembers a plugin for five minutes: what its node has given up is not away for a moment, for those who know no past."""
    assert read_node(raw(labels, capacity=capacity)).offer.counts == counts


def test_a_node_that_moves_to_dra():
    """To a replica that saw it, what the plugin offered counts for two minutes: DRA may serve it by then. The capacity stays for longer."""
    replica = Replica()
    assert replica.sees(**{"2g.20gb": 8}) == {TWO: 8}
    assert replica.sees({DEVICES: "dra"}, capacity={"2g.20gb": 8}, **{"2g.20gb": 0}) == {TWO: 8}
    assert replica.later(119) == {TWO: 8}
    assert replica.later(2) == {}


texts = (
    st.text(max_size=40)
    | st.sampled_from(
        ["{", "[]", "null", '{"0": [{"position": 0, "gpu_instance_id": 99}]}', '{"-1": []}', "7", LAYOUT]
    )
    | st.from_regex(r"[0-9a-z]{0,3}g\.[0-9]{0,12}gb=[0-9]{0,12}", fullmatch=True)
)


@given(
    st.dictionaries(st.sampled_from([COUNT, PRODUCT, STATE, TWO + ".count", TWO + ".replicas"]), texts),
    st.dictionaries(st.sampled_from(["run.ai/mig.config", "run.ai/mig-mapping"]), texts),
)
def test_a_node_that_says_nonsense_is_read(labels, annotations):
    """Whatever labels and annotations say, the node is read, and no count is out of all proportion."""
    one = {"metadata": {"name": "n", "labels": labels, "annotations": annotations}, "status": {}}
    offer = read_node(json.dumps(one).encode(), is_any_gpu, ()).offer
    assert all(0 < count < 10**6 for _, count in offer.counts)
