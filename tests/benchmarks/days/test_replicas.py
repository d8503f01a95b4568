"""Laws of fallback by what is free, over random schedules in simulated time."""

from benchmarks.days.cluster import SCHEDULING
from benchmarks.days.layouts import RESOURCES
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.days.schedules import Job, delays, jobs, never_two_on_one, nodes, play
from tests.examples import examples


@settings(max_examples=examples(100))
@given(nodes, jobs(st.just(1)), delays)
def test_one_replica(offered, schedule, delay):
    """One replica never asks for more than there is: who gets something else than asked starts at once, however late the replica hears of pods."""
    cluster, (replica,) = play(offered, schedule, [delay])
    assert never_two_on_one(cluster)
    for owner, when in replica.replaced:
        assert cluster.started[owner][0] <= when + 2 * SCHEDULING, "a pod was replaced, and waits"


@settings(max_examples=examples(100))
@given(nodes, jobs(st.sampled_from([1, 1, 2])), st.lists(delays, min_size=2, max_size=3))
def test_several_replicas(offered, schedule, several):
    """Several replicas race. Never are two pods on one slice, and each replica replaces a pod only by what it has seen free."""
    cluster, _ = play(offered, schedule, several)
    assert never_two_on_one(cluster)


def test_a_race_of_replicas():
    """Of two pods for one free slice, asked through two replicas that have not heard of each other's pods, one is replaced and waits."""
    offered = [("n", {RESOURCES[1]: 1, RESOURCES[2]: 1})]
    schedule = [Job(0, 2, 1, 1000), Job(10, 2, 1, 100), Job(0, 2, 1, 100)]
    cluster, replicas = play(offered, schedule, [5.0, 5.0])
    assert [len(one.replaced) for one in replicas] == [1, 1]
    assert cluster.started["job-2"][0] == cluster.started["job-1"][0] + 100 + SCHEDULING
