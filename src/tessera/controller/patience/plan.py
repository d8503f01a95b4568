"""Which pods are evicted: by what waits, what was evicted before, and the time.

Every rule that keeps evictions few is here. Namespaces take turns by decisions; an eviction of the last
minute counts as one. In a namespace its owners take turns. An owner's pod that has waited longest comes
first. The decision costs most, so it comes last, and one plan makes a limited number of them. Pods that are
passed over for it come first in the next plan, so no crowd keeps a pod from its turn.
"""

from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tessera.core.admission.moves import Move
from tessera.diagnosis.patience.history import History
from tessera.diagnosis.patience.pending_pods import PendingPod, left_by_owner
from tessera.kube.watch.table import Key

_MOST_DECISIONS: Final = 100  # in one plan; some 0.2 ms each
_MOST_UNKNOWN: Final = 20  # owners that are read before the next plan; each is a request


Taker = tuple[str, str | None]  # who takes turns: an owner in a namespace, or all of the namespace


class Judge(Protocol):
    """What a plan asks about a pod."""

    def patience(self, pod: PendingPod) -> float | None:
        """How long it waits at least before it is evicted, in seconds; None: it is never."""

    def why_not(self, pod: PendingPod) -> str | None:
        """Why its controller, or its namespace, is left alone, in one word; None: that must be found out first."""

    def trials_left(self, namespace: str) -> int | None:
        """How many pods of a namespace may be evicted, by what is seen of the webhook there; None: all."""

    def is_fresh(self, pod: PendingPod) -> bool:
        """Whether no decision is needed: there just was one, or nothing was found for one that is alike."""

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
    unknown: list[PendingPod] = field(
        default_factory=list
    )  # whose controllers are to be read first, each once
    states: Counter[str] = field(
        default_factory=Counter
    )  # the pods beyond their patience, by what becomes of them


@dataclass(slots=True)
class PassedOver:
    """The pods that the last plan had no decision for, or did not read the owners of; and who had turns when."""

    plans: int = 0
    since: dict[str, int] = field(default_factory=dict)  # by uid: the first plan that passed it over
    # the last plan that had a decision for it, or the first that had none
    turns: dict[Taker, int] = field(default_factory=dict)

    def put(self, pods: Iterable[PendingPod], charged: Container[Taker]) -> None:
        """Another plan passed these pods over, and no others; `charged`: who had a decision in it."""
        self.plans += 1
        since, turns = {}, {}
        for pod in pods:
            since[pod.uid] = self.since.get(pod.uid, self.plans)
            for taker in _takers(pod):
                turns[taker] = self.plans if taker in charged else self.turns.get(taker, self.plans)
        self.since, self.turns = since, turns


def _takers(pod: PendingPod) -> tuple[Taker, Taker]:
    """The namespace of a pod, and its owner in it."""
    namespace = pod.key.namespace
    return (namespace, None), (namespace, pod.owner.uid if pod.owner is not None else "")


def plan(
    pods: Iterable[PendingPod],
    judge: Judge,
    history: History,
    busy: frozenset[str],
    passed_over: PassedOver,
    *,
    now: float,
    most: int,
    window: float,
) -> Plan:
    """Who is evicted now, `most` at most; `busy`: owners of whom a pod was evicted whose successor has no node yet.

    `window`: seconds for which an eviction counts as one of lately.
    """
    found = Plan()
    turns = _Turns(_beyond(pods, judge, history, found, now), passed_over, history.lately(now, window))
    limits = _Limits(judge, set(busy), most)
    for pod, patience in turns:
        why = limits.why_not(pod)
        if why is None:
            turns.charge()
            found.unknown.append(pod)
            why = "unknown"
        if why:
            found.states[why] += 1
            continue
        turns.charge()
        move = judge.move(pod)
        if move is None:
            found.states["nothing_free"] += 1
        elif pod.owner is None:
            found.states["bare"] += 1
            found.notices.append(Eviction(pod, move, patience))
        else:
            found.states["evicted"] += 1
            found.evictions.append(Eviction(pod, move, patience))
            limits.evicted(pod.key.namespace, pod.owner.uid)
            judge.keep(pod, move)
    passed_over.put(limits.passed_over, turns.charged)
    return found


