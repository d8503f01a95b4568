from benchmarks.days.clock import Clock
from benchmarks.days.cluster import SCHEDULING, Cluster, Wanted
from benchmarks.days.webhooks import NoWebhook

from tests.build import container, pod, resource

SMALL = resource("1g.10gb")


class Heard:
    """A follower that writes down what it hears, and when."""

    def __init__(self, clock):
        self._clock = clock
        self.events = []

    def put(self, state):
        self.events.append((round(self._clock.now, 2), state.owner, state.node or state.verdict))

    def remove(self, state):
        self.events.append((round(self._clock.now, 2), state.owner, "gone"))


def wanted(owner, seconds=10.0):
    return Wanted(owner, pod(container(**{"1g.10gb": 1})), lambda _: seconds)


def cluster(slices=1):
    clock = Clock()
    return clock, Cluster(clock, [("n", {SMALL: slices})], NoWebhook())


def test_a_pods_life():
    """A pod is created, bound or called unschedulable, and gone when it has ended; followers hear of it in order, each in its own time."""
    clock, made = cluster()
    heard = Heard(clock)
    made.follow(heard, lambda: 0.5)
    made.submit(wanted("first"))
    made.submit(wanted("second"))
    clock.run(30)
    verdict = f"0/1 nodes are available: 1 Insufficient {SMALL}."
    assert heard.events == [
        (0.5, "first", ""),
        (0.5, "second", ""),
        (0.52, "first", "n"),
        (0.52, "second", verdict),
        (10.52, "first", "gone"),
        (10.54, "second", "n"),
        (20.54, "second", "gone"),
    ]
    assert {owner: round(when, 2) for owner, (when, _) in made.started.items()} == {
        "first": SCHEDULING,
        "second": 10.04,
    }


def test_changes_are_heard_in_order():
    """A change is never heard before an earlier one, however long that one takes."""
    clock, made = cluster()
    delays = iter([5.0, 0.0, 0.0])
    heard = Heard(clock)
    made.follow(heard, lambda: next(delays))
    made.submit(wanted("one", seconds=1))
    clock.run(10)
    assert [what for *_, what in heard.events] == ["", "n", "gone"]


def test_an_eviction_is_for_one_version_of_one_pod():
    """A pod that has changed since is not evicted; one that is, comes again with another uid, behind those that wait."""
    clock, made = cluster()
    for owner in ("runs", "waits", "later"):
        made.submit(wanted(owner))
    clock.run(5)
    running, waiting, _ = sorted(made.pods.values(), key=lambda one: one.created * 10 + int(one.uid))
    assert not made.evict(running.key, running.uid, running.version - 1)
    assert not made.evict(waiting.key, "another", waiting.version)
    assert made.evict(waiting.key, waiting.uid, waiting.version)
    assert made.evicted == [waiting]
    clock.run(100)
    assert [*made.started] == ["runs", "later", "waits"]


def test_an_evicted_pod_that_ran_gives_back_what_it_had():
    """What a pod held when it was evicted is free at once, and free once."""
    clock, made = cluster()
    made.submit(wanted("one", seconds=50))
    clock.run(1)
    (state,) = made.pods.values()
    assert made.evict(state.key, state.uid, state.version)
    clock.run(40)
    assert made.scheduler.free == {"n": {SMALL: 0}}
    clock.run(200)
    assert made.scheduler.free == {"n": {SMALL: 1}}
