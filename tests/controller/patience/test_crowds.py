"""No crowd keeps a pod from its turn, whoever makes it and whatever it asks for."""

import json
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.controller.patience import plan as plans
from tessera.controller.patience.judge import ViewJudge
from tessera.controller.patience.plan import PassedOver, plan
from tessera.controller.patience.successors import Successors
from tessera.core.admission.decision import decide
from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.policy import FallbackPolicy, Policy, When
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, usage_of
from tessera.core.resources import short
from tessera.diagnosis.patience.history import History
from tessera.diagnosis.patience.pending_pods import Owner, PendingPod
from tessera.kube.watch.table import Key
from tessera.protocol.admission.viewed_pod import read_viewed_pod
from tests.build import container, node, pod
from tests.controller.patience.objects import (
    CREATED,
    MIG_1G,
    MIG_2G,
    NOW,
    UNSCHEDULABLE,
    Judge,
    document,
    owned,
)
from tests.examples import examples
from tests.kube.clock import FakeClock

FULL = Policy(FallbackPolicy(when=When.FULL, patience=300.0))
NOTHING_ELSE = {"gpu-webhook.k8s.io/fallback-policy": "never"}


class Counting(ViewJudge):
    """The controller's own judge; it counts its decisions."""

    decisions = 0

    def move(self, one):
        self.decisions += 1
        return super().move(one)


class Plans:
    """One plan after the other, a second apart, of pods on a node whose 2g is taken, and one 1g free."""

    def __init__(self, *documents, small=1):
        self.clock = FakeClock(wall=NOW)
        offers = Offers([node("n", **{"2g.20gb": 1, "1g.10gb": small})])
        self.free = offers.follow_pods()
        held = pod(container(**{short(MIG_2G): 1}))
        viewed = [read_viewed_pod(json.dumps(each).encode()) for each in documents]
        bound = "z/held", BoundPod("n", usage_of(held), None)
        self.free.replace_pods([bound, *((key, one) for key, one in viewed if one is not None)], 0.0)
        self.judge = Counting(offers, self.clock, 30.0, 5.0)
        self.judge.policy = FULL
        self.pods = [PendingPod.read(json.dumps(each).encode()) for each in documents]
        self.passed_over = PassedOver()

    def plan(self):
        self.judge.begin(Successors())
        self.judge.decisions = 0
        return made(self.pods, self.judge, self.passed_over)


def made(pods, judge, passed_over=None, history=None):
    history, passed_over = history or History(), passed_over or PassedOver()
    return plan(pods, judge, history, frozenset(), passed_over, now=NOW, most=10, window=60.0)


def crowd(number, **parts):
    """Pods of one Deployment that wait for longer than all others, and find nothing."""
    early = "2027-01-15T06:00:00Z"
    status = {"conditions": [{**UNSCHEDULABLE, "lastTransitionTime": early}]}
    metadata = {"creationTimestamp": early, "annotations": NOTHING_ELSE, **parts}
    return document(f"crowd-{number}", "many", owner=owned("crowd"), metadata=metadata, status=status)


def test_fault_81_eight_hundred_pods_of_one_deployment():
    """They are decided about once, and the pod beside them, for which a 1g is free, is evicted at once."""
    plans = Plans(*(crowd(number) for number in range(800)), document("victim"))
    found = plans.plan()
    assert [one.pod.key.name for one in found.evictions] == ["victim"]
    assert (plans.judge.decisions, found.states) == (2, {"nothing_free": 800, "evicted": 1})


def test_fault_81_eight_hundred_pods_that_differ():
    """No two are alike, so each is decided about; the pod of another namespace has its turn in the first plan."""
    differ = [
        crowd(number, annotations={**NOTHING_ELSE, "gpu-webhook.k8s.io/min-memory": f"{number + 1}Gi"})
        for number in range(800)
    ]
    plans = Plans(*differ, document("victim"))
    found = plans.plan()
    assert [one.pod.key.name for one in found.evictions] == ["victim"]
    assert (plans.judge.decisions, found.states["later"]) == (100, 701)


def test_pods_that_are_alike():
    """An annotation that decisions read, a request, a namespace or a room makes a difference; names make none."""
    differing = [
        document("p"),
        document("q", "b"),
        document("r", asks=MIG_1G),
        document("s", metadata={"annotations": NOTHING_ELSE}),
        document("t", spec={"nodeSelector": {"a": "b"}}),
        document("u", spec={"priority": -1}),
    ]
    same = [
        document("v"),
        document("w", owner=None, metadata={"labels": {"a": "b"}, "annotations": {"x": "y"}}),
    ]
    plans = Plans(*differing, *same, small=0)
    kinds = [plans.judge.alike(each) for each in plans.pods]
    assert len(set(kinds[:6])) == 6
    assert kinds[6:] == [kinds[0]] * 2
    plans.free.remove_pod("z/held")
    with_room = [plans.judge.alike(each) for each in plans.pods if plans.free.room_of("/".join(each.key))]
    assert len(with_room) == 1
    assert with_room[0] not in kinds


