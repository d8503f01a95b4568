"""What a pod that waits would get now: the webhook's decision, by what is free without the pod itself."""

import pytest

from tessera.core.admission.moves import move_of, remade_of
from tessera.core.admission.policy import FallbackPolicy, Policy, When
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin, Shape, WaitingPod, usage_of
from tessera.core.kubernetes.pod import Pod
from tessera.core.requests.record import asked_of
from tests.build import container, node, pod
from tests.controller.patience.objects import MIG_1G, MIG_2G

FULL = Policy(FallbackPolicy(when=When.FULL, patience=300.0))
MISSING = Policy(FallbackPolicy(patience=300.0))


def asking(resource, **more) -> Pod:
    return pod(container(**{resource: "1"}), namespace="a", **more)


def cluster(has, taken=(), waiting=()):
    """One node with these devices; those of them that pods hold, and pods that wait."""
    offers = Offers([node("n", **{**has, "cpu": "8", "memory": "64Gi", "pods": "20"})])
    free = offers.follow_pods()
    for number, resource in enumerate(taken):
        free.put_pod(
            f"a/running-{number}", BoundPod("n", usage_of(asking(resource)), Origin("a", "x", "r")), 1.0
        )
    for number, one in enumerate(waiting):
        key = f"a/waiting-{number}"
        free.put_pod(key, WaitingPod(Shape.of(one), Origin("a", "rs", "w-"), created=float(number)), 2.0)
    return offers


def fell_back(asked=MIG_2G, has=MIG_1G, **more):
    text = f'{{"main":{{"{asked}":"1"}}}}'
    record = f"{asked.rpartition('-')[2]}->{has.rpartition('-')[2]}"
    mark = f'{{"main":{{"{has}":"1"}}}}'
    annotations = {
        "gpu-webhook.k8s.io/fallback": record,
        "gpu-webhook.k8s.io/asked": text,
        "gpu-webhook.k8s.io/decided-when": mark,
    }
    return asking(has, annotations=annotations, **more)


@pytest.mark.parametrize(
    ("waits", "has", "taken", "gets"),
    [
        # what it asked for is taken, something smaller has come free
        (asking(MIG_2G), {MIG_2G: "1", MIG_1G: "1"}, [MIG_2G], MIG_1G),
        # nothing is free
        (asking(MIG_2G), {MIG_2G: "1", MIG_1G: "1"}, [MIG_2G, MIG_1G], None),
        # what it asked for is free: it is about to be placed, or waits for something else
        (asking(MIG_2G), {MIG_2G: "1", MIG_1G: "1"}, [MIG_1G], None),
        # upwards: it fell back and still waits, and what it asked for has come free
        (fell_back(), {MIG_2G: "1", MIG_1G: "1"}, [MIG_1G], MIG_2G),
        # it fell back, and nothing is free: it would wait for another thing, which is no better
        (fell_back(), {MIG_2G: "1", MIG_1G: "1"}, [MIG_2G, MIG_1G], None),
        # both are free: it has nothing to win
        (fell_back(), {MIG_2G: "1", MIG_1G: "1"}, [], None),
        # what it asked for is gone from the cluster, and would be replaced
        (asking(MIG_2G), {MIG_1G: "1"}, [], MIG_1G),
        # no node has anything for it: it would be rejected
        (asking(MIG_2G), {"example.com/x": "1"}, [], None),
    ],
)
def test_what_a_pod_would_get(waits, has, taken, gets):
    """Something else than it asks for, that is free now; upwards, too."""
    offers = cluster(has, taken, [waits])
    move = move_of(waits, "a/waiting-0", offers, FULL)
    assert (None if move is None else move.gpus) == (None if gets is None else {"main": {gets: 1}})


def test_the_successor_is_known_by_its_mark():
    """Under `full` it carries one; the words are for Events."""
    offers = cluster({MIG_2G: "1", MIG_1G: "1"}, [MIG_2G], [asking(MIG_2G)])
    move = move_of(asking(MIG_2G), "a/waiting-0", offers, FULL)
    assert move is not None
    assert (move.by_what_is_free, asked_of(move.pod)) == (True, {"main": {MIG_1G: 1}})
    assert move.words == "1g.10gb in place of 2g.20gb is free for it"


def test_under_missing():
    """A pod that fell back because nothing else was there, and waits, goes up when what it asked for has come and is free."""
    offers = cluster({MIG_2G: "1", MIG_1G: "1"}, [MIG_1G])
    move = move_of(fell_back(), "a/waiting-0", offers, MISSING)
    assert move is not None
    assert (move.gpus, move.by_what_is_free) == ({"main": {MIG_2G: 1}}, False)
    assert move_of(asking(MIG_2G), "a/p", cluster({MIG_2G: "1", MIG_1G: "1"}, [MIG_2G]), MISSING) is None
    assert move_of(asking(MIG_2G), "a/p", cluster({MIG_1G: "1"}, [MIG_1G]), MISSING) is None, "not free"


def test_the_room_of_others_is_theirs():
    """A slice for which another pod waits already is not free; one's own room does not count."""
    waits = [asking(MIG_1G), asking(MIG_2G)]
    offers = cluster({MIG_2G: "1", MIG_1G: "1"}, [MIG_2G], waits)
    assert offers.free is not None
    assert (offers.free.room_of("a/waiting-0"), offers.free.room_of("a/waiting-1")) == ("n", "")
    assert move_of(waits[1], "a/waiting-1", offers, FULL) is None
    assert move_of(waits[1], "a/waiting-0", offers, FULL) is not None, "as if the room were its own"
    assert offers.free.room_of("a/waiting-0") == "n", "and it has it still"


def test_who_does_not_follow_pods_moves_nobody():
    """What is free is not known."""
    assert move_of(asking(MIG_2G), "a/p", Offers([node("n", **{MIG_1G: "1"})]), FULL) is None


def test_a_pod_beyond_the_limits_gets_nothing():
    """The webhook decides nothing about it either; whoever asks goes on."""
    invented = {f"example.com/r{number}": "1" for number in range(2000)}
    offers = cluster({MIG_2G: "1", MIG_1G: "1"}, [MIG_2G])
    waits = pod(container(**{MIG_2G: "1", **invented}), namespace="a")
    assert move_of(waits, "a/p", offers, FULL) is None
    assert remade_of(waits, offers, FULL) is None
