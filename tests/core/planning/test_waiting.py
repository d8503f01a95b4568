"""Who waits for what: free devices first, then the demand, then those whom no layout helps."""

import tracemalloc
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.capacity import PodUse, pod_use
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.pod import Container, Pod
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Taint, Toleration
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.kinds import QueuedProfile
from tessera.core.planning.summary import explain_waiting
from tessera.core.planning.waiting import NodeRoom, allowed_nodes, groups_of, sort_out
from tessera.core.requests.record import RECORD_ANNOTATION
from tessera.core.resources import PODS
from tests.build import GPU, MIG

SINCE = "2026-11-14T00:00:00Z"
SMALL, BIG = MIG + "1g.10gb", MIG + "3g.30gb"


def use(name: str, where: Pod | None = None, node: str = "", record: str = "", **amounts: str) -> PodUse:
    """A pod that asks for `small=1`, `big=1`, `cpu=2`."""
    names = {"small": SMALL, "big": BIG, "gpu": GPU}
    asks = {names.get(key, key): Quantity.parse(value) for key, value in amounts.items()}
    one = Pod(
        "ml", name, {RECORD_ANNOTATION: record}, containers=(Container("main", asks, asks),), node_name=node
    )
    found = pod_use(one, "", keep=PODS.__ne__)
    return replace(found, created="2026-11-15T08:00:00Z", where=where or Pod())


def room(
    name: str, taints: tuple[Taint, ...] = (), labels: dict[str, str] | None = None, **free: Number
) -> NodeRoom:
    names = {"small": SMALL, "big": BIG}
    amounts = {names.get(key, key): value for key, value in free.items()}
    return NodeRoom(Node(name, labels or {}, taints), amounts)


ZONE_A = Pod(node_selector={"zone": "a"})
ZONE_B = Pod(required_terms=(NodeSelectorTerm((Requirement("zone", "In", ("b",)),)),))
TAINT = Taint("dedicated", "research")


@pytest.mark.parametrize(
    ("uses", "rooms", "free", "wanted", "told"),
    [
        # what is free is no demand
        (
            [use("a", small="1"), use("b", small="1")],
            [room("n", small=1)],
            ["ml/a"],
            {QueuedProfile(MigProfile(1, 10), 1): 1},
            ["1 waiting pod could go to free devices (1 × 1g.10gb): no layout is needed for it"],
        ),
        # nor is it free for a pod that may not go there
        (
            [use("a", ZONE_A, small="1")],
            [room("n", labels={"zone": "b"}, small=5), room("m", labels={"zone": "a"}, small=0)],
            [],
            {QueuedProfile(MigProfile(1, 10), 1): 1},
            [],
        ),
        # the ones with the fewest nodes to go to choose first
        (
            [use("any", small="1"), use("picky", ZONE_B, small="1")],
            [room("n", labels={"zone": "b"}, small=1), room("m", small=1)],
            ["ml/any", "ml/picky"],
            {},
            ["2 waiting pods could go to free devices (2 × 1g.10gb): no layout is needed for them"],
        ),
        # taints, and those who tolerate them
        (
            [use("a", small="1"), use("b", Pod(tolerations=(Toleration("dedicated", "Exists"),)), small="1")],
            [room("n", (TAINT,), small=2)],
            ["ml/b"],
            {},
            [
                "1 waiting pod could go to free devices (1 × 1g.10gb): no layout is needed for it",
                "no layout helps pod ml/a, 1 × 1g.10gb: taint dedicated=research:NoSchedule is not tolerated (1 node)",
            ],
        ),
        # what else a pod asks for: cpu runs out on the node that has devices, and the other one could be cut
        (
            [use("a", small="1", cpu="2"), use("b", small="1", cpu="2")],
            [room("n", small=2, cpu=3), room("m", cpu=8)],
            ["ml/a"],
            {QueuedProfile(MigProfile(1, 10), 1): 1},
            ["1 waiting pod could go to free devices (1 × 1g.10gb): no layout is needed for it"],
        ),
        (
            [use("a", big="1", cpu="100", memory="1Gi")],
            [room("n", big=1, cpu=Fraction(191, 2), memory=2**31)],
            [],
            {},
            ["no layout helps pod ml/a, 1 × 3g.30gb: each asks for 100 cpu, and no node that they may use has more than 95500m left"],
        ),
        (
            [use("a", big="1", cpu="4", memory="4Gi")],
            [room("n", cpu=2, memory=2**33), room("m", cpu=8, memory=2**31)],
            [],
            {},
            ["no layout helps pod ml/a, 1 × 3g.30gb: no node that they may use has all the other resources that they ask for"],
        ),
        # a node that does not say how much cpu it has is not one without
        ([use("a", big="1", cpu="4")], [room("n")], [], {QueuedProfile(MigProfile(3, 30), 1): 1}, []),
        ([use("a", big="1")], [], [], {}, ["no layout helps pod ml/a, 1 × 3g.30gb: there are no nodes with GPUs"]),
        # whole GPUs are no matter of layouts
        ([use("a", gpu="1")], [room("n")], [], {}, []),
        # who fell back and runs counts with what it asked for first, after those who wait
        (
            [use("fell", node="n", record="3g.30gb->1g.10gb", small="1"), use("waits", big="1")],
            [room("n", big=1)],
            ["ml/waits"],
            {QueuedProfile(MigProfile(3, 30), 1): 1},
            ["1 waiting pod could go to free devices (1 × 3g.30gb): no layout is needed for it"],
        ),
        # who fell back and waits could go to what it asks for now; else it counts with what it asked for first
        ([use("a", record="3g.30gb->1g.10gb", small="1")], [room("n", small=1)], ["ml/a"], {}, ["1 waiting pod could go to free devices (1 × 3g.30gb): no layout is needed for it"]),
        ([use("a", record="3g.30gb->1g.10gb", small="1")], [room("n")], [], {QueuedProfile(MigProfile(3, 30), 1): 1}, []),
        # as many as the pods that are reported, in groups
        (
            [use(f"a{number}", ZONE_A, big="1") for number in range(5)],
            [room("n"), room("m")],
            [],
            {},
            ["no layout helps 5 pods (ml/a0, ml/a1, ml/a2 and 2 more), 5 × 3g.30gb: nodeSelector wants zone=a, the node has no such label (2 nodes)"],
        ),
    ],
)  # fmt: skip
def test_who_waits_for_what(uses, rooms, free, wanted, told):
    """Pods and nodes give who could go now, what to plan for, and whom nothing helps."""
    found = sort_out(groups_of(uses, SINCE), rooms)
    assert sorted(name for group in found.free for name in group.names) == free
    assert found.wanted == wanted
    assert explain_waiting(found) == told


