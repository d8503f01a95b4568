"""Laws of patience, over random schedules in simulated time, with the controller's own plan."""

from functools import partial

from benchmarks.days.cluster import SCHEDULING, Cluster
from benchmarks.days.layouts import RESOURCES
from benchmarks.days.patience import PACE, Patience
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.days.schedules import POLICY, WAIT, Job, delays, jobs, never_two_on_one, nodes, play
from tests.examples import examples

late = st.sampled_from([0.05, 8.0])  # how late the controller hears of things


class Contested(Cluster):
    """A cluster in which others, who go past the webhook, may take all that is free just when a pod is evicted."""

    def __init__(self, *args, greed=0.0):
        super().__init__(*args)
        self._greed = greed  # seconds for which they keep it
        self.waited = {}  # owner → how long its pods had waited when they were evicted
        self.when = []
        self.refused = 0

    def evict(self, key, uid, version):
        before = self.pods.get(key)
        if before is None or not super().evict(key, uid, version):
            self.refused += 1
            return False
        self.waited.setdefault(before.owner, []).append(self.clock.now - (before.since or 0))
        self.when.append(self.clock.now)
        return True

    def _create(self, wanted):
        if wanted.owner in {one.owner for one in self.evicted} and self._greed:
            for node, has in self.scheduler.free.items():
                taken = tuple((resource, count) for resource, count in has.items() if count > 0)
                has.update(dict.fromkeys(has, 0))
                self.clock.after(self._greed, partial(self._give_back, node, taken))
        super()._create(wanted)

    def _give_back(self, node, taken):
        self.scheduler.release(node, taken)
        self.wake()


def with_patience(offered, delay):
    def follow(cluster):
        cluster.follow(Patience(cluster, offered, POLICY, PACE), lambda: delay)

    return follow


def check(cluster):
    """What holds however many replicas there are, and however late all hear of things."""
    assert never_two_on_one(cluster)
    assert not [one for one in cluster.evicted if one.node], "a pod was evicted that had a node"
    for waits in cluster.waited.values():
        for number, waited in enumerate(waits):
            assert waited >= WAIT * 2**number, "an owner's patience doubles each time"
    for first, eleventh in zip(cluster.when, cluster.when[PACE.evictions :], strict=False):
        assert eleventh - first >= PACE.window, "so many within a minute, and no more"


@settings(max_examples=examples(100))
@given(nodes, jobs(st.just(1)), delays, late)
def test_one_replica(offered, schedule, delay, controller_delay):
    """With one replica, the successor of an evicted pod starts at once, or waits for what its owner asked for."""
    controller = with_patience(offered, controller_delay)
    cluster, (replica,) = play(offered, schedule, [delay], Contested, controller)
    check(cluster)
    for owner, when in replica.replaced:
        assert cluster.started[owner][0] <= when + 2 * SCHEDULING, "a pod was replaced, and waits"


@settings(max_examples=examples(60))
@given(
    nodes,
    jobs(st.sampled_from([1, 1, 2])),
    st.lists(delays, min_size=2, max_size=3),
    late,
    st.sampled_from([0.0, 20.0, 100.0]),
)
def test_several_replicas(offered, schedule, several, controller_delay, greed):
    """With several replicas, and others that take what a pod was evicted for, no pod is evicted that has a node, and evictions stay few."""
    controller = with_patience(offered, controller_delay)
    cluster, _ = play(offered, schedule, several, partial(Contested, greed=greed), controller)
    check(cluster)


def test_who_has_started_is_not_evicted():
    """The controller has not heard yet that a pod got its node, and wants to evict it: the API server refuses, and the pod runs on."""
    offered = [("n", {RESOURCES[1]: 1, RESOURCES[2]: 1})]
    schedule = [Job(0, 2, 1, 50), Job(0, 1, 1, 45), Job(0, 2, 1, 100)]
    cluster, _ = play(offered, schedule, [0.05], Contested, with_patience(offered, 8.0))
    assert (cluster.refused, cluster.evicted) == (1, [])
    assert round(cluster.started["job-2"][0]) == 50


def test_no_owner_is_evicted_for_ever():
    """Where the controller always hears too late that what was free is taken, evictions are in vain, and each comes after twice the time."""
    offered = [("n", {RESOURCES[1]: 1, RESOURCES[2]: 1})]
    # the 1g is free for two seconds of seven, and five seconds later it is not
    others = [Job(7, 1, 1, 5)] * 150
    schedule = [Job(0, 2, 1, 10_000), Job(0, 1, 1, 5), Job(0, 2, 1, 10), *others]
    cluster, _ = play(offered, schedule, [0.05], Contested, with_patience(offered, 5.0))
    check(cluster)
    # the second comes when the first one's successor is given up, which takes two minutes
    assert [wait // WAIT for wait in cluster.waited["job-2"]] == [1, 4, 4, 8, 16, 32]


def test_evictions_that_help():
    """Races of replicas leave pods waiting for what is taken while something else is free; with patience all run."""
    offered = [("n", {RESOURCES[1]: 20, RESOURCES[2]: 8})]
    schedule = [Job(0, 2, 1, 10_000)] * 28
    without, _ = play(offered, schedule, [5.0, 5.0, 5.0])
    with_it, _ = play(offered, schedule, [5.0, 5.0, 5.0], Contested, with_patience(offered, 0.05))
    assert len(without.started) < 28
    assert len(with_it.started) == 28
    check(with_it)
