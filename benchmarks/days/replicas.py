"""Replicas of the webhook that decide by what is free (`when: full`), each by what it has heard of so far."""

from collections.abc import Sequence
from itertools import cycle

from benchmarks.days.clock import Clock
from benchmarks.days.cluster import NAMESPACE, PodState
from benchmarks.days.scheduler import Options
from benchmarks.days.webhooks import Offered, Webhook
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.pods import BoundPod, Origin, Shape, ViewedPod, WaitingPod, usage_of
from tessera.core.kubernetes.pod import Pod


class Replica(Webhook):
    """One replica, with its own index of what is free."""

    def __init__(self, nodes: Offered, policy: Policy, clock: Clock) -> None:
        super().__init__(nodes, policy)
        self.index = self.view.follow_pods(policy.fallback.transient_taints)
        self._clock = clock

    def admit(self, pod: Pod, owner: str, now: float) -> tuple[Pod, Options] | None:
        self.index.expire(now)
        return super().admit(pod, owner, now)

    def reserve(self, pod: Pod, owner: str, now: float) -> None:
        self.index.reserve(pod, origin_of(owner), now)

    def put(self, state: PodState) -> None:
        """A pod is new or changed."""
        now = self._clock.now
        self.index.expire(now)
        self.index.put_pod("/".join(state.key), viewed(state), now)

    def remove(self, state: PodState) -> None:
        self.index.expire(self._clock.now)
        self.index.remove_pod("/".join(state.key))


class Replicas:
    """Several replicas, which are asked in turns."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._turns = cycle(replicas)

    def admit(self, pod: Pod, owner: str, now: float) -> tuple[Pod, Options] | None:
        return next(self._turns).admit(pod, owner, now)


def origin_of(owner: str) -> Origin:
    return Origin(NAMESPACE, owner, f"{owner}-")


def viewed(state: PodState) -> ViewedPod:
    """A pod as the follower of pods has it."""
    origin, pod = origin_of(state.owner), state.pod
    if state.node:
        return BoundPod(state.node, usage_of(pod), origin)
    return WaitingPod(Shape.of(pod), origin, pod.priority or 0, state.created, state.verdict)
