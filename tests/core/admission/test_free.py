"""What is free: allocatable, less bound pods, less the rooms of those that wait or were just admitted."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin, Shape, WaitingPod, usage_of
from tessera.core.kubernetes.node import Node, is_other
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import CORDONED, Taint
from tests.build import amounts, container, node, pod, resource
from tests.examples import examples

SMALL, LARGE = resource("1g.10gb"), resource("2g.20gb")
ONE = 10**9


def origin(name="web-", owner="u1"):
    return Origin("default", owner, name)


def bound(where, **asks):
    return BoundPod(where, usage_of(pod(container(**asks))), origin())


def waits(priority=0, created=0.0, verdict="", held=False, name="web-", placed=None, **asks):
    shape = Shape.of(pod(container(**asks), **(placed or {})))
    return WaitingPod(shape, origin(name), priority, created, verdict, held)


def followed(*nodes):
    offers = Offers(nodes)
    return offers, offers.follow_pods()


def at_once(offers, namespace="default"):
    view = offers.now(namespace)
    assert view is not None
    return view


def free(offers, name, what):
    """How many of a resource are free on a node, as decisions see it."""
    view = at_once(offers)
    column = view._others.get(what) if is_other(what) else view.columns.counts.get(what)
    if column is None:
        return 0
    found = column.most(offers._bits[name])
    return found / ONE if is_other(what) else found


def test_nobody_knows_what_is_free_until_pods_are_followed():
    """Without pods there is no view of now; with them there is one, and the view itself stays what is allocatable."""
    offers = Offers([node("a", **{"1g.10gb": 2})])
    assert offers.now() is None
    index = offers.follow_pods()
    index.put_pod("default/x", bound("a", **{"1g.10gb": 1}), 0)
    assert at_once(offers).anywhere() == {SMALL: 1}
    assert offers.anywhere() == {SMALL: 2}
    version = offers.version
    index.remove_pod("default/x")
    assert at_once(offers).anywhere() == {SMALL: 2}
    assert offers.version == version


def test_a_bound_pod_takes_what_it_requests_and_one_place():
    """Cpu, memory, GPUs and a place among the node's pods; with it gone all is back."""
    offers, index = followed(node("a", cpu="4", memory="8Gi", pods="2", **{"1g.10gb": 3}))
    index.put_pod("default/x", bound("a", cpu="1500m", memory="1Gi", **{"1g.10gb": 1}), 0)
    assert [free(offers, "a", what) for what in ("cpu", "memory", "pods", SMALL)] == [2.5, 7 * 2**30, 1, 2]
    index.put_pod("default/y", bound("a", cpu="100m"), 0)
    assert at_once(offers).anywhere() == {}, "nothing is free where no other pod finds a place"
    index.remove_pod("default/x")
    index.remove_pod("default/y")
    assert [free(offers, "a", what) for what in ("cpu", "memory", "pods", SMALL)] == [4, 8 * 2**30, 2, 3]


def test_more_taken_than_there_is_leaves_nothing_and_comes_back_right():
    """Devices went away under their pods: nothing is free, not less than nothing; and when they are back, what is left is."""
    offers, index = followed(node("a", cpu="1", **{"1g.10gb": 3}))
    for number in range(3):
        index.put_pod(f"default/{number}", bound("a", cpu="1", **{"1g.10gb": 1}), 0)
    offers.put(node("a", cpu="1", **{"1g.10gb": 1}))
    assert (free(offers, "a", SMALL), free(offers, "a", "cpu")) == (0, 0)
    offers.put(node("a", cpu="5", **{"1g.10gb": 4}))
    assert (free(offers, "a", SMALL), free(offers, "a", "cpu")) == (1, 2)


