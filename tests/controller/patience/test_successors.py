"""Evicted pods come back decided, or nothing more is evicted where they do not."""

import pytest

from tessera.controller.patience.successors import Successors
from tessera.core.admission.moves import Move, Remade
from tessera.diagnosis.patience.pending_pods import left_by_doubt
from tests.controller.patience.objects import MIG_1G, MIG_2G, owned, pending

MARK = {"annotations": {"gpu-webhook.k8s.io/decided-when": '{"main":{"nvidia.com/mig-1g.10gb":"1"}}'}}


def successor(
    name="next", owner="rs", *, marked=True, asks=MIG_1G, namespace="a", created="2027-01-15T08:00:01Z"
):
    metadata = {**(MARK if marked else {}), "creationTimestamp": created}
    return pending(name, namespace, asks=asks, owner=owned(owner), metadata=metadata)


def move(pod, gpus, *, full):
    assert pod.pod is not None
    return Move(pod.pod, gpus, "", by_what_is_free=full)


def evicted(successors, owner="rs", now=0.0, *, full=True, namespace="a"):
    pod = pending("p", namespace, owner=owned(owner))
    successors.expect(pod, [pod], move(pod, {"main": {MIG_1G: 1}}, full=full), now)
    return pod


def see(successors, pod, now, *, full=True, asks=MIG_1G):
    """A pod is seen; the webhook would decide about it so."""
    decided = pending("decided", asks=asks).pod
    successors.see(pod, now, lambda _: decided and Remade(decided, by_what_is_free=full))


def left(successors, now, *namespaces):
    """Why a pod of each namespace is left alone."""
    pods = [pending("x", namespace) for namespace in namespaces]
    return [left_by_doubt(pod, successors.doubts, now) for pod in pods]


def doubted(*namespaces, at="2027-01-15T08:00:10Z"):
    """In each namespace a successor came without the mark."""
    successors = Successors()
    for namespace in namespaces:
        evicted(successors, f"rs-{namespace}", namespace=namespace)
        pod = successor(owner=f"rs-{namespace}", marked=False, namespace=namespace, created=at)
        see(successors, pod, 1.0)
    return successors


def test_the_first_eviction_is_a_trial():
    """Until a successor was seen with the mark there is one at a time in its namespace; then as many as the rate allows."""
    successors = Successors()
    assert successors.trials_left("a") == 1
    pod = evicted(successors)
    assert (successors.trials_left("a"), set(successors.owners)) == (0, {"rs"})
    see(successors, pod, 1.0)  # the evicted pod itself, once more
    assert (successors.trials_left("a"), successors.trials_left("b")) == (0, 1)
    see(successors, successor(), 2.0)
    assert (successors.trials_left("a"), successors.trials_left("b")) == (None, 1)


def test_none_after_a_successor_without_the_mark():
    """In its namespace, for an hour; then there is one at a time again."""
    successors = doubted("a")
    assert left(successors, 2.0, "a", "b") == ["webhook", ""]
    successors.settle(130.0, lambda *_: False)
    assert left(successors, 3600.0, "a", "b") == ["webhook", ""]
    assert left(successors, 3602.0, "a", "b") == ["", ""]
    assert successors.trials_left("a") == 1
    successors.settle(3602.0, lambda *_: False)
    assert not successors.doubts


def test_two_namespaces_that_doubt_stop_it_everywhere():
    """For ten minutes; what one namespace's pods do is about that namespace alone."""
    successors = doubted("a", "b")
    assert left(successors, 2.0, "a", "b", "c") == ["webhook", "webhook", "elsewhere"]
    assert left(successors, 602.0, "a", "b", "c") == ["webhook", "webhook", ""]


def test_a_marked_pod_shows_that_the_webhook_works_again():
    """One that was created after the pod without the mark; what was there before shows nothing."""
    successors = doubted("a", "b")
    see(successors, successor("old", "other", namespace="c", created="2027-01-15T08:00:09Z"), 20.0)
    assert left(successors, 20.0, "a", "b", "c") == ["webhook", "webhook", "elsewhere"]
    see(successors, successor("new", "other", namespace="c", created="2027-01-15T08:00:11Z"), 21.0)
    assert left(successors, 21.0, "a", "b", "c") == ["webhook", "webhook", ""]
    see(successors, successor("own", "other", namespace="a", created="2027-01-15T08:00:11Z"), 22.0)
    assert left(successors, 22.0, "a", "b", "c") == ["", "webhook", ""]
    assert successors.trials_left("a") == 1, "one at a time again"