def test_a_pod_with_a_room_says_nothing_about_one_without():
    """Of two that are alike one has the last 2g kept for it, and is about to be placed; the other gets the 1g."""
    plans = Plans(document("p"), document("q", owner=owned("other")))
    plans.free.remove_pod("z/held")
    found = plans.plan()
    has_room = "p" if plans.free.room_of("a/p") else "q"
    assert [one.pod.key.name for one in found.evictions] == [{"p": "q", "q": "p"}[has_room]]


def test_fault_82_a_pod_beyond_the_limits():
    """Nothing is decided about it; the others have their turn."""
    invented = {f"example.com/r{number}": "1" for number in range(9000)}
    large = document("large", "b", owner=owned("large"), metadata={"creationTimestamp": CREATED})
    large["spec"]["containers"][0]["resources"]["limits"] |= invented
    plans = Plans(large, document("victim"))
    found = plans.plan()
    assert [one.pod.key.name for one in found.evictions] == ["victim"]
    assert found.states == {"large": 1, "evicted": 1}


def test_fault_82_a_decision_that_takes_too_many_steps(monkeypatch):
    """A small pod may ask for more comparisons with the nodes than a decision makes; the others have their turn."""

    def decided(waits, view, policy):
        if waits.namespace == "b":
            raise BeyondLimits("too many steps")
        return decide(waits, view, policy)

    monkeypatch.setattr("tessera.core.admission.moves.decide", decided)
    plans = Plans(document("slow", "b", owner=owned("slow")), document("victim"))
    found = plans.plan()
    assert [one.pod.key.name for one in found.evictions] == ["victim"]
    assert found.states == {"nothing_free": 1, "evicted": 1}


class Alike(Judge):
    """By hand: the pods of a namespace whose names begin alike are alike; a decision is fresh for some plans."""

    def __init__(self, plans_fresh):
        super().__init__(free=0, left={}, number=0, plans_fresh=plans_fresh, decided={})

    def kind(self, each):
        return each.key.namespace, each.key.name.partition("-")[0]

    def is_fresh(self, each):
        return self.left.get(self.kind(each), -1) >= self.number

    def move(self, each):
        self.left[self.kind(each)] = self.number + self.plans_fresh
        self.decided.setdefault(self.kind(each), self.number)
        return super().move(each)


def waits(name, namespace, owner, since):
    return PendingPod(
        Key(namespace, name),
        f"{namespace}/{name}",
        since=since,
        owner=Owner("apps", "ReplicaSet", owner, owner),
    )


crowds = st.lists(  # by namespace: its owners, with the number of different pods of each
    st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6
)


@settings(max_examples=examples(60))
@given(crowds, st.integers(0, 8), st.integers(1, 6), st.integers(0, 5), st.randoms(use_true_random=False))
def test_every_pod_is_decided_about_soon(namespaces, fresh, most, new, random):
    """However small a plan is for them all, in as many plans as serve all namespaces once each has a turn.

    So have its owners in as many of these, and each of an owner's different pods in as many of these again.
    """
    judge, passed_over, pods = Alike(fresh), PassedOver(), []
    for space, owners in enumerate(namespaces):
        for owner, kinds in enumerate(owners):
            for kind in range(kinds):
                since = NOW - random.randint(400, 4000)
                pods.append(waits(f"o{owner}k{kind}-p", f"n{space}", f"{space}-{owner}", since))
    rounds = ceil(len(namespaces) / most)
    bounds = {
        (f"n{space}", f"o{owner}k{kind}"): rounds * (len(owners) + 1) * kinds
        for space, owners in enumerate(namespaces)
        for owner, kinds in enumerate(owners)
        for kind in range(kinds)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "_MOST_DECISIONS", most)
        while judge.number <= max(bounds.values()) and not judge.decided.keys() >= bounds.keys():
            churn = [  # pods that are made again and again, and say that they wait for longer than all others
                waits(f"c{judge.number}x{number}-", "n0", "churn", NOW - 9000) for number in range(new)
            ]
            before = len(judge.asked)
            made([*pods, *churn], judge, passed_over)
            assert len(judge.asked) - before <= most
            judge.number += 1
    late = {
        kind: judge.decided.get(kind)
        for kind, bound in bounds.items()
        if judge.decided.get(kind, bound + 1) > bound
    }
    assert not late


def test_owners_of_a_namespace_take_turns():
    """One with hundreds of different pods does not keep the others of its namespace waiting."""
    judge = Alike(0)
    many = [waits(f"m{number}-", "a", "many", NOW - 9000) for number in range(300)]
    few = [waits(f"f{number}-", "a", f"few-{number}", NOW - 400) for number in range(3)]
    made([*many, *few], judge)
    assert {name for _, name in judge.decided} >= {"f0", "f1", "f2"}
    assert len(judge.decided) == 100


def test_evictions_of_long_ago_do_not_count():
    """A namespace that had evictions more than a minute ago has its turn like any other, though none came since."""
    judge = Alike(0)
    history = History(recent=[(NOW - 61, "a")] * 10)
    many = [waits(f"m{number}-", f"n{number % 50}", f"o{number}", NOW - 9000) for number in range(300)]
    made([*many, waits("p-", "a", "rs", NOW - 400)], judge, history=history)
    assert ("a", "p") in judge.decided
