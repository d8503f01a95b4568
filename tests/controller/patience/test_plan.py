"""Who is evicted: every rule that keeps evictions few."""

import time

import pytest

from tessera.controller.patience.plan import PassedOver, plan
from tessera.diagnosis.patience.history import History
from tests.controller.patience.objects import NOW, UNSCHEDULABLE, Judge, owned, pending


def waiting(name, namespace="a", owner=None, seconds=3600, **parts):
    since = {**UNSCHEDULABLE, "lastTransitionTime": _time(NOW - seconds)}
    return pending(
        name, namespace, owner=owned(owner or f"of-{name}"), status={"conditions": [since]}, **parts
    )


def _time(at):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def made(pods, judge=None, history=None, *, busy=(), most=10, now=NOW, passed_over=None):
    judge, history, passed_over = judge or Judge(), history or History(), passed_over or PassedOver()
    return plan(pods, judge, history, frozenset(busy), passed_over, now=now, most=most, window=60.0)


def names(found):
    return [one.pod.key.name for one in found.evictions]


def test_who_has_waited_for_longer_than_its_patience():
    """And something else is free for it now."""
    pods = [waiting("long", seconds=301), waiting("short", seconds=299), waiting("never")]
    found = made(pods, Judge(patiences={"never": None}))
    assert (names(found), found.states) == (["long"], {"evicted": 1})


def test_nobody_is_evicted_for_nothing():
    """A pod that would get the same, or something that is not free, stays."""
    found = made([waiting("p")], Judge(free=0))
    assert (names(found), found.states) == ([], {"nothing_free": 1})


def test_two_do_not_count_on_the_same_slice():
    """What one would get is not free for the next."""
    judge = Judge(free=2)
    assert names(made([waiting(f"p{number}", seconds=3600 - number) for number in range(5)], judge)) == [
        "p0",
        "p1",
    ]
    assert judge.asked == ["p0", "p1", "p2", "p3", "p4"]


def test_one_per_owner_at_a_time():
    """Neither two at once, nor one while the last one's successor has no node."""
    pods = [waiting(f"p{number}", owner="rs") for number in range(3)] + [waiting("other", owner="x")]
    assert set(names(made(pods))) == {"p0", "other"}
    found = made(pods, busy={"rs"})
    assert (names(found), found.states["busy"]) == (["other"], 3)


def test_the_owner_that_was_evicted_in_vain_waits_longer():
    """Twice as long after the first time."""
    history = History().with_evictions([("rs", "a", 300.0)], NOW - 5000, 60.0)
    assert names(made([waiting("p", owner="rs", seconds=599)], history=history)) == []
    assert names(made([waiting("p", owner="rs", seconds=601)], history=history)) == ["p"]


def test_no_more_than_the_rate_allows():
    """The rest waits for the next minute, and is not decided about before."""
    judge = Judge()
    found = made([waiting(f"p{number}") for number in range(20)], judge, most=3)
    assert (len(found.evictions), found.states["later"], len(judge.asked)) == (3, 17, 3)


def test_fair_by_namespace():
    """A namespace with hundreds of waiting pods does not keep another from its turn, in this minute or the next."""
    many = [waiting(f"m{number}", "many", seconds=9000 - number) for number in range(300)]
    few = [waiting(f"f{number}", "few", seconds=400 - number) for number in range(3)]
    assert names(made([*many, *few], most=4)) == ["m0", "f0", "m1", "f1"]
    crowd = [waiting(f"m{number}", "many", owner="one", seconds=9000 - number) for number in range(300)]
    crowd += [waiting(f"n{number}", "many", seconds=5000 - number) for number in range(3)]
    assert names(made([*crowd, *few], most=4)) == ["m0", "f0", "n0", "f1"], "who has no turn takes none"
    history = History().with_evictions([("x", "many", 300.0)] * 2, NOW - 5, 60.0)
    assert names(made([*many, *few], history=history, most=4)) == ["f0", "f1", "m0", "f2"]


