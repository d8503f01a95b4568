"""What is away for a moment stays; what is gone for good goes."""

import asyncio
from dataclasses import replace

import pytest

from tessera.core.admission.view.offers import Offers
from tessera.core.dra.pools import Pools
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import Node
from tessera.kube.view.grace import NodesWithGrace
from tessera.kube.watch.table import Key
from tests.build import amounts, resource
from tests.kube.clock import FakeClock

TWO = resource("2g.20gb")
STATE = "nvidia.com/mig.config.state"
COUNTED = {STATE: "success", "nvidia.com/gpu.count": "4", TWO + ".count": "8"}


class _Served(Pools):
    """What DRA serves, as a test says it."""

    def __init__(self) -> None:
        super().__init__(lambda *_: True)
        self.replace_classes([DeviceClass("two", resource=TWO)])
        self.now: dict[str, int] = {}
        self.asked = 0  # how often it was asked for

    def served(self, node: Node) -> dict[str, int]:
        self.asked += 1
        return self.now


class Stage:
    """Nodes as the API server has them, and what is offered then."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.offers = Offers()
        self.pools = _Served()
        self.nodes = NodesWithGrace(self.offers, self.clock, self.pools)

    def update(self, *, capacity=None, labels=None, ready=True, **has) -> None:
        """The node's status is this now; `capacity` is what it has and cannot give."""
        self.nodes.put(
            Node("n", labels or {}, (), amounts({"cpu": 8, **has}), amounts(capacity or {}), ready=ready)
        )

    def later(self, seconds: float) -> dict[str, int]:
        """What is offered so much later."""
        self.clock.time += seconds
        self.nodes.expire()
        return self.offers.anywhere()


@pytest.fixture
def stage():
    """A cluster with a node that offers 8 × 2g.20gb."""
    made = Stage()
    made.update(**{"2g.20gb": 8})
    return made


def test_a_node_that_time_does_not_change(stage):
    """Nothing is worked out at a tick where no grace period ends, however long something stays away."""
    stage.update(capacity={"2g.20gb": 8}, **{"2g.20gb": 0})
    stage.later(1)
    before = stage.pools.asked
    assert [stage.later(1) for _ in range(100)] == [{TWO: 8}] * 100
    assert stage.pools.asked == before
    assert stage.later(30) == {}
    stage.later(1)
    before = stage.pools.asked
    assert [stage.later(1) for _ in range(100)] == [{}] * 100
    assert stage.pools.asked == before


@pytest.mark.parametrize("gone", [{"2g.20gb": 0}, {}])
def test_a_plugin_restarts(stage, gone):
    """What is at 0, or gone, still counts in the quantity that it had, for two minutes; and is as new once it is back."""
    version = stage.offers.version
    stage.update(**gone)
    assert stage.later(0) == {TWO: 8}
    assert stage.later(119) == {TWO: 8}
    stage.update(**{"2g.20gb": 8})
    stage.update(**gone)
    assert stage.later(119) == {TWO: 8}
    before = stage.offers.version
    assert stage.later(2) == {}
    assert stage.offers.version > before >= version, "remembered answers go"
    assert stage.later(1) == {}
    stage.update(**{"2g.20gb": 7})
    assert stage.later(0) == {TWO: 7}


def test_capacity_that_cannot_be_given(stage):
    """Capacity without allocatable counts from when it is first seen, for as long as the grace; a "0" that lasts is no offer."""
    stage.nodes.replace(
        [Node("m", allocatable=amounts({"1g.10gb": 0}), unavailable=amounts({"1g.10gb": 28}))]
    )
    assert stage.later(119) == {resource("1g.10gb"): 28}
    assert stage.later(2) == {}
    again = Node("m", {"beat": "2"}, (), amounts({"1g.10gb": 0}), amounts({"1g.10gb": 28}))
    stage.nodes.put(again)
    assert stage.later(0) == {}, "a heartbeat is no new grace"
    stage.nodes.replace([again])
    assert stage.later(0) == {}, "nor is a relist"


def test_time_counts_while_the_node_is_ready(stage):
    """What a node offered last stands while nothing is heard of it."""
    stage.update(**{"2g.20gb": 0})
    assert stage.later(100) == {TWO: 8}
    stage.update(ready=False, **{"2g.20gb": 0})
    assert stage.later(10_000) == {TWO: 8}
    stage.update(ready=True, **{"2g.20gb": 0})
    assert stage.later(19) == {TWO: 8}
    assert stage.later(2) == {}


@pytest.mark.parametrize(
    ("labels", "offered"),
    [
        ({**COUNTED, TWO + ".count": "0"}, {}),
        ({STATE: "success", "nvidia.com/gpu.count": "4"}, {}),
        ({STATE: "success"}, {}),  # they counted it before
        (COUNTED, {TWO: 8}),  # a restart: the layout is as it was
        ({**COUNTED, STATE: "pending", TWO + ".count": "0"}, {TWO: 8}),  # not done yet
        ({"nvidia.com/gpu.count": "4"}, {TWO: 8}),  # no label speaks of a layout
    ],
)
def test_a_node_that_was_cut_anew(labels, offered):
    """A layout that is done, and labels that count no such slices any more: they are gone at once."""
    stage = Stage()
    stage.update(labels=COUNTED, **{"2g.20gb": 8})
    stage.update(labels=labels, **{"2g.20gb": 0})
    assert stage.later(0) == offered


