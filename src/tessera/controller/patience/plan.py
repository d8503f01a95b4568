"""Which pods are evicted: a pure function of what waits, what was evicted before, and the time.

Every rule that keeps evictions few is here. A pod's turn: namespaces take turns, those with fewer evictions lately first, and in each the pod that has
waited longest. The decision, which costs most, comes last, and for so many pods in one plan.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tessera.core.admission.moves import Move
from tessera.diagnosis.patience.history import History
from tessera.diagnosis.patience.objects import PendingPod
from tessera.diagnosis.patience.rules import left_by_owner

_MOST_DECISIONS: Final = 100  # in one plan; some 0.2 ms each


class Judge(Protocol):
    """What a plan asks about a pod."""

    def patience(self, pod: PendingPod) -> float | None:
        """How long it waits at least before it is evicted, in seconds; None: it is never."""

    def why_not(self, pod: PendingPod) -> str | None:
        """Why its controller, or its namespace, is left alone, in one word; None: that must be found out first."""

    def is_fresh(self, pod: PendingPod) -> bool:
        """Whether it was decided about just before, so that it need not be now."""

    def move(self, pod: PendingPod) -> Move | None:
        """What it would get now in place of what it asks for, if that is free; None: nothing, or nothing else."""

    def keep(self, pod: PendingPod, move: Move) -> None:
        """What it would get is not free any more for others."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Evict a pod: it would get something else now."""

    pod: PendingPod
    move: Move
    patience: float


def counted(evictions: Iterable[Eviction]) -> list[tuple[str, str, float]]:
    """What the history keeps of evictions: owner, namespace and patience of each."""
    return [(one.pod.owner.uid, one.pod.key.namespace, one.patience) for one in evictions if one.pod.owner]


@dataclass(slots=True)
class Plan:
    """What is to be done now."""

    evictions: list[Eviction] = field(default_factory=list)
    notices: list[Eviction] = field(default_factory=list)  # bare pods: their authors are told
    unknown: list[PendingPod] = field(default_factory=list)  # whose controllers are to be read first
    states: Counter[str] = field(
        default_factory=Counter
    )  # the pods beyond their patience, by what becomes of them


def plan(
    pods: Iterable[PendingPod],
    judge: Judge,
    history: History,
    busy: frozenset[str],
    *,
    now: float,
    most: int,
) -> Plan:
    """Who is evicted now, `most` at most; `busy`: owners of whom a pod was evicted whose successor has no node yet."""
    found, decisions, busy_now = Plan(), 0, set(busy)
    turns = _Turns(_beyond(pods, judge, history, found, now), history)
    while (turn := turns.next()) is not None:
        pod, patience = turn
        why = _why_not(pod, judge, busy_now)
        is_bare = why == "bare"
        if why is None:
            found.unknown.append(pod)
            why = "unknown"
        elif not why or is_bare:
            why = ""
            if judge.is_fresh(pod):
                why = "nothing_free"
            elif decisions >= _MOST_DECISIONS or (len(found.evictions) >= most and not is_bare):
                why = "later"
        if why:
            found.states[why] += 1
            continue
        decisions += 1
        move = judge.move(pod)
        if move is None:
            found.states["nothing_free"] += 1
        elif pod.owner is None:
            found.states["bare"] += 1
            found.notices.append(Eviction(pod, move, patience))
        else:
            found.states["evicted"] += 1
            found.evictions.append(Eviction(pod, move, patience))
            busy_now.add(pod.owner.uid)
            turns.took()
            judge.keep(pod, move)
    return found


def _why_not(pod: PendingPod, judge: Judge, busy: set[str]) -> str | None:
    if left := left_by_owner(pod):
        return left
    return "busy" if pod.owner is not None and pod.owner.uid in busy else judge.why_not(pod)


def _beyond(
    pods: Iterable[PendingPod], judge: Judge, history: History, found: Plan, now: float
) -> Iterable[tuple[PendingPod, float]]:
    """The pods that have waited for longer than their patience, and are not left alone."""
    for pod in pods:
        patience = judge.patience(pod) if pod.since is not None else None
        if patience is None or pod.since is None:
            continue
        waits = history.wait(pod.owner.uid, patience) if pod.owner else patience
        if now - pod.since < waits:
            continue
        if pod.left_alone:
            found.states[pod.left_alone] += 1
        else:
            yield pod, patience


class _Turns:
    """Whose turn it is: namespaces with fewer evictions lately first; in each the pod that has waited longest."""

    def __init__(self, pods: Iterable[tuple[PendingPod, float]], history: History) -> None:
        taken = Counter(namespace for _, namespace in history.recent)
        self._queues: dict[str, deque[tuple[PendingPod, float]]] = {}
        for one in sorted(pods, key=lambda one: (one[0].since or 0.0, one[0].key)):
            self._queues.setdefault(one[0].key.namespace, deque()).append(one)
        self._heap = [(taken[name], queue[0][0].since or 0.0, name) for name, queue in self._queues.items()]
        heapify(self._heap)
        self._last: tuple[int, str] | None = None  # whose turn it was, and its evictions

    def next(self) -> tuple[PendingPod, float] | None:
        if self._last is not None and (queue := self._queues[self._last[1]]):
            heappush(self._heap, (self._last[0], queue[0][0].since or 0.0, self._last[1]))
        self._last = None
        if not self._heap:
            return None
        taken, _, name = heappop(self._heap)
        self._last = taken, name
        return self._queues[name].popleft()

    def took(self) -> None:
        """The pod whose turn it was is evicted."""
        if self._last is not None:
            self._last = self._last[0] + 1, self._last[1]