def test_pods_count_on_a_node_that_comes_later():
    """A node may be seen after its pods, may lose its GPUs and have them again: its pods count all the same."""
    offers, index = followed()
    index.put_pod("default/x", bound("a", **{"1g.10gb": 1}), 0)
    offers.put(node("a", **{"1g.10gb": 3}))
    assert free(offers, "a", SMALL) == 2
    offers.put(node("a", cpu="1"))
    offers.put(node("b", **{"1g.10gb": 1}))
    assert at_once(offers).anywhere() == {SMALL: 1}
    offers.put(node("a", **{"1g.10gb": 4}))
    assert (free(offers, "a", SMALL), free(offers, "b", SMALL)) == (3, 1)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"taints": (CORDONED,)}, 0),
        ({"ready": False}, 0),
        ({"taints": (Taint("node.kubernetes.io/not-ready", "", "NoExecute"),)}, 0),
        ({"taints": (Taint("mine/busy"),)}, 0),
        ({"taints": (Taint("node.kubernetes.io/disk-pressure", "", "PreferNoSchedule"),)}, 2),
        ({"taints": (Taint("nvidia.com/gpu"),)}, 2),
        ({"taints": (Taint("dedicated"),)}, 2),  # which pods tolerate, or not: no matter of now
        ({}, 2),
    ],
)
def test_a_node_that_takes_no_pods_now_has_nothing_free(change, left):
    """Cordoned, not ready, or with a taint that passes; a GPU vendor's taint is no obstacle. And back again."""
    plain = node("a", **{"1g.10gb": 2})
    offers = Offers([plain])
    offers.follow_pods(("mine/*",))
    offers.put(replace(plain, **change))
    assert at_once(offers).anywhere() == ({SMALL: left} if left else {})
    offers.put(plain)
    assert at_once(offers).anywhere() == {SMALL: 2}


def test_what_is_within_its_grace_is_free_in_full():
    """There things are as without pods: what is away for a moment was not taken by the pods that have it."""
    one = Node("a", allocatable=amounts({"1g.10gb": 1}), unavailable=amounts({"2g.20gb": 2}))
    offers, index = followed(one)
    index.put_pod("default/x", bound("a", **{"2g.20gb": 2}), 0)
    index.put_pod("default/y", bound("a", **{"1g.10gb": 1}), 0)
    assert at_once(offers).anywhere() == {LARGE: 2}


def test_of_what_dra_serves_the_pods_own_requests_are_taken():
    """Extended requests that DRA serves count; where none is left, DRA is not said to have some."""
    offers, index = followed(Node("a", dra={SMALL: 2}))
    index.put_pod("default/x", bound("a", **{"1g.10gb": 1}), 0)
    assert at_once(offers).anywhere() == {SMALL: 1}
    index.put_pod("default/y", bound("a", **{"1g.10gb": 1}), 0)
    assert not at_once(offers).columns.dra


def test_a_pod_that_waits_has_room_on_one_node():
    """The first that has all it asks for; what does not fit has none, and a pod that is held has none."""
    offers, index = followed(node("a", cpu="1", **{"1g.10gb": 2}), node("b", cpu="8", **{"1g.10gb": 2}))
    index.put_pod("default/x", waits(cpu="2", **{"1g.10gb": 1}), 0)
    index.put_pod("default/big", waits(**{"1g.10gb": 3}), 0)
    index.put_pod("default/held", waits(held=True, **{"1g.10gb": 1}), 0)
    assert [index.room_of(f"default/{one}") for one in ("x", "big", "held")] == ["b", "", ""]
    assert [free(offers, one, SMALL) for one in "ab"] == [2, 1]
    assert (len(index.pods), index.waiting, index.rooms) == (3, 2, 1)


