"""Some days of demand on a cluster, from the first task to the last, and what came of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Final

from benchmarks.days.clock import Clock
from benchmarks.days.cluster import NAMESPACE, Cluster, Wanted
from benchmarks.days.figures import DAY
from benchmarks.days.layouts import RESOURCES, SIZES
from benchmarks.days.patience import Patience
from benchmarks.days.replicas import Replica, Replicas
from benchmarks.days.scheduler import Needs
from benchmarks.days.tasks import Task
from benchmarks.days.webhooks import BRIDGE, NoWebhook, Webhook
from tessera.core.admission.policy import FallbackPolicy, Policy, When
from tessera.core.kubernetes.pod import Container, Pod
from tessera.core.kubernetes.quantity import Quantity

Offered = Sequence[tuple[str, Mapping[str, int]]]
_AFTER: Final = 7 * DAY  # no task comes then: who waits for what exists gets it
_ONE: Final = Quantity(Fraction(1))
_PATIENCE: Final = 300.0  # seconds
_REPLICAS: Final = 2
_DELAY: Final = 0.1  # seconds until a change of a pod is heard of


class Variant(Enum):
    """How pods are admitted."""

    NOTHING = "no Tessera"
    MISSING = "missing"
    FULL = "full"
    PATIENCE = "full and patience"
    HALF = "the same, at least half the memory"
    BRIDGE = "the bridge"


class Pace(Enum):
    """How long a task runs on a slice of another size than it asked for."""

    SAME = "as long as on what it asked for"
    COMPUTE = "longer on a smaller slice, in proportion; no faster on a larger one"

    def seconds(self, task: Task, needs: Needs) -> float:
        given = sum(SIZES[resource] * count for resource, count in needs)
        return task.seconds * (max(1.0, task.size / given) if self is Pace.COMPUTE else 1.0)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one task."""

    task: Task
    waited: float  # until it started, or until the end; its owner's pods together
    longer: float = 0.0  # that it ran, than it would have on what it asked for
    given: int = 0  # the size that it got; 0: it never started


@dataclass(frozen=True, slots=True)
class Week:
    """What became of all tasks but services."""

    fates: tuple[Fate, ...]
    evictions: int

    @property
    def never(self) -> float:
        """The share of the tasks that never started."""
        return self._mean(lambda one: not one.given)

    @property
    def replaced(self) -> float:
        """The share of the tasks that ran on another size than they asked for."""
        return self._mean(lambda one: one.given not in (0, one.task.size))

    @property
    def mean_wait(self) -> float:
        return self._mean(lambda one: one.waited)

    @property
    def mean_loss(self) -> float:
        """Seconds that a task ends later than if it had started at once on what it asked for."""
        return self._mean(lambda one: one.waited + one.longer)

    def wait(self, quantile: float) -> float:
        waits = sorted(one.waited for one in self.fates)
        return waits[int(quantile * (len(waits) - 1))]

    def _mean(self, of: Callable[[Fate], float]) -> float:
        return sum(map(of, self.fates)) / len(self.fates)


def play(tasks: Sequence[Task], nodes: Offered, variant: Variant, pace: Pace = Pace.SAME) -> Week:
    """Let the tasks come to a cluster, and wait until they have started."""
    clock = Clock()
    cluster = _cluster(clock, nodes, variant)
    for task in tasks:
        wanted = Wanted(f"task-{task.number}", _POD[task.size], partial(pace.seconds, task))
        clock.at(task.created, partial(cluster.submit, wanted))
    end = tasks[-1].created + _AFTER
    clock.run(end)
    fates = (_fate(task, cluster, pace, end) for task in tasks if not task.is_service)
    return Week(tuple(fates), len(cluster.evicted))


def _cluster(clock: Clock, nodes: Offered, variant: Variant) -> Cluster:
    if variant is Variant.NOTHING:
        return Cluster(clock, nodes, NoWebhook())
    if variant not in (Variant.FULL, Variant.PATIENCE, Variant.HALF):
        return Cluster(clock, nodes, Webhook(nodes, BRIDGE if variant is Variant.BRIDGE else Policy()))
    least = Fraction(1, 2) if variant is Variant.HALF else Fraction(0)
    policy = Policy(FallbackPolicy(when=When.FULL, patience=_PATIENCE, min_memory_fraction=least))
    replicas = [Replica(nodes, policy, clock) for _ in range(_REPLICAS)]
    cluster = Cluster(clock, nodes, Replicas(replicas))
    for one in (*replicas, *(() if variant is Variant.FULL else [Patience(cluster, nodes, policy)])):
        cluster.follow(one, lambda: _DELAY)
    return cluster


def _fate(task: Task, cluster: Cluster, pace: Pace, end: float) -> Fate:
    started = cluster.started.get(f"task-{task.number}")
    if started is None:
        return Fate(task, end - task.created)
    moment, needs = started
    given = sum(SIZES[resource] * count for resource, count in needs)
    return Fate(task, moment - task.created, pace.seconds(task, needs) - task.seconds, given)


def _pod(size: int) -> Pod:
    asked = {RESOURCES[size]: _ONE}
    return Pod(NAMESPACE, containers=(Container("main", asked, asked),), priority=0)


_POD: Final = {size: _pod(size) for size in RESOURCES}
