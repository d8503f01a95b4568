"""What one namespace holds against others: up to eight devices or a quarter of the resource; against itself all of it."""

from dataclasses import replace

import pytest

from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin, Shape, WaitingPod, usage_of
from tessera.core.admission.view.shares import MOST_OWN
from tests.build import container, node, pod, resource

SMALL = resource("1g.10gb")
ONE = pod(container(**{"1g.10gb": 1}))
TAKES = usage_of(ONE)


def followed(*nodes):
    offers = Offers(nodes)
    return offers, offers.follow_pods()


def free(offers, namespace):
    """How many are free in the cluster, as decisions in a namespace see it."""
    view = offers.now(namespace)
    assert view is not None
    column = view.columns.counts.get(SMALL)
    return sum(column.most(bit) for bit in offers._bits.values()) if column else 0


def waits(space, created=0.0, **asks):
    shape = Shape.of(pod(container(**{"1g.10gb": 1} | asks), namespace=space))
    return WaitingPod(shape, Origin(space, "", "w-"), 0, created)


@pytest.mark.parametrize(
    ("devices", "admitted", "left_for_others"),
    [
        ([8], 8, 0),  # eight may be held in any cluster
        ([6, 6], 12, 4),
        ([40, 40], 30, 60),  # a quarter
        ([40, 40], 80, 60),
        ([40, 40], 20, 60),
    ],
)
def test_fault_89_what_is_just_admitted_counts_against_others_up_to_a_share(
    devices, admitted, left_for_others
):
    """Creations that a quota refuses afterwards hold rooms for 10 s: all against their own namespace, a share against all others."""
    offers, index = followed(*(node(f"n{n}", **{"1g.10gb": count}) for n, count in enumerate(devices)))
    for _ in range(admitted):
        index.reserve(ONE, Origin("mine", "rs", "w-"), 0)
    for _ in range(2):
        assert free(offers, "mine") == sum(devices) - admitted
        assert free(offers, "other") == left_for_others
    assert index.rooms == admitted
    index.expire(10)
    assert (free(offers, "mine"), free(offers, "other"), index.own_rooms) == (sum(devices), sum(devices), 0)


def test_waiting_pods_hold_a_share_too():
    """Five pods a second that are never placed: others see a quarter less, whatever comes and goes."""
    offers, index = followed(*(node(f"n{n}", **{"1g.10gb": 20}) for n in range(4)))
    for number in range(300):
        index.put_pod(f"bad/{number}", waits("bad", float(number)), number / 5)
        index.remove_pod(f"bad/{number - 70}")
        assert free(offers, "good") >= 60
    assert (free(offers, "good"), free(offers, "bad"), index.own_rooms) == (60, 10, 50)


def test_rooms_of_several_namespaces_may_be_for_the_same_devices():
    """Each sees its own; who is placed takes the device, and whose room does not fit any more loses it."""
    offers, index = followed(node("a", **{"1g.10gb": 16}))
    for space in "xyz":
        for number in range(12):
            index.put_pod(f"{space}/{number}", waits(space, float(number)), 0)
    assert [free(offers, space) for space in ("x", "y", "z", "good")] == [0, 0, 0, 0]
    assert index.rooms == 16, "x has its share, and y: z sees nothing free"
    for number in range(12):
        index.remove_pod(f"y/{number}")
    assert [free(offers, space) for space in ("x", "y", "z", "good")] == [0, 0, 0, 0]
    index.put_pod("good/x", BoundPod("a", usage_of(pod(container(**{"1g.10gb": 16})))), 1)
    assert index.rooms == 0
    index.remove_pod("good/x")
    index.expire(1)
    assert [free(offers, space) for space in ("x", "z", "good")] == [0, 0, 0]


def test_what_is_bound_makes_way_for_the_next_of_the_share():
    """A room that counted against all ends: the oldest that did not takes its place in the share."""
    offers, index = followed(node("a", **{"1g.10gb": 20}))
    for number in range(12):
        index.put_pod(f"x/{number:02}", waits("x", float(number)), 0)
    assert (free(offers, "x"), free(offers, "good"), index.own_rooms) == (8, 12, 4)
    for number in range(12):
        index.put_pod(f"x/{number:02}", BoundPod("a", TAKES), 1)
        held = 12 - number - 1
        assert (free(offers, "x"), free(offers, "good")) == (8, 20 - number - 1 - min(held, 8))
    assert index.own_rooms == 0


def test_what_counts_against_nobody_else_is_bounded():
    """A decision in another namespace looks past every such room, so there are not too many."""
    offers, index = followed(node("a", pods="9999", **{"1g.10gb": 4000}))
    for _ in range(3000):
        index.reserve(ONE, Origin("x", "rs", "w-"), 0)
    assert (index.rooms, index.own_rooms) == (1000 + MOST_OWN, MOST_OWN)
    assert (free(offers, "x"), free(offers, "good")) == (3000 - MOST_OWN, 3000)


