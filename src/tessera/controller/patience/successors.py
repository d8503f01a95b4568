"""The pods that come in the place of the evicted ones: whether the webhook has decided about them, and whether they got a node.

The webhook must be seen working before more is evicted. It has ready endpoints, and the last successor carries its mark. Before the first successor was
seen there is one eviction at a time. After a successor without the mark there is none: until a pod comes that carries it, or for some minutes, and for an
hour in that namespace, which the webhook may not be sent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.admission.moves import Move
from tessera.diagnosis.patience.objects import PendingPod
from tessera.kube.watch.resource import Key

# Seconds until a successor that has no node counts as one that waits, and the owner's next pod may be evicted. A Job's comes when the pod garbage
# collector has marked the evicted one as failed: it looks every 20 s.
SUCCESSOR_SECONDS: Final = 120.0
_DOUBT_SECONDS: Final = 600.0
_NAMESPACE_SECONDS: Final = 3600.0


@dataclass(slots=True)
class _Expected:
    namespace: str
    known: frozenset[str]  # the uids of the owner's pods that waited before
    gpus: Mapping[str, Mapping[str, int]]  # that the successor gets, by the decision
    by_what_is_free: bool  # the successor carries the mark
    until: float
    key: Key | None = None  # once it is seen
    uid: str = ""


class Successors:
    """Evictions whose successors have no node yet, by owner; and what they say about the webhook."""

    def __init__(self, seconds: float = SUCCESSOR_SECONDS) -> None:
        self._seconds = seconds
        self._expected: dict[str, _Expected] = {}
        self._proven = False  # the last successor was as it should be
        self._doubted_until = 0.0
        self._doubted_since = 0.0  # Unix time
        self._namespaces: dict[str, float] = {}  # without the webhook, as it seems: until when

    @property
    def owners(self) -> frozenset[str]:
        """Whose successors are expected: no other pod of theirs is evicted."""
        return frozenset(self._expected)

    def expect(self, pod: PendingPod, waiting: Iterable[PendingPod], move: Move, now: float) -> None:
        """A pod is about to be evicted; `waiting`: the pods that wait now."""
        if pod.owner is not None:
            owner, until = pod.owner.uid, now + self._seconds
            known = frozenset(one.uid for one in waiting if one.owner and one.owner.uid == owner)
            self._expected[owner] = _Expected(
                pod.key.namespace, known, move.gpus, move.by_what_is_free, until
            )

    def forget(self, owner: str) -> None:
        """The pod was not evicted after all."""
        self._expected.pop(owner, None)

    def see(self, pod: PendingPod, now: float) -> None:
        """A pod is there, or has changed."""
        if pod.is_marked and pod.created > self._doubted_since:
            self._doubted_until = 0.0
            self._namespaces.pop(pod.key.namespace, None)
        found = self._expected.get(pod.owner.uid) if pod.owner is not None else None
        if found is None or found.uid or pod.uid in found.known:
            return
        found.key, found.uid = pod.key, pod.uid
        self._proven = pod.is_marked if found.by_what_is_free else pod.gpus == found.gpus
        if not self._proven:
            self._doubted_until, self._doubted_since = now + _DOUBT_SECONDS, pod.created
            self._namespaces[found.namespace] = now + _NAMESPACE_SECONDS

    def settle(self, now: float, has_node: Callable[[Key, str], bool]) -> list[str]:
        """The owners whose successors have a node by now. One that has none for long is not waited for any more."""
        helped = [owner for owner, one in self._expected.items() if one.key and has_node(one.key, one.uid)]
        over = [owner for owner, one in self._expected.items() if one.until <= now]
        for owner in {*helped, *over}:
            del self._expected[owner]
        return helped

    def allowed(self, now: float) -> int | None:
        """How many may be evicted now; None: as many as there are."""
        if now < self._doubted_until:
            return 0
        return None if self._proven else max(0, 1 - len(self._expected))

    def is_doubted(self, namespace: str, now: float) -> bool:
        """Whether a namespace's pods come without the webhook's decision, as it seems."""
        return now < self._namespaces.get(namespace, 0.0)