def test_a_successor_that_was_seen_holds_no_trial():
    """It has said what it can: the next trial begins when the doubt ends, though the successor never gets a node."""
    successors = doubted("a")
    see(successors, successor("own", "other", created="2027-01-15T08:00:11Z"), 2.0)
    assert (left(successors, 2.0, "a"), successors.trials_left("a")) == ([""], 1)
    assert successors.owners == {"rs-a"}, "its owner is waited for all the same"


def test_under_missing_no_pod_has_a_mark():
    """There a successor shows by what it has that the webhook decided."""
    for asks, why in ((MIG_1G, ""), (MIG_2G, "webhook")):
        successors = Successors()
        evicted(successors, full=False)
        see(successors, successor(marked=False, asks=asks), 1.0, full=False)
        assert left(successors, 2.0, "a") == [why]
        assert successors.trials_left("a") == (1 if why else None)


@pytest.mark.parametrize("full", [True, False])
def test_a_successor_that_asks_for_something_else_says_nothing(full):
    """Its template was edited so that the webhook does not give it what was expected, or not by what is free."""
    successors = Successors()
    evicted(successors, full=full)
    pod = successor(marked=False, asks=MIG_2G)
    see(successors, pod, 1.0, full=False, asks=MIG_2G)
    assert (left(successors, 2.0, "a", "b"), successors.trials_left("a")) == (["", ""], 1)
    again = Successors()
    evicted(again, full=full)
    again.see(pod, 1.0, lambda _: None)  # what the webhook would do is not known
    assert left(again, 2.0, "a") == [""]


def test_pods_that_name_an_owner_that_is_not_theirs():
    """A pod that was there before, and one of another namespace, are no successors, whatever their ownerReferences say."""
    successors = Successors()
    before, pod = pending("before", owner=None), pending("p", owner=owned("rs"))
    successors.expect(pod, [before, pod], move(pod, {"main": {MIG_1G: 1}}, full=True), 0.0)
    see(successors, pending("before", owner=owned("rs")), 1.0)
    see(successors, successor("forged", marked=False, namespace="b"), 1.0)
    assert (left(successors, 2.0, "a", "b"), successors.trials_left("a")) == (["", ""], 0)
    see(successors, successor(), 3.0)
    assert successors.trials_left("a") is None


def test_the_next_leader_doubts_the_same():
    """For as long as is left, by its own clock, and never for longer than a doubt lasts."""
    successors = doubted("a", "b")
    written = successors.written(101.0, 1_000_000.0)
    again = Successors()
    again.restore(written, 5.0, 1_000_000.0)
    assert left(again, 504.0, "a", "c") == ["webhook", "elsewhere"]
    assert left(again, 506.0, "a", "c") == ["webhook", ""]
    assert left(again, 3504.0, "a") == ["webhook"]
    assert left(again, 3506.0, "a") == [""]
    jumped = Successors()
    jumped.restore(written, 5.0, 0.0)
    assert left(jumped, 3606.0, "a") == [""]
    jumped.restore(written, 4000.0, 1_000_000.0)
    assert left(jumped, 4000.0, "a") == [""], "once"


def test_what_is_doubted_is_bounded():
    """However many namespaces there are."""
    successors = doubted(*(f"n{number}" for number in range(300)))
    assert len(successors.doubts) == 256
    assert left(successors, 2.0, "n299") == ["webhook"]


def test_one_per_owner_until_the_successor_has_a_node():
    """Then it helped; a successor that has none after two minutes is not waited for."""
    seen = Successors()
    evicted(seen)
    see(seen, successor(), 1.0)
    assert seen.settle(2.0, lambda key, uid: False) == []
    assert seen.owners == {"rs"}
    assert seen.settle(3.0, lambda key, uid: (key.name, uid) == ("next", "uid-next")) == ["rs"]
    assert seen.owners == frozenset()
    evicted(seen, now=10.0)
    assert (seen.settle(129.0, lambda *_: False), set(seen.owners)) == ([], {"rs"})
    assert (seen.settle(130.0, lambda *_: False), seen.owners) == ([], frozenset())


def test_a_stateful_sets_successor_has_the_same_name():
    """It is known by its owner and its own uid."""
    seen = Successors()
    pod = pending("web-0", owner=owned("sts", "StatefulSet"))
    seen.expect(pod, [pod], move(pod, {}, full=True), 0.0)
    same = pending("web-0", asks=MIG_1G, owner=owned("sts", "StatefulSet"), metadata={**MARK, "uid": "later"})
    see(seen, same, 1.0)
    assert seen.settle(2.0, lambda key, uid: uid == "later") == ["sts"]
