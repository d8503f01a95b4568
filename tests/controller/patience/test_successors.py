"""Evicted pods come back decided, or nothing more is evicted."""

from tessera.controller.patience.successors import Successors
from tessera.core.admission.moves import Move
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


def evicted(successors, owner="rs", now=0.0, *, full=True):
    pod = pending("p", owner=owned(owner))
    successors.expect(pod, [pod], move(pod, {"main": {MIG_1G: 1}}, full=full), now)
    return pod


def test_the_first_eviction_is_a_trial():
    """Until a successor was seen with the mark there is one at a time; then as many as the rate allows."""
    seen = Successors()
    assert seen.allowed(0.0) == 1
    pod = evicted(seen)
    assert (seen.allowed(1.0), set(seen.owners)) == (0, {"rs"})
    seen.see(pod, 1.0)  # the evicted pod itself, once more
    assert seen.allowed(1.0) == 0
    seen.see(successor(), 2.0)
    assert seen.allowed(2.0) is None


def test_none_after_a_successor_without_the_mark():
    """Until another pod carries it, or for ten minutes; and in that namespace for an hour."""
    seen = Successors()
    evicted(seen)
    seen.see(successor(marked=False), 1.0)
    assert (seen.allowed(2.0), seen.is_doubted("a", 2.0), seen.is_doubted("b", 2.0)) == (0, True, False)
    seen.settle(130.0, lambda *_: False)
    assert (seen.allowed(599.0), seen.allowed(601.0), seen.is_doubted("a", 3600.0)) == (0, 1, True)
    assert not seen.is_doubted("a", 3602.0)


def test_a_marked_pod_shows_that_the_webhook_works_again():
    """One that was created after the pod without the mark; what was there before shows nothing."""
    seen = Successors()
    evicted(seen)
    seen.see(successor(marked=False, created="2027-01-15T08:00:10Z"), 1.0)
    seen.settle(200.0, lambda *_: False)
    seen.see(successor("old", "other", namespace="b", created="2027-01-15T08:00:09Z"), 201.0)
    assert seen.allowed(201.0) == 0
    seen.see(successor("new", "other", namespace="b", created="2027-01-15T08:00:11Z"), 202.0)
    assert (seen.allowed(202.0), seen.is_doubted("a", 202.0)) == (1, True), "one at a time again"


def test_under_missing_no_pod_has_a_mark():
    """There a successor shows by what it has that the webhook decided."""
    for asks, allowed in ((MIG_1G, None), (MIG_2G, 0)):
        seen = Successors()
        evicted(seen, full=False)
        seen.see(successor(marked=False, asks=asks), 1.0)
        assert seen.allowed(2.0) == allowed


def test_one_per_owner_until_the_successor_has_a_node():
    """Then it helped; a successor that has none after two minutes is not waited for."""
    seen = Successors()
    evicted(seen)
    seen.see(successor(), 1.0)
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
    seen.see(same, 1.0)
    assert seen.settle(2.0, lambda key, uid: uid == "later") == ["sts"]
