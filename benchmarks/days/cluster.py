"""A cluster in simulated time: pods are admitted, wait, run and end; who follows them hears of it a moment later."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from benchmarks.days.clock import Clock
from benchmarks.days.scheduler import Key, Needs, Options, Scheduler
from tessera.core.kubernetes.pod import Pod

NAMESPACE: Final = "demand"
SCHEDULING: Final = 0.02  # seconds from a pod's creation until the scheduler has tried it


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod as the API server has it."""

    key: Key
    uid: str
    version: int  # grows with every change
    owner: str  # who made it, and makes it again
    created: float
    pod: Pod  # as admitted
    options: Options
    node: str = ""
    needs: Needs = ()  # what it holds there
    verdict: str = ""  # the scheduler's, while no node has it
    since: float | None = None  # when the scheduler first called it unschedulable


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod as its owner makes it, again and again until one has run."""

    owner: str
    pod: Pod
    seconds: Callable[[Needs], float]  # that it runs, on what it got


class Admission(Protocol):
    """What decides about a pod that is about to be created: the pod as it is admitted, and what it can run on; None: rejected."""

    def admit(self, pod: Pod, owner: str, now: float) -> tuple[Pod, Options] | None: ...


class Follower(Protocol):
    """A watcher of the pods."""

    def put(self, state: PodState) -> None: ...

    def remove(self, state: PodState) -> None: ...


class Cluster:
    """API server, scheduler and kubelets, as far as a pod's life goes."""

    def __init__(
        self, clock: Clock, nodes: Iterable[tuple[str, Mapping[str, int]]], admission: Admission
    ) -> None:
        self.clock = clock
        self.admission = admission
        self.scheduler = Scheduler()
        self.pods: dict[Key, PodState] = {}
        self.wanted: dict[str, Wanted] = {}  # by owner
        self.started: dict[str, tuple[float, Needs]] = {}  # owner → when, and on what
        self.rejected: list[str] = []
        self.evicted: list[PodState] = []
        self._followers: list[tuple[Follower, Callable[[], float], list[float]]] = []
        self._made = 0
        self._scheduling = False
        self._untried: list[Key] = []
        for name, has in nodes:
            self.scheduler.put_node(name, has)

    def follow(self, follower: Follower, delay: Callable[[], float]) -> None:
        """Notify a follower of every change, in order, each after some time."""
        self._followers.append((follower, delay, [0.0]))

    def submit(self, wanted: Wanted) -> None:
        """A user creates a pod."""
        self.wanted[wanted.owner] = wanted
        self._create(wanted)

    def evict(self, key: Key, uid: str, version: int) -> bool:
        """The Eviction API, with preconditions; the owner makes another pod in its place."""
        state = self.pods.get(key)
        if state is None or (state.uid, state.version) != (uid, version):
            return False
        self.evicted.append(state)
        if state.node:
            self.scheduler.release(state.node, state.needs)
        else:
            self.scheduler.remove(key)
        self._remove(state)
        self._create(self.wanted[state.owner])
        return True

    def wake(self) -> None:
        """Have the scheduler try the waiting pods, soon."""
        if not self._scheduling:
            self._scheduling = True
            self.clock.after(SCHEDULING, self._schedule)

    def _create(self, wanted: Wanted) -> None:
        self._made += 1
        now, number = self.clock.now, self._made
        admitted = self.admission.admit(wanted.pod, wanted.owner, now)
        if admitted is None:
            self.rejected.append(wanted.owner)
            return
        pod, options = admitted
        state = PodState(
            (NAMESPACE, f"{wanted.owner}-{number}"), str(number), 1, wanted.owner, now, pod, options
        )
        self._put(state)
        self._untried.append(state.key)
        self.scheduler.add(state.key, options, now, pod.priority or 0, number)
        self.wake()

    def _schedule(self) -> None:
        self._scheduling = False
        now = self.clock.now
        for one in self.scheduler.schedule():
            state = self.pods[one.key]
            self.started[state.owner] = now, one.needs
            bound = self._change(replace(state, node=one.node, needs=one.needs, verdict=""))
            self.clock.after(self.wanted[state.owner].seconds(one.needs), partial(self._end, bound))
        self._judge()

    def _judge(self) -> None:
        """Call those unschedulable that were tried and fit nowhere."""
        for key in self._untried:
            state = self.pods.get(key)
            if state is not None and not state.node:
                lacking = ", ".join(f"Insufficient {resource}" for resource, _ in state.options[0])
                nodes = len(self.scheduler.free)
                verdict = f"0/{nodes} nodes are available: {nodes} {lacking}."
                self._change(replace(state, verdict=verdict, since=self.clock.now))
        self._untried.clear()

    def _end(self, state: PodState) -> None:
        if self.pods.get(state.key) is not state:
            return  # it was evicted
        self.scheduler.release(state.node, state.needs)
        self._remove(state)
        self.wake()

    def _change(self, state: PodState) -> PodState:
        state = replace(state, version=state.version + 1)
        self._put(state)
        return state

    def _put(self, state: PodState) -> None:
        self.pods[state.key] = state
        self._notify(lambda follower: follower.put(state))

    def _remove(self, state: PodState) -> None:
        del self.pods[state.key]
        self._notify(lambda follower: follower.remove(state))

    def _notify(self, call: Callable[[Follower], None]) -> None:
        for follower, delay, last in self._followers:
            last[0] = max(last[0], self.clock.now + delay())
            self.clock.at(last[0], partial(call, follower))