def test_a_pod_that_is_bound_gives_its_room_back_and_others_make_way():
    """The scheduler is the judge: where it puts a pod, rooms that do not fit any more are placed again."""
    offers, index = followed(node("a", **{"1g.10gb": 1}), node("b", **{"1g.10gb": 1}))
    index.put_pod("default/x", waits(created=1, **{"1g.10gb": 1}), 0)
    index.put_pod("default/y", waits(created=2, **{"1g.10gb": 1}), 0)
    assert [index.room_of(f"default/{one}") for one in "xy"] == ["a", "b"]
    index.put_pod("default/x", bound("b", **{"1g.10gb": 1}), 0)
    assert [index.room_of(f"default/{one}") for one in "xy"] == ["", "a"]
    assert at_once(offers).anywhere() == {}


def test_what_comes_free_is_given_by_priority_then_age():
    """Not by who came last; and a pod that does not fit is passed over."""
    _, index = followed(node("a", **{"1g.10gb": 1, "2g.20gb": 1}))
    index.put_pod("default/user", bound("a", **{"1g.10gb": 1}), 0)
    index.put_pod("default/young", waits(created=3, **{"1g.10gb": 1}), 0)
    index.put_pod("default/old", waits(created=2, **{"1g.10gb": 1}), 0)
    index.put_pod("default/above", waits(created=4, priority=5, **{"1g.10gb": 1}), 0)
    index.put_pod("default/large", waits(created=0, priority=9, **{"1g.10gb": 2}), 0)
    index.remove_pod("default/user")
    assert index.room_of("default/above") == "a"
    index.remove_pod("default/above")
    assert (index.room_of("default/old"), index.room_of("default/young")) == ("a", "")
    index.remove_pod("default/old")
    assert index.room_of("default/young") == "a"


