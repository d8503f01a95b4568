"""Patience in simulated time: the controller's own plan, judge and history, on what it has heard of so far."""

from collections.abc import Hashable
from typing import Final

from benchmarks.days.clock import Clock
from benchmarks.days.cluster import Cluster, PodState
from benchmarks.days.replicas import Replica
from benchmarks.days.webhooks import Offered
from tessera.controller.patience.judge import ViewJudge
from tessera.controller.patience.plan import Eviction, PassedOver, Plan, counted, plan
from tessera.controller.patience.reconciler import Pace
from tessera.controller.patience.successors import Successors
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import Shape
from tessera.diagnosis.patience.history import History
from tessera.diagnosis.patience.pending_pods import Owner, PendingPod
from tessera.kube import clock
from tessera.kube.watch.table import Key

PACE: Final = Pace()


class _Time(clock.Clock):
    """The clock, as the judge asks it."""

    def __init__(self, simulated: Clock) -> None:
        self._clock = simulated

    def now(self) -> float:
        return self._clock.now

    wall = now


class _Judge(ViewJudge):
    """In one plan, nothing is free for a pod if nothing was for another that is alike."""

    def __init__(self, offers: Offers, simulated: Clock, least: float) -> None:
        super().__init__(offers, _Time(simulated), least, fresh=0)
        self._kinds: dict[str, Hashable] = {}  # by uid

    def alike(self, pod: PendingPod) -> Hashable:
        found = self._kinds.get(pod.uid)
        if found is None and pod.pod is not None:
            found = self._kinds[pod.uid] = frozenset(pod.pod.annotations.items()), Shape.of(pod.pod)
        return found


class Patience:
    """Evicts pods that wait for longer than their patience, when something else is free for them.

    The controller plans every second. Here it plans when something came free, or a pod's patience is over: between these a plan finds
    nothing.
    """

    def __init__(self, cluster: Cluster, nodes: Offered, policy: Policy, pace: Pace = PACE) -> None:
        self._cluster, self._clock, self._pace = cluster, cluster.clock, pace
        self._replica = Replica(nodes, policy, cluster.clock)
        self._judge = _Judge(self._replica.view, cluster.clock, pace.least)
        self._judge.policy = policy
        self._pods: dict[Key, PendingPod] = {}
        self._bound: dict[Key, str] = {}  # and its uid
        self._history = History()
        self._successors = Successors(pace.successor)
        self._passed_over = PassedOver()
        self._due: set[float] = set()  # when to plan

    def put(self, state: PodState) -> None:
        """A pod is new or changed."""
        self._replica.put(state)
        key = Key(*state.key)
        if state.node:
            self._pods.pop(key, None)
            self._bound[key] = state.uid
            return
        self._pods[key] = pod = _pending(state)
        self._successors.see(pod, self._clock.now, self._judge.make_again)
        patience = self._judge.patience(pod)
        if pod.since is not None and patience is not None:
            self._plan_at(pod.since + self._history.wait(state.owner, patience))

    def remove(self, state: PodState) -> None:
        self._replica.remove(state)
        key = Key(*state.key)
        self._pods.pop(key, None)
        if self._bound.pop(key, None) is not None and self._pods:
            self._plan_at(self._clock.now)

    def _plan_at(self, moment: float) -> None:
        poll = self._pace.poll
        due = (max(moment, self._clock.now) // poll + 1) * poll
        if due not in self._due:
            self._due.add(due)
            self._clock.at(due, self._reconcile)

    def _reconcile(self) -> None:
        now, pace = self._clock.now, self._pace
        self._due.discard(now)
        for owner in self._successors.settle(now, lambda key, uid: self._bound.get(key) == uid):
            self._history.helped(owner)
        found = self._plan(now)
        if any(found.states[state] for state in ("later", "trial", "busy")):
            self._plan_at(now)
        self._history = self._history.with_evictions(counted(found.evictions), now, pace.window)
        for one in found.evictions:
            self._evict(one, now)

    def _plan(self, now: float) -> Plan:
        history, window = self._history, self._pace.window
        lately = {uid for uid, one in history.owners.items() if now - one.at < self._pace.successor}
        self._judge.begin(self._successors)
        return plan(
            self._pods.values(),
            self._judge,
            history,
            self._successors.owners | lately,
            self._passed_over,
            now=now,
            most=history.left(now, self._pace.evictions, window),
            window=window,
        )

    def _evict(self, one: Eviction, now: float) -> None:
        owner = one.pod.owner.uid if one.pod.owner else ""
        self._successors.expect(one.pod, self._pods.values(), one.move, now)
        if not self._cluster.evict((*one.pod.key,), one.pod.uid, int(one.pod.version)):
            self._successors.forget(owner)
            self._history.undone(owner)


def _pending(state: PodState) -> PendingPod:
    """A pod that waits, as the controller has it; its owner is a ReplicaSet, which makes it again."""
    return PendingPod(
        Key(*state.key),
        state.uid,
        str(state.version),
        f"{state.owner}-",
        state.created,
        state.since,
        Owner("apps", "ReplicaSet", state.owner, state.owner),
        pod=state.pod,
    )