def test_a_pod_does_not_stand_in_its_own_way_with_a_room_of_its_own():
    """A decision about a pod that waits sees its room as free, whoever else sees it."""
    offers, index = followed(node("a", **{"1g.10gb": 12}))
    for number in range(12):
        index.put_pod(f"x/{number}", waits("x", float(number)), 0)
    assert index.own_rooms == 4
    with index.without_room("x/11"):
        assert (free(offers, "x"), free(offers, "good")) == (1, 4)
    assert (free(offers, "x"), free(offers, "good")) == (0, 4)
    assert (index.has_room(ONE), index.has_room(pod(container(**{"1g.10gb": 1}), namespace="x"))) == (
        True,
        False,
    )


def test_no_other_pod_takes_the_place_of_a_pod_that_is_decided_about():
    """More pods than one look tries: those that are left are not offered the place that counts as free for a moment."""
    offers, index = followed(node("a", cpu="1", **{"1g.10gb": 2}))
    index.put_pod("x/runs", BoundPod("a", TAKES), 0)
    index.put_pod("x/mine", waits("x", 1.0), 0)
    for number in range(120):  # each of a kind of its own, and none of them fits
        index.put_pod(f"y/{number}", waits("y", 2.0 + number, cpu=f"{number + 2}"), 0)
    for number in range(2):
        index.put_pod(f"y/small-{number}", waits("y", 999.0), 0)
    index.remove_pod("x/runs")
    with index.without_room("x/mine"):
        for _ in range(9):
            assert free(offers, "x") == 2, "its own, and what came free"
    index.expire(1)
    rooms = index.room_of("x/mine"), index.room_of("y/small-0"), index.room_of("y/small-1")
    assert (rooms, index.rooms, free(offers, "x")) == (("a", "a", ""), 2, 0)


def test_room_made_for_a_pod_of_higher_priority_is_enough_for_it():
    """The room that it takes was a share: the one that follows it into the share is in the way, and is given up too."""
    _, index = followed(node("a", cpu="3", **{"1g.10gb": 2}))
    index._rooms.shares.least = 10**9
    index.put_pod("y/share", waits("y", 1.0, cpu="1"), 0)
    index.put_pod("y/own", waits("y", 2.0, cpu="2"), 0)
    assert (index.rooms, index.own_rooms) == (2, 1)
    index.put_pod("x/high", replace(waits("x", 3.0, cpu="3"), priority=5), 0)
    assert [index.room_of(key) for key in ("x/high", "y/share", "y/own")] == ["a", "", ""]
    index.remove_pod("x/high")
    assert (index.room_of("y/share"), index.room_of("y/own"), index.own_rooms) == ("a", "a", 1)


def test_fault_96_a_room_beyond_the_share_takes_none_that_counts_against_all():
    """Its pod has a higher priority; but who does not see its room would take the place again, and so on forever."""
    offers, index = followed(node("a", **{"1g.10gb": 16}))
    index.put_pod("x/low", waits("x", 1.0, **{"1g.10gb": 8}), 0)
    index.put_pod("y/high", replace(waits("y", 2.0, **{"1g.10gb": 9}), priority=5), 0)
    for _ in range(3):
        rooms = index.room_of("x/low"), index.room_of("y/high"), free(offers, "good")
        assert (rooms, index._nodes.freed, index._rooms._untried) == (("a", "", 8), 0, [])
    index.put_pod("y/higher", replace(waits("y", 3.0, **{"1g.10gb": 8}), priority=9), 0)
    index.put_pod("z/higher", replace(waits("z", 4.0, **{"1g.10gb": 8}), priority=9), 0)
    names = [index.room_of(key) for key in ("x/low", "y/high", "y/higher", "z/higher")]
    assert (names, free(offers, "good")) == (["", "", "a", "a"], 0)


def test_a_decision_tries_fewer_pods_where_room_is_to_be_made():
    """64 nodes are looked through for each pod of higher priority; so a decision tries seven such pods, and not 50."""
    offers, index = followed(*(node(f"n{n}", **{"1g.10gb": 1}) for n in range(65)))
    for number in range(65):
        index.put_pod(f"low-{number}/x", waits(f"low-{number}", 1.0), 0)
    for number in range(100):
        high = waits("high", 2.0 + number, cpu=f"{number + 1}m", **{"1g.10gb": 2})
        index.put_pod(f"high/{number}", replace(high, priority=5), 0)
    index.remove_pod("low-0/x")
    free(offers, "q")
    assert len(index._rooms._untried) == 93