def test_a_trial_is_of_one_namespace():
    """Where it is not seen yet that successors come as they should, one pod of the namespace is evicted, or none; others are as ever."""
    pods = [waiting(f"{space}{number}", space) for space in "abc" for number in range(3)]
    judge = Judge()
    judge.trials = {"a": 1, "b": 0}
    found = made(pods, judge)
    assert sorted(names(found)) == ["a0", "c0", "c1", "c2"]
    assert found.states == {"evicted": 4, "trial": 5}
    assert len(judge.asked) == 4


def test_owners_are_read_in_turns():
    """Twenty for one plan, each once; namespaces take turns, and who was passed over comes first in the next plan."""
    judge, passed_over = Judge(), PassedOver()
    jobs = [("j", f"job-{number}") for number in range(60) for _ in range(3)] + [("k", "other")]
    judge.whys = {f"p{number}": None for number in range(len(jobs))}
    pods = [
        pending(f"p{number}", namespace, owner=owned(owner, "Job", "batch/v1"))
        for number, (namespace, owner) in enumerate(jobs)
    ]
    found = made(pods, judge, passed_over=passed_over)
    read = {one.owner.uid for one in found.unknown}
    assert (len(found.unknown), len(read), found.states) == (20, 20, {"unknown": 181})
    assert "other" in read
    judge.whys |= {one.key.name: "job" for one in pods if one.owner and one.owner.uid in read}
    again = {one.owner.uid for one in made(pods, judge, passed_over=passed_over).unknown}
    assert not again & read


def test_bare_pods_are_told_and_nothing_else():
    """No controller would make them again."""
    found = made([pending("bare", owner=None), waiting("p")])
    assert (names(found), [one.pod.key.name for one in found.notices]) == (["p"], ["bare"])
    assert not made([pending("bare", owner=None)], Judge(free=0)).notices


def test_controllers_that_are_not_known_are_left_alone():
    """What they take a pod's end for is not known; their pods are not even decided about."""
    judge = Judge()
    found = made([pending("ray", owner=owned("r", "RayCluster", "ray.io/v1"))], judge)
    assert (names(found), found.states, judge.asked) == ([], {"owner": 1}, [])


def test_jobs():
    """One that would pay is left alone; one that is not known yet is read first."""
    judge = Judge()
    judge.whys = {"pays": "job", "unread": None}
    job = ("Job", "batch/v1")
    pods = [pending(name, owner=owned(name, *job)) for name in ("pays", "unread", "free")]
    found = made(pods, judge)
    assert (names(found), [one.key.name for one in found.unknown]) == (["free"], ["unread"])
    assert found.states == {"evicted": 1, "job": 1, "unknown": 1}


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "s"}}}, "gang"),
        ({"spec": {"schedulingGates": [{"name": "g"}]}}, "gated"),
        ({"spec": {"nodeName": "n"}}, "started"),
    ],
)
def test_who_is_left_alone_stays(parts, reason):
    """Whatever is free."""
    found = made([waiting("p", **parts)])
    assert (names(found), found.states) == ([], {reason: 1})


def test_a_pod_that_was_just_decided_about_is_not_asked_again():
    """Else five hundred waiting pods would be decided about every second."""
    judge = Judge()
    judge.fresh = {"uid-p"}
    found = made([waiting("p"), waiting("q")], judge)
    assert (names(found), judge.asked) == (["q"], ["q"])


def test_one_plan_is_bounded():
    """Of five hundred pods a hundred are decided about; one that has no turn yet has it in the next plan."""
    judge = Judge(free=0)
    pods = [waiting(f"p{number}", f"n{number % 7}") for number in range(500)]
    found = made(pods, judge)
    assert (len(judge.asked), found.states) == (100, {"nothing_free": 100, "later": 400})
    judge.fresh = {f"uid-{name}" for name in judge.asked}
    made(pods, judge)
    assert len(set(judge.asked)) == 200