def test_labels_before_devices():
    """A node that shows its new layout before the kubelet takes the old devices away is no restart either."""
    stage = Stage()
    new = {STATE: "success", "nvidia.com/gpu.count": "4", resource("1g.10gb") + ".count": "28"}
    stage.update(labels=COUNTED, **{"2g.20gb": 8})
    stage.update(labels=new, **{"2g.20gb": 8})
    stage.update(labels=new, **{"2g.20gb": 0, "1g.10gb": 28})
    assert stage.later(0) == {resource("1g.10gb"): 28}


def test_devices_before_labels():
    """Nor one whose labels come later: it ends when they come."""
    stage = Stage()
    stage.update(labels=COUNTED, **{"2g.20gb": 8})
    stage.update(labels=COUNTED, **{"2g.20gb": 0, "1g.10gb": 28})
    assert stage.later(0) == {TWO: 8, resource("1g.10gb"): 28}
    stage.update(
        labels={STATE: "success", resource("1g.10gb") + ".count": "28"}, **{"2g.20gb": 0, "1g.10gb": 28}
    )
    assert stage.later(0) == {resource("1g.10gb"): 28}


def test_a_layout_that_takes_its_time():
    """Labels that stop counting while the layout is pending have counted before all the same, however long it takes."""
    stage = Stage()
    stage.update(labels=COUNTED, **{"2g.20gb": 8})
    stage.update(labels={STATE: "pending"}, **{"2g.20gb": 8})
    assert stage.later(1000) == {TWO: 8}
    stage.update(labels={STATE: "pending"}, capacity={"2g.20gb": 8}, **{"2g.20gb": 0})
    assert stage.later(1) == {TWO: 8}
    stage.update(labels={STATE: "success"}, capacity={"2g.20gb": 8}, **{"2g.20gb": 0})
    assert stage.later(0) == {}
    stage.later(1000)
    stage.update(labels={STATE: "success", "beat": "2"}, capacity={"2g.20gb": 8}, **{"2g.20gb": 0})
    assert stage.later(0) == {}, "nor does it come back"


@pytest.mark.parametrize(
    "labels",
    [
        {STATE: "success", "nvidia.com/gpu.count": "4", resource("1g.10gb") + ".count": "28"},
        {STATE: "success", "nvidia.com/gpu.count": "4", TWO + ".count": "0"},
        {STATE: "success"},
    ],
)
def test_a_layout_speaks_of_what_its_labels_counted(labels):
    """What the labels never counted has its grace: of another driver's devices a layout that is done says nothing."""
    stage = Stage()
    stage.update(labels=labels, **{"2g.20gb": 8})
    stage.update(labels=labels, **{"2g.20gb": 0})
    assert stage.later(119) == {TWO: 8}
    assert stage.later(2) == {}
    fresh = Stage()
    fresh.update(labels=labels, capacity={"2g.20gb": 8}, **{"2g.20gb": 0})
    assert fresh.later(119) == {TWO: 8}


def test_devices_that_outlive_their_labels():
    """What is there for longer than the grace after the labels stopped counting it is not what they counted."""
    stage = Stage()
    stage.update(labels=COUNTED, **{"2g.20gb": 8})
    stage.update(labels={STATE: "success"}, **{"2g.20gb": 8})
    assert stage.later(121) == {TWO: 8}
    stage.update(labels={STATE: "success"}, **{"2g.20gb": 0})
    assert stage.later(119) == {TWO: 8}
    assert stage.later(2) == {}


def test_labels_are_forgotten_with_their_node():
    """A node of the same name begins again: what its labels say was counted by none before."""
    for removed in (lambda nodes: nodes.delete(Key("", "n")), lambda nodes: nodes.replace([])):
        stage = Stage()
        stage.update(labels=COUNTED, **{"2g.20gb": 8})
        stage.update(labels={STATE: "success"}, **{"2g.20gb": 8})
        removed(stage.nodes)
        stage.update(labels={STATE: "success"}, **{"2g.20gb": 8})
        stage.update(labels={STATE: "success"}, **{"2g.20gb": 0})
        assert stage.later(1) == {TWO: 8}


def test_a_node_that_is_deleted(stage):
    """Nothing of it stays, whether it is deleted or missing from a new list."""
    stage.update(**{"2g.20gb": 0})
    stage.nodes.delete(Key("", "n"))
    assert stage.later(0) == {}
    stage.update(**{"2g.20gb": 8})
    stage.update(**{"2g.20gb": 0})
    stage.nodes.replace([])
    assert stage.later(0) == {}
    stage.update(**{"2g.20gb": 0})
    assert stage.later(0) == {}, "a node of the same name begins anew"