class _Limits:
    """What one plan may do, and what it has done so far."""

    def __init__(self, judge: Judge, busy: set[str], most: int) -> None:
        self.passed_over: list[PendingPod] = []  # for which the plan has no decision, or no request
        self._judge = judge
        self._busy = busy
        self._evictions_left = most
        self._decisions_left = _MOST_DECISIONS
        self._unknown: set[str] = set()  # owners
        self._evicted: Counter[str] = Counter()  # by namespace

    def why_not(self, pod: PendingPod) -> str | None:
        """Why nothing is decided about a pod; empty: it is. None: its owner is to be read first."""
        why = _why_left(pod, self._judge, self._busy)
        if why is None:
            return self._why_unread(pod)
        is_bare = why == "bare"
        if why and not is_bare:
            return why
        if self._judge.is_fresh(pod):
            return "nothing_free"
        if not is_bare:
            trials = self._judge.trials_left(pod.key.namespace)
            if trials is not None and self._evicted[pod.key.namespace] >= trials:
                return "trial"
            if not self._evictions_left:
                return "later"
        if not self._decisions_left:
            self.passed_over.append(pod)
            return "later"
        self._decisions_left -= 1
        return ""

    def evicted(self, namespace: str, owner: str) -> None:
        """A pod is to be evicted."""
        self._evictions_left -= 1
        self._evicted[namespace] += 1
        self._busy.add(owner)

    def _why_unread(self, pod: PendingPod) -> str | None:
        owner = pod.owner.uid if pod.owner is not None else ""
        if owner in self._unknown:
            return "unknown"
        if len(self._unknown) == _MOST_UNKNOWN:
            self.passed_over.append(pod)
            return "unknown"
        self._unknown.add(owner)
        return None


def _why_left(pod: PendingPod, judge: Judge, busy: set[str]) -> str | None:
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


_Turn = tuple[PendingPod, float]  # and its patience
_Rank = tuple[bool, int, int, float, Key]  # less comes first


class _Turns:
    """Whose turn it is: of the namespaces, and of the owners in each, the one charged least in this plan.

    Of several, those with a pod that was passed over come first, by when they had their last turn. Then comes
    the one whose pod has waited longest.
    """

    def __init__(self, waiting: Iterable[_Turn], passed_over: PassedOver, lately: Counter[str]) -> None:
        """`lately`: evictions by namespace, which count as charges."""
        self.charged: set[Taker] = set()
        self._passed_over = passed_over
        self._charges = Counter[Taker]({(namespace, None): number for namespace, number in lately.items()})
        self._queues: dict[Taker, deque[_Turn]] = {}  # by owner
        for turn in sorted(waiting, key=lambda turn: self._rank(turn[0])):
            self._queues.setdefault(_takers(turn[0])[1], deque()).append(turn)
        self._owners: dict[str, list[tuple[int, _Rank, Taker]]] = {}  # heaps, by namespace
        for owner in self._queues:
            self._owners.setdefault(owner[0], []).append(self._entry(owner))
        for owners in self._owners.values():
            heapify(owners)
        self._namespaces = [self._entry_of_namespace(namespace) for namespace in self._owners]
        heapify(self._namespaces)
        self._pod = PendingPod(Key("", ""))  # whose turn it is

    def __iter__(self) -> Iterator[_Turn]:
        while self._namespaces:
            _, _, namespace = heappop(self._namespaces)
            owners = self._owners[namespace]
            _, _, owner = heappop(owners)
            queue = self._queues[owner]
            turn = queue.popleft()
            self._pod = turn[0]
            yield turn
            if queue:
                heappush(owners, self._entry(owner))
            if owners:
                heappush(self._namespaces, self._entry_of_namespace(namespace))

    def charge(self) -> None:
        """The pod whose turn it is was decided about, or its owner is read."""
        takers = _takers(self._pod)
        self._charges.update(takers)
        self.charged.update(takers)

    def _entry(self, owner: Taker) -> tuple[int, _Rank, Taker]:
        return self._charges[owner], self._rank(self._queues[owner][0][0], owner), owner

    def _entry_of_namespace(self, namespace: str) -> tuple[int, _Rank, str]:
        _, _, owner = self._owners[namespace][0]
        taker = (namespace, None)
        return self._charges[taker], self._rank(self._queues[owner][0][0], taker), namespace

    def _rank(self, pod: PendingPod, taker: Taker | None = None) -> _Rank:
        since = self._passed_over.since.get(pod.uid)
        if since is None:
            return True, 0, 0, pod.since or 0.0, pod.key
        last = self._passed_over.turns.get(taker, 0) if taker is not None else 0
        return False, last, since, pod.since or 0.0, pod.key
