"""A pod that waits for something else holds nothing: what becomes of its room, and of the rooms of all others."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin, Shape, WaitingPod, usage_of
from tessera.core.kubernetes.blocked import Block, find_block
from tests.build import container, node, pod, resource
from tests.examples import examples

SMALL = resource("1g.10gb")
TAKES = usage_of(pod(container(**{"1g.10gb": 1})))


def waits(created=0.0, verdict="", held=False, space="bad", judged=None, **asks):
    shape = Shape.of(pod(container(**{"1g.10gb": 1} | asks), namespace=space))
    return WaitingPod(shape, Origin(space, "", "w-"), 0, created, verdict, held, judged)


def followed(*nodes):
    offers = Offers(nodes)
    return offers, offers.follow_pods()


def free(offers):
    view = offers.now()
    assert view is not None
    return view.anywhere().get(SMALL, 0)


@pytest.mark.parametrize(
    ("times", "block"),
    [
        ({"asked": 70.0, "judged": 0.0, "reached": 70.0}, Block.IN_REACH),
        ({"asked": 70.5, "judged": 0.0, "reached": 0.0}, None),  # it was asked again
        ({"asked": 0.0, "judged": 0.0, "reached": 70.5}, None),
        ({"asked": 0.0, "judged": 70.5, "reached": 0.0}, None),  # the scheduler came late
        ({"asked": 0.0, "judged": 0.0}, None),  # nothing is free for it
        ({"asked": 90.0, "judged": 0.0, "reached": 90.0, "answered": 98.0}, Block.IN_REACH),
        ({"asked": 90.0, "judged": 0.0, "reached": 90.0, "answered": 98.5}, None),
        ({"asked": 70.0, "judged": None, "later_judged": True}, Block.SILENT),
        ({"asked": 70.5, "judged": None, "later_judged": True}, None),
        ({"asked": 0.0, "judged": None, "reached": 0.0}, None),  # the scheduler is away
    ],
)
def test_the_one_rule(times, block):
    """A device in reach for 30 s, or no word from a scheduler that works; and never before."""
    assert find_block(100.0, **times) is block


def test_fault_85_pods_without_a_condition_give_their_rooms_back():
    """A missing claim: the scheduler says nothing of these pods, and binds one that was made later. 300 s later they are asked again."""
    offers, index = followed(node("a", **{"1g.10gb": 8}))
    for number in range(8):
        index.put_pod(f"bad/{number}", waits(created=1.0 + number), 0)
    index.expire(60)
    assert free(offers) == 0, "nobody got a condition: the scheduler may be away"
    index.put_pod("good/x", waits(created=60.0, space="good"), 60)
    index.put_pod("good/x", BoundPod("a", TAKES), 61)
    index.expire(62)
    assert (free(offers), index.blocked[Block.SILENT], index.waiting) == (7, 8, 8)
    index.expire(361)
    assert free(offers) == 7
    index.expire(362)
    assert free(offers) == 0
    index.expire(392)
    assert (free(offers), index.blocked[Block.SILENT]) == (7, 8)
    index.put_pod("bad/0", waits(created=1.0, verdict="no node"), 400)
    assert (free(offers), index.block_of("bad/0")) == (6, None), "the scheduler looks at it after all"


def test_an_owner_does_not_have_its_pod_asked_again():
    """Whoever owns a pod may change its owner references; the scheduler has still said nothing of it."""
    offers, index = followed(node("a", **{"1g.10gb": 1}))
    index.put_pod("good/x", waits(created=9.0, verdict="too large", space="good", **{"1g.10gb": 2}), 0)
    index.put_pod("bad/x", waits(created=1.0), 0)
    index.expire(30)
    for number in range(5):
        index.put_pod("bad/x", replace(waits(created=1.0), origin=Origin("bad", f"{number}", "w-")), 31)
        assert (free(offers), index.block_of("bad/x")) == (1, Block.SILENT)


def test_pods_that_were_made_before_those_with_conditions_are_the_first_to_wait():
    """A scheduler with a backlog works in order: who was made later than all that have a condition is not passed over."""
    offers, index = followed(node("a", **{"1g.10gb": 8}))
    for number in range(8):
        index.put_pod(f"burst/{number}", waits(created=1.0 + number), 0)
    index.put_pod("burst/0", BoundPod("a", TAKES), 50)
    index.put_pod("burst/1", waits(created=2.0, verdict="no volume"), 50)
    index.expire(50)
    assert (free(offers), index.blocked[Block.SILENT]) == (0, 0)
    index.put_pod("burst/7", waits(created=8.0, verdict="no volume"), 51)
    index.expire(51)
    assert (free(offers), index.blocked[Block.SILENT]) == (5, 5)


def test_pods_with_gates_hold_nothing():
    """Nor do pods of other schedulers; they are counted as long as they are there."""
    offers, index = followed(node("a", **{"1g.10gb": 2}))
    for number in range(2):
        index.put_pod(f"bad/{number}", waits(held=True), 0)
    assert (free(offers), index.blocked[Block.HELD], index.block_of("bad/0")) == (2, 2, Block.HELD)
    index.put_pod("bad/0", waits(), 1)
    assert (free(offers), index.blocked[Block.HELD]) == (1, 1)
    index.remove_pod("bad/1")
    assert index.blocked[Block.HELD] == 0


def test_fault_86_a_crowd_does_not_take_turns_at_the_rooms():
    """200 pods with an affinity to nothing, each asking for something else: what the first do not take in 30 s was in reach of all."""
    offers, index = followed(node("a", cpu="64", **{"1g.10gb": 3}), node("b", cpu="64", **{"1g.10gb": 3}))
    for number in range(200):
        index.put_pod(f"bad/{number}", waits(float(number), "no pod to be near", cpu=f"{number + 1}m"), 0)
    index.put_pod("good/big", waits(1.0, "too large", space="good", **{"1g.10gb": 4}), 0)
    assert (free(offers), index.rooms) == (0, 6)
    index.expire(30)
    assert (free(offers), index.blocked[Block.IN_REACH], index.block_of("good/big")) == (3, 200, None)
    index.expire(330)
    assert index.rooms == 6
    index.expire(360)
    assert (index.rooms, index.blocked[Block.IN_REACH]) == (0, 200)


def test_who_waits_where_others_that_waited_are_placed_is_not_blocked():
    """The queue moves: a device was free on the node all the time, and each time another pod of the queue got one."""
    _, index = followed(node("a", **{"1g.10gb": 2}))
    index.put_pod("x/runs", BoundPod("a", TAKES), 0)
    for number in range(9):
        index.put_pod(f"queue/{number}", waits(float(number), "taken"), 0)
    assert index.room_of("queue/0") == "a"
    index.remove_pod("x/runs")
    index.put_pod("queue/5", BoundPod("a", TAKES), 20)
    index.expire(30)
    assert index.block_of("queue/0") is Block.IN_REACH
    assert [index.block_of(f"queue/{number}") for number in (1, 2, 3, 4, 6, 7, 8)] == [None] * 7
    assert index.room_of("queue/1") == "a"


def test_nothing_is_kept_of_pods_that_are_gone():
    """Pods without a condition come and go, and none that was made later gets one: the scheduler is away."""
    _, index = followed(node("a", **{"1g.10gb": 8}))
    for now in range(0, 4000, 40):
        for number in range(10):
            index.put_pod(f"x/{number}", waits(created=float(now)), now)
        index.expire(now + 30)
        assert len(index._rooms._silent) <= 20
        for number in range(10):
            index.remove_pod(f"x/{number}")
    index.expire(9999)
    assert not index._rooms._silent
    assert not index._rooms._due


def test_a_restart_is_careful():
    """What was known is lost: pods hold again what they can, for 30 s."""
    pods = {f"bad/{number}": waits(float(number), "no volume") for number in range(9)}
    offers, index = followed(node("a", **{"1g.10gb": 4}))
    index.replace_pods(pods.items(), 1000)
    assert free(offers) == 0
    index.expire(1030)
    assert free(offers) == 4


def test_a_list_gives_rooms_by_age_and_not_by_name():
    """A restart and a command that looks once: a young pod with an early name does not have the room of an old one."""
    _, index = followed(node("a", **{"1g.10gb": 1}))
    pods = {"a/young": waits(90.0, "taken", space="a", judged=90.0), "b/old": waits(1.0, "no", judged=1.0)}
    index.replace_pods(pods.items(), 100)
    assert (index.room_of("a/young"), index.room_of("b/old")) == ("", "a")
    index.block_by_times(100)
    assert (index.block_of("a/young"), index.block_of("b/old")) == (None, Block.IN_REACH)


@pytest.mark.parametrize(
    ("pods", "rooms"),
    [
        ([(1, None)] * 5 + [(70, 70)], 0),  # no condition, and a later pod has one
        ([(1, None)] * 5, 2),  # nobody has one
        ([(0, 0)] * 5, 0),  # they have had their turns at two devices for 100 s
        ([(0, 0)] * 9, 2),  # not all of them
        ([(0, 80)] * 2, 2),  # the scheduler has looked 20 s ago
        ([(-9999, -9999)] * 23, 1),  # 11 turns at two devices; then the first would be asked again
    ],
)
def test_by_the_times_of_pods(pods, rooms):
    """A command that looks once takes it that what is free had been free before, and that pods took turns at it."""
    _, index = followed(node("a", **{"1g.10gb": 2}))
    viewed = {
        f"bad/{number}": waits(float(created), "" if judged is None else "no", judged=judged)
        for number, (created, judged) in enumerate(pods)
    }
    index.replace_pods(viewed.items(), 0.0)
    index.block_by_times(100.0)
    assert index.rooms == rooms


crowds = st.lists(
    st.builds(
        lambda asks, verdict, created: waits(created, verdict, **asks),
        st.fixed_dictionaries({}, optional={"1g.10gb": st.integers(1, 3), "cpu": st.integers(1, 9).map("{}m".format)}),
        st.sampled_from(["", "no volume"]),
        st.floats(1, 9),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=examples(100))
@given(crowds, st.lists(st.integers(1, 3), max_size=4))
def test_a_crowd_that_waits_for_something_else_is_as_if_it_were_not_there(crowd, queue):
    """However many pods wait for something else, a minute and a half later all others have the rooms that they have without them."""
    seen = []
    nobody: list[WaitingPod] = []
    for there in (crowd, nobody):
        offers, index = followed(*(node(name, cpu="8", **{"1g.10gb": 3}) for name in "ab"))
        for number, phantom in enumerate(there):
            index.put_pod(f"bad/{number}", phantom, 0)
        index.put_pod("good/early", waits(20.0, "too large", space="good", **{"1g.10gb": 4}), 20)
        index.remove_pod("good/early")
        for second in range(20, 95):
            index.expire(float(second))
        for number, asks in enumerate(queue):
            index.put_pod(f"good/{number}", waits(100.0, "", space="good", **{"1g.10gb": asks}), 95)
        index.put_pod("good/0", waits(100.0, "late", space="good", **{"1g.10gb": (queue or [1])[0]}), 95)
        index.expire(96)
        rooms = {key: index.room_of(key) for key in index.pods if key.startswith("good")}
        seen.append((rooms, offers.now().columns.most(-1)))
    assert seen[0] == seen[1]