def test_other_resources_pass_too(stage):
    """Network cards have plugins that restart as well."""
    stage.update(**{"2g.20gb": 8, "rdma/hca": 4})
    stage.update(**{"2g.20gb": 8, "rdma/hca": 0})
    assert stage.offers.nodes["n"].unavailable == amounts({"rdma/hca": 4})
    stage.later(121)
    assert not stage.offers.nodes["n"].unavailable


def test_less_is_less(stage):
    """Only what is gone altogether is away: a device that became unhealthy is not."""
    stage.update(**{"2g.20gb": 7})
    assert stage.later(0) == {TWO: 7}


def test_the_operator_sets_the_grace(stage):
    """Another time, or none."""
    stage.nodes.grace = 10.0
    stage.update(**{"2g.20gb": 0})
    assert stage.later(9) == {TWO: 8}
    assert stage.later(2) == {}
    stage.nodes.grace = 0.0
    stage.update(**{"2g.20gb": 8})
    stage.update(**{"2g.20gb": 0})
    assert stage.offers.anywhere() == {}


def test_of_nodes_that_were_not_read_the_rest_is_remembered(stage):
    """A node that has nothing left is read no further: its labels are those it had."""
    stage.update(labels={"zone": "a"}, **{"2g.20gb": 8})
    stage.nodes.put(Node("n"))
    assert stage.later(0) == {TWO: 8}
    assert stage.offers.nodes["n"].labels == {"zone": "a"}
    stage.nodes.put(Node("n"))
    assert stage.later(121) == {}


async def test_the_clock_is_looked_at_by_itself(stage):
    """What is away goes when its time is over, though the API server says nothing; and no clock is set while nothing is away."""
    running = asyncio.create_task(stage.nodes.run())
    await asyncio.sleep(0)
    assert stage.clock.slept == []
    stage.update(**{"2g.20gb": 0})
    for _ in range(121):
        await stage.clock.pass_sleep(1.0)
    assert stage.offers.anywhere() == {}
    await stage.clock.pass_sleep(1.0)
    looks = len(stage.clock.slept)
    await asyncio.sleep(0)
    assert len(stage.clock.slept) == looks
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_nodes_that_stay_the_same_cost_nothing(stage):
    """A heartbeat leaves the version, and the very node that was there."""
    before, version = stage.offers.nodes["n"], stage.offers.version
    stage.nodes.put(replace(before, ready=False))
    assert (stage.offers.nodes["n"], stage.offers.version) == (before, version)


@pytest.fixture
def dra():
    """A cluster with a node where DRA serves 3 × 2g.20gb."""
    made = Stage()
    made.pools.now = {TWO: 3}
    made.update()
    return made


def serves(stage, **now):
    stage.pools.now = {resource(name): number for name, number in now.items()}
    stage.nodes.refresh(frozenset({"n"}))


def test_slices_that_the_kubelet_deletes(dra):
    """What DRA served last still counts for two minutes, as DRA's; and is as new once the slices are back."""
    serves(dra)
    assert dra.later(119) == {TWO: 3}
    assert dra.offers.nodes["n"].offer.dra == {TWO}
    serves(dra, **{"2g.20gb": 2})
    assert dra.later(300) == {TWO: 2}
    serves(dra)
    assert dra.later(119) == {TWO: 2}
    assert dra.later(2) == {}
    assert dra.later(2) == {}


def test_slices_of_a_driver_that_no_label_counts(dra):
    """A node's labels count its plugin's devices; when the kubelet deletes the slices, DRA's have their grace."""
    one = resource("1g.10gb")
    dra.update(
        labels={STATE: "success", "nvidia.com/gpu.count": "4", one + ".count": "28"}, **{"1g.10gb": 28}
    )
    serves(dra)
    assert dra.later(119) == {TWO: 3, one: 28}
    assert dra.later(2) == {one: 28}


@pytest.mark.parametrize("first", ["labels", "slices"])
def test_slices_of_a_node_that_was_cut_anew(dra, first):
    """Where labels counted what DRA served, and a layout that is done has it no longer, it ends at once."""
    dra.update(labels=COUNTED)
    if first == "slices":
        serves(dra)
        assert dra.later(1) == {TWO: 3}
    dra.update(labels={STATE: "success", "nvidia.com/gpu.count": "4"})
    serves(dra)
    assert dra.later(0) == {}


def test_slices_that_are_gone_for_good(dra):
    """It ends at once where the class is gone, or the node; and a node that is not Ready keeps what it had."""
    dra.update(ready=False)
    serves(dra)
    assert dra.later(1000) == {TWO: 3}
    dra.pools.replace_classes([])
    serves(dra)
    assert dra.later(0) == {}
    dra.nodes.delete(Key("", "n"))
    serves(dra, **{"2g.20gb": 2})
    assert dra.later(0) == {}


def test_from_a_plugin_to_dra(stage):
    """A node that moves from the device plugin to DRA offers what the scheduler takes there."""
    serves(stage, **{"2g.20gb": 3})
    assert (stage.later(0), stage.offers.nodes["n"].offer.dra) == ({TWO: 8}, set())
    stage.update(**{"2g.20gb": 0})
    assert (stage.later(0), stage.offers.nodes["n"].offer.dra) == ({TWO: 3}, {TWO})
