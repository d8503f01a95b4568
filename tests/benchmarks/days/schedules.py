"""Random schedules in simulated time with the production code, and replicas that check what they decide."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from benchmarks.days.clock import Clock
from benchmarks.days.cluster import NAMESPACE, Cluster, Wanted
from benchmarks.days.layouts import RESOURCES
from benchmarks.days.replicas import Replica, Replicas
from hypothesis import strategies as st

from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Allowed
from tessera.core.admission.policy import FallbackPolicy, Policy, When
from tessera.core.kubernetes.pod import Container, Pod
from tessera.core.kubernetes.quantity import Quantity

WAIT = 30.0  # the patience of all pods
POLICY = Policy(FallbackPolicy(when=When.FULL, patience=WAIT))
LONG = 2000.0  # seconds: all is over by then


@dataclass(frozen=True)
class Job:
    after: float  # seconds after the one before
    size: int
    count: int
    seconds: float

    def lasts(self, needs):
        return self.seconds


def jobs(counts):
    return st.lists(
        st.builds(
            Job,
            st.sampled_from([0.0, 0.01, 0.5, 5.0, 20.0]),
            st.sampled_from([1, 2, 3]),
            counts,
            st.sampled_from([3.0, 50.0, 55.0, 58.0, 63.0, 200.0]),
        ),
        min_size=8,
        max_size=20,
    )


nodes = st.lists(
    st.dictionaries(st.sampled_from([RESOURCES[size] for size in (1, 2, 3)]), st.integers(1, 3), min_size=1),
    min_size=1,
    max_size=2,
).map(lambda some: [(f"n{number}", has) for number, has in enumerate(some)])
delays = st.sampled_from([0.0, 0.05, 2.0, 8.0])  # within the ten seconds of a reservation


class Watched(Replica):
    """A replica that counts again, in the plainest way, what it has seen free, and compares its decisions with that."""

    def __init__(self, offered, clock, *, counts):
        super().__init__(offered, POLICY, clock)
        self.counts = counts  # where every pod wants one slice: then which node has it does not matter
        self.has: Counter[str] = Counter()
        for _, has in offered:
            self.has.update(has)
        self._seen = {}
        self._reserved = []  # until, owner, resource
        self.replaced = []  # owners, and when

    def free(self, *, all_waiting):
        """What is free: at least (all that wait have room), or at most (those that the scheduler gave up on have none)."""
        left = Counter(self.has)
        for state in self._seen.values():
            if state.node or all_waiting or not state.verdict:
                left.subtract(dict(state.options[0]))
        left.subtract(resource for until, _, resource in self._reserved if until > self._clock.now)
        return left

    def admit(self, pod, owner, now):
        least, most = self.free(all_waiting=True), self.free(all_waiting=False)
        admitted = super().admit(pod, owner, now)
        if admitted is None:
            return None  # no node has so many
        again = decide(admitted[0], self.view, POLICY)
        assert isinstance(again, Allowed), "decided twice is decided once"
        assert again.momentary is None, "and nothing is reserved again"
        (asked,) = pod.containers[0].requests
        ((got, _),) = admitted[1][0]
        if self.counts:
            self._check(asked, got, least, most)
        if got != asked and most[got] >= 1:
            self.replaced.append((owner, now))
        self._reserved.append((now + 10, owner, got))
        self._check_rooms()
        return admitted

    def _check(self, asked, got, least, most):
        free = [one for one in self.has if least[one] >= 1]
        if got == asked:
            assert most[asked] >= 1 or not free, "it waits, although something was free"
        elif self.has[asked] or free:  # else it gets what is offered, as with `missing`
            assert most[got] >= 1, "it was replaced by what was not seen free"
            assert least[asked] < 1, "it was replaced, although what it asks for was seen free"

    def put(self, state):
        if state.key not in self._seen:
            known_by = (state.owner, state.options[0][0][0])
            mine = next((one for one in self._reserved if one[1:] == known_by), None)
            if mine is not None:
                self._reserved.remove(mine)
        self._seen[state.key] = state
        super().put(state)
        self._check_rooms()

    def remove(self, state):
        del self._seen[state.key]
        super().remove(state)
        self._check_rooms()

    def _check_rooms(self):
        """Bound pods and rooms together are never more than a node has."""
        for name, node in self.view.nodes.items():
            for resource in node.allocatable:
                assert (self.index._nodes.left(name, resource) or 0) >= 0, "more is kept than there is"


def play(offered, schedule, replica_delays, made=Cluster, controller=None):
    """Let the jobs come, with some replicas, each of which hears of things in its own time, and perhaps a controller."""
    clock = Clock()
    counts = all(one.count == 1 for one in schedule)
    replicas = [Watched(offered, clock, counts=counts) for _ in replica_delays]
    cluster = made(clock, offered, Replicas(replicas))
    for replica, delay in zip(replicas, replica_delays, strict=True):
        cluster.follow(replica, lambda delay=delay: delay)
    if controller is not None:
        controller(cluster)
    moment = 0.0
    for number, job in enumerate(schedule):
        moment += job.after
        asked = {RESOURCES[job.size]: Quantity(Fraction(job.count))}
        pod = Pod(NAMESPACE, containers=(Container("main", asked, asked),), priority=0)
        clock.at(moment, partial(cluster.submit, Wanted(f"job-{number}", pod, job.lasts)))
    clock.run(moment + LONG)
    return cluster, replicas


def never_two_on_one(cluster):
    return all(free >= 0 for some in cluster.scheduler.free.values() for free in some.values())
