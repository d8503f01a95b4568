"""The pods that come in the place of evicted ones: did the webhook decide about them, and have they a node.

The webhook must be seen working before more is evicted: it has ready endpoints, and in each namespace the
last successor is as the webhook would make it. Before the first successor of a namespace was seen, there is
one eviction at a time in it. A successor without the webhook's decision casts doubt on the webhook. Then no
pod of that namespace is evicted for an hour, or until one carries the mark. If two namespaces doubt within
ten minutes, no pod is evicted anywhere for these ten minutes, or until any pod carries the mark.

Tenants make these pods. So a successor casts doubt only if the webhook's decision, made here again, gives it
what was expected: one whose template was edited does not.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tessera.core.admission.moves import Move, Remade
from tessera.core.requests.record import asked_of
from tessera.diagnosis.patience.history import Doubt, doubting
from tessera.diagnosis.patience.pending_pods import PendingPod
from tessera.kube.watch.table import Key

log = logging.getLogger(__name__)

# Seconds until a successor that has no node counts as one that waits, and the owner's next pod may be evicted. A Job's comes when the pod garbage
# collector has marked the evicted one as failed: it looks every 20 s.
SUCCESSOR_SECONDS: Final = 120.0
_EVERYWHERE_SECONDS: Final = 600.0  # for which a doubt counts for other namespaces, too
_NAMESPACE_SECONDS: Final = 3600.0
# that are doubted, or proven: beyond that the oldest is forgotten, and its next eviction is a trial
_MOST_NAMESPACES: Final = 256

_Value = TypeVar("_Value")
# as the webhook would leave a pod that it is sent now; None: that is not known
MakeAgain = Callable[[PendingPod], Remade | None]


@dataclass(slots=True)
class _Expected:
    namespace: str
    known: frozenset[str]  # the uids of the namespace's pods that waited before
    gpus: Mapping[str, Mapping[str, int]]  # that the successor gets, by the decision
    by_what_is_free: bool  # the successor carries the mark
    until: float
    key: Key | None = None  # once it is seen
    uid: str = ""

    def is_met_by(self, pod: PendingPod) -> bool:
        """Whether a successor has the decision that was expected."""
        return pod.is_marked if self.by_what_is_free else pod.gpus == self.gpus

    def would_be_met_by(self, remade: Remade | None) -> bool:
        """Whether a successor would have it, had the webhook been asked."""
        if remade is None:
            return False
        return remade.by_what_is_free if self.by_what_is_free else asked_of(remade.pod) == self.gpus


class Successors:
    """Evictions whose successors have no node yet, by owner; and what they say about the webhook."""

    def __init__(self, seconds: float = SUCCESSOR_SECONDS) -> None:
        self._seconds = seconds
        self._expected: dict[str, _Expected] = {}
        self._proven: dict[str, str] = {}  # by namespace: its last successor, if that was as it should be
        self._doubts: dict[str, Doubt] = {}  # by namespace; until when, by the clock of the calls
        self._is_restored = False
        self.revision = 0  # of the doubts

    @property
    def owners(self) -> frozenset[str]:
        """Whose successors are expected: no other pod of theirs is evicted."""
        return frozenset(self._expected)

    @property
    def doubts(self) -> Mapping[str, Doubt]:
        """By namespace. Their ends are by the clock of the calls, and may be over."""
        return self._doubts

    def restore(self, doubts: Mapping[str, Doubt], now: float, wall: float) -> None:
        """Take over what a leader before doubted, in Unix time; once."""
        if self._is_restored:
            return
        self._is_restored = True
        for namespace, doubt in doubts.items():
            until = now + min(doubt.until - wall, _NAMESPACE_SECONDS)
            counts_until = now + min(doubt.counts_until - wall, _EVERYWHERE_SECONDS)
            self._doubts.setdefault(namespace, doubt._replace(until=until, counts_until=counts_until))

    def written(self, now: float, wall: float) -> dict[str, Doubt]:
        """The doubts in Unix time."""
        return {
            namespace: doubt._replace(
                until=wall + doubt.until - now, counts_until=wall + doubt.counts_until - now
            )
            for namespace, doubt in self._doubts.items()
        }

    def expect(self, pod: PendingPod, waiting: Iterable[PendingPod], move: Move, now: float) -> None:
        """A pod is about to be evicted; `waiting`: the pods that wait now."""
        if pod.owner is not None:
            namespace, until = pod.key.namespace, now + self._seconds
            known = frozenset(one.uid for one in waiting if one.key.namespace == namespace)
            self._expected[pod.owner.uid] = _Expected(
                namespace, known, move.gpus, move.by_what_is_free, until
            )

    def forget(self, owner: str) -> None:
        """The pod was not evicted after all."""
        self._expected.pop(owner, None)

    def see(self, pod: PendingPod, now: float, make_again: MakeAgain) -> None:
        """A pod is there, or has changed."""
        if self._doubts and pod.is_marked:
            self._end_doubts(pod, now)
        expected = self._expected.get(pod.owner.uid) if pod.owner is not None else None
        if expected is None or expected.namespace != pod.key.namespace:
            return
        if expected.uid or pod.uid in expected.known:
            return
        expected.key, expected.uid = pod.key, pod.uid
        if expected.is_met_by(pod):
            _put_last(self._proven, expected.namespace, pod.uid)
        elif expected.would_be_met_by(make_again(pod)):
            self._proven.pop(expected.namespace, None)
            self._doubt(pod, now)

    def settle(self, now: float, has_node: Callable[[Key, str], bool]) -> list[str]:
        """The owners whose successors have a node by now. One that has none for long is not waited for any more."""
        helped = [owner for owner, one in self._expected.items() if one.key and has_node(one.key, one.uid)]
        over = [owner for owner, one in self._expected.items() if one.until <= now]
        for owner in {*helped, *over}:
            del self._expected[owner]
        for namespace in [namespace for namespace, doubt in self._doubts.items() if doubt.until <= now]:
            del self._doubts[namespace]
            self.revision += 1
        return helped

    def trials_left(self, namespace: str) -> int | None:
        """How many pods of a namespace may be evicted before a successor is seen; None: all."""
        if namespace in self._proven:
            return None
        unseen = sum(one.namespace == namespace and not one.uid for one in self._expected.values())
        return max(0, 1 - unseen)

    def _doubt(self, pod: PendingPod, now: float) -> None:
        namespace, name = pod.key
        doubt = Doubt(name, pod.created, now + _NAMESPACE_SECONDS, now + _EVERYWHERE_SECONDS)
        _put_last(self._doubts, namespace, doubt)
        self.revision += 1
        log.warning(
            "pod %s/%s came in the place of an evicted one without the webhook's decision: no pod of its "
            "namespace is evicted for an hour, or until one has the mark",
            namespace,
            name,
        )
        if spaces := doubting(self._doubts, now):
            log.warning(
                "the same happened in %d namespaces (%s): no pod is evicted for 10 minutes, or until one has "
                "the webhook's mark",
                len(spaces),
                ", ".join(sorted(spaces)[:5]),
            )

    def _end_doubts(self, pod: PendingPod, now: float) -> None:
        """The webhook has decided about a pod: it works, at least for its namespace."""
        for namespace, doubt in list(self._doubts.items()):
            if pod.created <= doubt.created:
                continue
            if namespace == pod.key.namespace:
                del self._doubts[namespace]
                log.info("pod %s/%s has the webhook's mark: its namespace is not doubted any more", *pod.key)
            elif doubt.counts_until > now:
                self._doubts[namespace] = doubt._replace(counts_until=now)
            else:
                continue
            self.revision += 1


def _put_last(by_namespace: dict[str, _Value], namespace: str, value: _Value) -> None:
    """Put a namespace at the end, and forget the first where there are too many."""
    by_namespace.pop(namespace, None)
    by_namespace[namespace] = value
    if len(by_namespace) > _MOST_NAMESPACES:
        del by_namespace[next(iter(by_namespace))]