def test_queues_are_by_the_nodes_that_could_take_them():
    """Pods that may go to the same nodes are one queue, and a node serves the queues of those who may go there."""
    uses = [use("any", big="1"), use("other", small="1"), use("picky", ZONE_A, big="2")]
    found = sort_out(groups_of(uses, SINCE), [room("n"), room("m", labels={"zone": "a"})])
    assert found.wanted == {
        QueuedProfile(MigProfile(3, 30), 1): 1,
        QueuedProfile(MigProfile(1, 10), 1): 1,
        QueuedProfile(MigProfile(3, 30), 2): 2,
    }
    assert found.queues == {"n": frozenset({1}), "m": frozenset({1, 2})}


def test_old_fallbacks_are_no_demand():
    """Pods that fell back before the time that counts, or end, wish for nothing."""
    new = use("a", node="n", record="3g.30gb->1g.10gb", small="1")
    old, ending = replace(new, created="2026-11-13T08:00:00Z"), replace(new, name="b", ending=True)
    assert groups_of([new], SINCE)
    assert groups_of([old, ending], SINCE) == []


def test_fault_64_why_nodes_exclude_pods_is_kept_as_one_sentence_for_each_group():
    """Each of thousands of nodes says it in its own words: kept for hundreds of groups, these would take more memory than the controller has."""
    rooms = [room(f"n{number}", labels={"host": f"n{number}"}, small=1) for number in range(300)]
    uses = [use(f"{n:03}", Pod(node_selector={"host": f"n{n + 200}"}), small="1") for n in range(300)]
    groups = groups_of(uses, SINCE)
    tracemalloc.start()
    may, why = allowed_nodes(groups, rooms)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(may[0]), why[0], len(may[-1])) == (1, "", 0)
    said = "nodeSelector wants host=n499, the node has host=n0 (1 node; 299 more reasons on others)"
    assert why[-1] == said
    assert kept < 1 << 20


@given(st.data())
def test_every_pod_is_told_of_once_and_nothing_is_given_twice(data):
    """Whatever waits: each pod is free to go, to be planned for or beyond help, and no node gives more than it has."""
    wheres = st.sampled_from([None, ZONE_A, ZONE_B])
    count = data.draw(st.integers(0, 12))
    uses = [
        use(str(number), data.draw(wheres), **{data.draw(st.sampled_from(["small", "big"])): "1"}, cpu=str(data.draw(st.integers(1, 4))))
        for number in range(count)
    ]  # fmt: skip
    rooms = [
        room(f"n{number}", labels={"zone": data.draw(st.sampled_from("abc"))}, small=data.draw(st.integers(0, 3)), big=data.draw(st.integers(0, 3)), cpu=data.draw(st.integers(0, 8)))
        for number in range(data.draw(st.integers(0, 4)))
    ]  # fmt: skip
    found = sort_out(groups_of(uses, SINCE), rooms)
    told = [*found.free, *(group for group, _ in found.hopeless), *(group for group, _ in found.to_plan)]
    assert sorted(name for group in told for name in group.names) == sorted(f"ml/{one.name}" for one in uses)
    assert all(amount >= 0 for one in rooms for amount in one.free.values())
    assert sum(found.wanted.values()) == sum(len(group.names) for group, _ in found.to_plan)


@given(st.data())
def test_a_queue_has_the_nodes_with_room_for_all_that_its_pods_ask_for_beside_devices(data):
    """Many groups may go to the same nodes: each has its own, as if it were alone. A node that does not state its cpu is not one without."""
    asks = st.sampled_from(["1", "3", "5"])
    uses = [use(str(n), small="1", cpu=data.draw(asks), other=data.draw(asks)) for n in range(6)]
    stated = st.fixed_dictionaries({}, optional={"cpu": st.integers(0, 6), "other": st.integers(0, 6)})
    rooms = [room(f"n{number}", **data.draw(stated)) for number in range(4)]
    found = sort_out(groups_of(uses, SINCE), rooms)
    told = {group.names: {n for n, some in found.queues.items() if q in some} for group, q in found.to_plan}
    for group in groups_of(uses, SINCE):
        usable = {one.node.name for one in rooms if one.fits(group.others, 1)}
        assert told.get(group.names, set()) == usable