def test_what_comes_free_at_once_is_given_to_as_many_as_it_serves():
    """Pods of one shape and of others alike."""
    _, index = followed(node("a", **{"1g.10gb": 4}))
    index.put_pod("default/user", bound("a", **{"1g.10gb": 4}), 0)
    for number in range(4):
        index.put_pod(f"default/{number}", waits(created=number, **{"1g.10gb": 1 + number // 3}), 0)
    index.remove_pod("default/user")
    assert [index.room_of(f"default/{number}") for number in range(4)] == ["a", "a", "a", ""]


def test_more_than_one_look_can_take_is_done_in_several():
    """Many pods of many shapes: each look does a part, in order, and in the end all have room that can."""
    offers, index = followed(node("a", cpu="1000", pods="2000", **{"1g.10gb": 1000}))
    index._rooms.shares.least = 1000 * ONE
    index.put_pod("default/user", bound("a", **{"1g.10gb": 1000}), 0)
    for number in range(1000):
        asks = {"cpu": f"{number + 1}m", "1g.10gb": 1}
        index.put_pod(f"default/{number:04}", waits(created=number, **asks), 0)
    index.remove_pod("default/user")
    at_once(offers)
    first = index.rooms
    assert 0 < first < 1000
    assert [index._rooms.holders[f"default/{n:04}"].node for n in (0, first - 1, first)] == ["a", "a", ""]
    while (before := index.rooms) < (at_once(offers), index.rooms)[1]:
        assert index.rooms - before <= first + 1  # the first look also begins the round
    assert (index.rooms, free(offers, "a", SMALL)) == (1000, 0)


def test_a_newcomer_of_higher_priority_takes_the_rooms_of_lower_ones():
    """As many as it needs, the lowest and youngest first; one of equal priority takes none."""
    _, index = followed(node("a", **{"1g.10gb": 3}))
    for number, priority in enumerate([0, -5, 0]):
        index.put_pod(f"default/{number}", waits(created=number, priority=priority, **{"1g.10gb": 1}), 0)
    index.put_pod("default/equal", waits(created=0, priority=-5, **{"1g.10gb": 1}), 0)
    index.put_pod("default/above", waits(created=9, priority=7, **{"1g.10gb": 2}), 0)
    rooms = {one: index.room_of(f"default/{one}") for one in ("0", "1", "2", "equal", "above")}
    assert rooms == {"0": "a", "1": "", "2": "", "equal": "", "above": "a"}


def test_who_waits_for_something_else_gives_its_room_back():
    """The scheduler called it unschedulable while its room was there; it is asked again after 300 s, whatever else is said of it."""
    _, index = followed(node("a", **{"1g.10gb": 1}))
    index.put_pod("default/x", waits(created=1, **{"1g.10gb": 1}), 10)
    index.put_pod("default/y", waits(created=2, **{"1g.10gb": 1}), 10)
    index.put_pod("default/x", waits(created=1, verdict="no volume", **{"1g.10gb": 1}), 11)
    index.expire(12.5)
    assert [index.room_of(f"default/{one}") for one in "xy"] == ["a", ""]
    index.expire(13)
    assert [index.room_of(f"default/{one}") for one in "xy"] == ["", "a"]
    index.remove_pod("default/y")
    index.expire(312)
    assert index.room_of("default/x") == ""
    index.expire(313)
    assert index.room_of("default/x") == "a"
    index.expire(342)
    assert index.room_of("default/x") == "a"
    index.expire(343)
    assert index.room_of("default/x") == "", "unschedulable, with a room for 30 s"
    index.put_pod("default/x", waits(created=1, verdict="no node", **{"1g.10gb": 1}), 350)
    assert index.room_of("default/x") == ""
    index.expire(643)
    assert index.room_of("default/x") == "a"


def test_a_reservation_lasts_until_its_pod_is_seen_or_ten_seconds():
    """What was just admitted is not given twice; its pod takes the room over, bound or not."""
    offers, index = followed(node("a", **{"1g.10gb": 3}))
    admitted = pod(container(**{"1g.10gb": 1}))
    for number in range(3):
        index.reserve(admitted, origin(), float(number))
    assert (index.reservations, at_once(offers).anywhere()) == (3, {})
    index.put_pod("default/other", waits(name="other-", **{"1g.10gb": 1}), 3)
    assert index.reservations == 3, "another owner's pod is not the one"
    index.remove_pod("default/other")
    index.put_pod("default/one", waits(**{"1g.10gb": 1}), 3)
    index.put_pod("default/two", bound("a", **{"1g.10gb": 1}), 3)
    assert (index.reservations, index.room_of("default/one"), at_once(offers).anywhere()) == (1, "a", {})
    index.put_pod("default/one", bound("a", **{"1g.10gb": 1}), 4)
    assert index.reservations == 1, "the same pod again is not another one"
    index.expire(11.9)
    assert at_once(offers).anywhere() == {}
    index.expire(12)
    assert (index.reservations, at_once(offers).anywhere()) == (0, {SMALL: 1})


def test_a_reservation_can_be_given_back():
    """The last one of such a pod: it came again, with more containers."""
    offers, index = followed(node("a", **{"1g.10gb": 3}))
    index.reserve(pod(container(**{"1g.10gb": 2})), origin(), 0)
    index.release(origin("other-"))
    assert at_once(offers).anywhere() == {SMALL: 1}
    index.release(origin())
    index.release(origin())
    assert at_once(offers).anywhere() == {SMALL: 3}


def test_a_pod_does_not_stand_in_its_own_way():
    """A decision about a pod that waits sees its room as free, and nobody else gets it meanwhile."""
    offers, index = followed(node("a", **{"1g.10gb": 1}))
    index.put_pod("default/x", waits(created=1, **{"1g.10gb": 1}), 0)
    index.put_pod("default/y", waits(created=2, **{"1g.10gb": 1}), 0)
    with index.without_room("default/x"):
        assert at_once(offers).anywhere() == {SMALL: 1}
    with index.without_room("default/y"):
        assert at_once(offers).anywhere() == {}
    assert (at_once(offers).anywhere(), index.room_of("default/x")) == ({}, "a")


def test_a_placed_pod_does_not_stand_in_its_own_way():
    """Neither does what a pod has taken of its node count in a decision about it; nobody who waits gets it meanwhile."""
    offers, index = followed(node("a", cpu="2", **{"1g.10gb": 1}))
    index.put_pod("default/x", bound("a", cpu="2", **{"1g.10gb": 1}), 0)
    index.put_pod("default/y", waits(**{"1g.10gb": 1}), 0)
    with index.without_room("default/x"):
        assert (free(offers, "a", SMALL), free(offers, "a", "cpu")) == (1, 2)
    assert (free(offers, "a", SMALL), free(offers, "a", "cpu"), index.room_of("default/y")) == (0, 0, "")


@pytest.mark.parametrize(
    "change",
    [
        node("a", labels={"zone": "x"}, **{"1g.10gb": 1}),
        node("a", labels={"zone": "x"}, taints=(CORDONED,), **{"1g.10gb": 2}),
        node("a", labels={"zone": "x"}, taints=(Taint("dedicated"),), **{"1g.10gb": 2}),
        node("a", labels={"zone": "y"}, **{"1g.10gb": 2}),
        node("a", labels={"zone": "x"}, cpu="1"),
        None,
    ],
)
def test_a_room_moves_when_its_node_is_no_longer_right(change):
    """The node has less, takes no pods, or not this one, or is gone: the pod has room elsewhere, and comes back for more."""
    first = node("a", labels={"zone": "x"}, **{"1g.10gb": 2})
    offers, index = followed(first, node("b", labels={"zone": "x"}, **{"1g.10gb": 2}))
    index.put_pod("default/x", waits(placed={"node_selector": {"zone": "x"}}, **{"1g.10gb": 2}), 0)
    index.put_pod("default/y", waits(placed={"node_selector": {"zone": "x"}}, **{"1g.10gb": 2}), 0)
    assert [index.room_of(f"default/{one}") for one in "xy"] == ["a", "b"]
    offers.put(change) if change is not None else offers.remove("a")
    assert [index.room_of(f"default/{one}") for one in "xy"] == ["", "b"]
    assert free(offers, "b", SMALL) == 0
    offers.put(first)
    assert [index.room_of(f"default/{one}") for one in "xy"] == ["a", "b"]


def test_a_new_list_of_pods_takes_the_place_of_the_old():
    """What is not in it is gone."""
    offers, index = followed(node("a", **{"1g.10gb": 3}))
    index.put_pod("default/x", bound("a", **{"1g.10gb": 1}), 0)
    index.put_pod("default/y", waits(**{"1g.10gb": 1}), 0)
    one, two = ("default/z", waits(**{"1g.10gb": 2})), ("default/x", bound("a", **{"1g.10gb": 1}))
    index.replace_pods([one, two], 1)
    assert (len(index.pods), index.room_of("default/z"), at_once(offers).anywhere()) == (2, "a", {})


# Laws

FIRST = [node(f"n{n}", labels={"zone": "a"}, cpu="4", **{"1g.10gb": 3, "gpu": 1}) for n in (1, 2)]
NODES, PODS = ["n1", "n2", "n3"], [f"default/p{number}" for number in range(7)]
asks = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(["1", "2500m"]), "1g.10gb": st.integers(1, 3), "gpu": st.just(1)}
)
nodes = st.builds(
    lambda name, has, cpu, zone, taints, ready, away: Node(
        name,
        {"zone": zone},
        taints,
        amounts(has | cpu),
        amounts({one: 2 for one in away if one not in has}),
        ready=ready,
    ),
    st.sampled_from(NODES),
    st.dictionaries(st.sampled_from(["1g.10gb", "2g.20gb", "gpu", "1g.10gb.shared"]), st.integers(1, 4)),
    st.sampled_from([{}, {"cpu": "4"}, {"cpu": "4", "pods": "3"}]),
    st.sampled_from("ab"),
    st.sampled_from([(), (), (), (CORDONED,), (Taint("dedicated"),)]),
    st.sampled_from([True, True, True, False]),
    st.just(()) | st.just(("2g.20gb",)),
)
bounds = st.builds(lambda where, asks: bound(where, **asks), st.sampled_from(NODES), asks)
waiting = st.builds(
    lambda priority, created, verdict, zone, asks: waits(
        priority,
        created,
        verdict,
        placed={"node_selector": {"zone": zone}} if zone else {},
        **{"1g.10gb": 1} | asks,
    ),
    st.integers(-1, 1),
    st.integers(0, 3).map(float),
    st.sampled_from(["", "", "no"]),
    st.sampled_from(["", "", "a", "b"]),
    asks,
)
events = st.one_of(
    nodes,
    st.sampled_from(NODES),
    st.tuples(st.sampled_from(PODS), bounds | waiting | waiting),
    st.sampled_from(PODS),
    st.builds(
        lambda space, small, large: pod(container(**{"1g.10gb": small, **large}), namespace=space),
        st.sampled_from(["default", "other"]),
        st.integers(1, 2),
        st.sampled_from([{}, {}, {"2g.20gb": 1}]),
    ),
    st.floats(0.5, 40).map(lambda seconds: -seconds),
)


class Model:
    """The naive one: pods and nodes as they are; nothing incremental."""

    def __init__(self, settled, least=8):
        """`least`: devices that each namespace may hold against others."""
        self.offers, self.now, self.settled = Offers(FIRST), 0.0, settled
        self.index = self.offers.follow_pods()
        self.index._rooms.shares.least = least * ONE
        self.pods = {}

    def happen(self, event):
        if isinstance(event, Node):
            self.offers.put(event)
        elif isinstance(event, tuple):
            self.pods[event[0]] = event[1]
            self.index.put_pod(event[0], event[1], self.now)
        elif isinstance(event, float):
            self.now -= event
            self.index.expire(self.now)
        elif not isinstance(event, str):
            self.index.reserve(event, replace(origin(), namespace=event.namespace), self.now)
        elif event in NODES:
            self.offers.remove(event)
        else:
            self.pods.pop(event, None)
            self.index.remove_pod(event)
        if self.settled:
            self.index.settle()

    def holders(self):
        self.index.settle()
        return self.index._rooms.holders.values()


@settings(max_examples=examples(300))
@given(
    st.lists(events, max_size=30),
    st.booleans(),
    st.sampled_from([8, 1]),
    st.sampled_from(["default", "other"]),
)
def test_free_is_allocatable_less_bound_less_rooms_whatever_came_before(happened, settled, least, space):
    """On each node, of each resource, as each namespace sees it; never less than nothing by our own rooms; each pod that waits has at most one."""
    model = Model(settled, least)
    for event in happened:
        model.happen(event)
    taken: dict[str, Counter[str]] = {}
    kept: dict[str, Counter[str]] = {}
    for one in model.pods.values():
        if isinstance(one, BoundPod):
            taken.setdefault(one.node, Counter()).update(dict(one.usage))
    rooms = [one for one in model.holders() if one.node]
    for one in [one for one in rooms if one.is_seen_by(space)]:
        kept.setdefault(one.node, Counter()).update(dict(one.group.shape.usage))
    view, offers = at_once(model.offers, space), model.offers
    for name, one in offers.nodes.items():
        offer, bit = one.offer, offers._bits.get(name, 0)
        used, room = taken.get(name, Counter()), kept.get(name, Counter())
        if not offer.counts:
            assert not room
            continue
        places = one.allocatable.get("pods", Quantity.parse("9")).number - (used + room)["pods"] // ONE
        closed = not one.ready or CORDONED in one.taints or places <= 0
        for what, count in offer.counts:
            left = count - (0 if what in one.unavailable else -(-(used + room)[what] // ONE))
            assert (
                view.columns.counts[what].most(bit) == max(left, 0)
                if left > 0 and not closed
                else (what not in view.columns.counts or not view.columns.counts[what].most(bit))
            )
            assert not room[what] or left >= 0
        if "cpu" in one.allocatable:
            left = 4 * ONE - (used + room)["cpu"]
            assert view._others["cpu"].most(bit) == max(left, 0)
            assert not room["cpu"] or left >= 0
        assert not room or (one.ready and CORDONED not in one.taints and places >= 0)
    for one in rooms:
        assert offers.for_pod(one.group.shape.placement) & offers._bits[one.node]
    waiting = {key for key, one in model.pods.items() if isinstance(one, WaitingPod)}
    assert {one.key for one in model.holders() if "/" in one.key} == waiting
    assert model.index.rooms == len(rooms)
    for space in ("default", "other"):
        naive: Counter[str] = Counter()
        for _, (by, gpus) in model.index._until.values():
            naive.update({what: amount // ONE for what, amount in gpus if by.namespace == space})
        assert +Counter(model.index.admitted(space)) == naive


@settings(max_examples=examples(200))
@given(st.lists(events, max_size=30))
def test_step_by_step_is_the_same_as_built_at_once(happened):
    """For bound pods: an index that saw every change says what a fresh one of the same objects says."""
    model = Model(settled=True)
    for event in happened:
        model.happen(event)
    for key in [key for key, one in model.pods.items() if isinstance(one, WaitingPod)]:
        model.happen(key)
    model.happen(-100.0)
    fresh = Offers(model.offers.nodes.values())
    fresh.follow_pods().replace_pods(model.pods.items(), 0)

    def says(offers):
        view, rows = at_once(offers), {}
        for name, bit in offers._bits.items():
            counts = {what: column.most(bit) for what, column in view.columns.counts.items()}
            others = {what: column.most(bit) for what, column in view._others.items()}
            rows[name] = {what: n for what, n in counts.items() if n}, others
        return rows, len(view.columns.alike), sorted(view.columns.dra)

    assert says(model.offers) == says(fresh)


@settings(max_examples=examples(200))
@given(st.lists(events, max_size=30), st.sampled_from([8, 1]))
def test_who_has_no_room_finds_none(happened, least):
    """Whoever waits without a room, and is not held back, fits nowhere; and no room of lower priority is in its way."""
    model = Model(settled=False, least=least)
    for event in happened:
        model.happen(event)
    offers, nodes = model.offers, model.index._nodes
    for one in model.holders():
        shape = one.group.shape
        if not one.node and one.block is None:
            may_use = offers.for_pod(shape.placement)
            assert nodes.first(may_use, shape.usage, one.namespace) is None
            for name, rooms in model.index._rooms._on.items():
                seen = [other for other in rooms.values() if other.is_seen_by(one.namespace)]
                lower = [other for other in seen if other.rank[0] > one.rank[0]]
                assert not (lower and nodes.bit(name) & may_use) or not model.index._rooms._would_fit(
                    name, one, lower
                )


@settings(max_examples=examples(200))
@given(st.lists(events, max_size=30), st.sampled_from([8, 1]))
def test_a_room_counts_against_others_as_long_as_its_namespace_has_its_share(happened, least):
    """What a namespace holds beyond its share is its own; the oldest room of these is always beyond it."""
    model = Model(settled=False, least=least)
    for event in happened:
        model.happen(event)
    rooms = [one for one in model.holders() if one.node]
    shared: dict[str, Counter[str]] = {}
    for one in rooms:
        if not one.is_own:
            shared.setdefault(one.namespace, Counter()).update(dict(one.group.shape.gpus))
    shares = model.index._rooms.shares
    assert shares._shared == shared
    assert model.index.own_rooms == sum(one.is_own for one in rooms)
    for space, own in shares._own.items():
        held, oldest = shared.get(space, Counter()), next(iter(own.values()))
        gpus = dict(oldest.group.shape.gpus)
        most = {what: max(least * ONE, model.index._nodes.total(what) // 4) for what in gpus}
        assert any(held[what] + amount > most[what] for what, amount in gpus.items())
