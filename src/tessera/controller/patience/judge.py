"""What a plan asks about a pod, answered by the view that decisions are made by."""

from collections.abc import Hashable

from tessera.controller.patience.successors import Successors
from tessera.core.admission.moves import Move, Remade, move_of, remade_of
from tessera.core.admission.policy import Policy, patience_of
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import BoundPod, Origin
from tessera.core.errors import InvalidInput
from tessera.diagnosis.patience.pending_pods import (
    Job,
    PendingPod,
    left_by_block,
    left_by_doubt,
    left_by_job,
    left_by_namespace,
)
from tessera.kube.clock import Clock

_JOB_SECONDS = 60.0  # for which what was read of a Job is believed
_LEFT_SECONDS = 60.0  # for which a pod is left alone for what the API server said


class ViewJudge:
    """Answers by a view, a configuration, and what was read of Jobs and autoscalers."""

    def __init__(self, offers: Offers, clock: Clock, least: float, fresh: float) -> None:
        """`least`: seconds that every pod waits; `fresh`: seconds for which a decision about a pod need not be made again."""
        self.policy = Policy()
        self._offers = offers
        self._clock = clock
        self._least = least
        self._fresh = fresh
        self._jobs: dict[str, tuple[Job | None, float]] = {}  # by uid, until when
        self._left: dict[str, tuple[str, float]] = {}  # by the pod's uid: why, and until when
        self._fresh_until: dict[
            Hashable, float
        ] = {}  # by uid; where nothing was found, by all that are alike
        self._successors = Successors()

    def begin(self, successors: Successors) -> None:
        """A plan begins: what is known of pods and Jobs that are gone is forgotten."""
        self._successors = successors
        now = self._clock.now()
        self._jobs = {uid: one for uid, one in self._jobs.items() if one[1] > now}
        self._left = {uid: one for uid, one in self._left.items() if one[1] > now}
        self._fresh_until = {key: until for key, until in self._fresh_until.items() if until > now}

    def put_job(self, pod: PendingPod, job: Job | None) -> None:
        """A pod's Job was read; None: it is gone."""
        if pod.owner is not None:
            self._jobs[pod.owner.uid] = job, self._clock.now() + _JOB_SECONDS

    def leave(self, pod: PendingPod, why: str) -> None:
        """Leave a pod alone for a while."""
        self._left[pod.uid] = why, self._clock.now() + _LEFT_SECONDS

    def patience(self, pod: PendingPod) -> float | None:
        if pod.pod is None:
            return None
        namespace = self._offers.namespaces.get(pod.key.namespace)
        try:
            return patience_of(pod.pod, namespace, self.policy.fallback, self._least)
        except InvalidInput:  # of its namespace: the webhook rejects its pods, and says it
            return None

    def why_not(self, pod: PendingPod) -> str | None:
        if pod.pod is None or pod.owner is None:
            return "bare"
        if why := left_by_namespace(pod, self._offers, self.policy) or left_by_block(pod, self._offers):
            return why
        if why := left_by_doubt(pod, self._successors.doubts, self._clock.now()):
            return why
        if pod.uid in self._left:
            return self._left[pod.uid][0]
        if not pod.owner.is_job:
            return ""
        if pod.owner.uid not in self._jobs:
            return None
        return left_by_job(pod, self._jobs[pod.owner.uid][0])

    def trials_left(self, namespace: str) -> int | None:
        return self._successors.trials_left(namespace)

    def is_fresh(self, pod: PendingPod) -> bool:
        return pod.uid in self._fresh_until or self.alike(pod) in self._fresh_until

    def move(self, pod: PendingPod) -> Move | None:
        move = None
        if pod.pod is not None:
            move = move_of(pod.pod, "/".join(pod.key), self._offers.without(pod.pod), self.policy)
        decided_about = self.alike(pod) if move is None else pod.uid
        self._fresh_until[decided_about] = self._clock.now() + self._fresh
        return move

    def alike(self, pod: PendingPod) -> Hashable:
        """All that a decision goes by: it finds something else for all pods with this, or for none of them.

        Equal are their specs, their annotations as far as decisions read these, their namespaces, and whether
        they have a room. For one that has, nothing else is found; one without cannot use that room.
        """
        annotations = pod.pod.annotations if pod.pod is not None else {}
        said = tuple((name, annotations[name]) for name in self.policy.annotations if name in annotations)
        counted = pod.pod is not None and pod.pod.counted
        return pod.key.namespace, pod.spec_digest, said, counted, self._has_room(pod)

    def _has_room(self, pod: PendingPod) -> bool:
        free, key = self._offers.free, "/".join(pod.key)
        return free is not None and (isinstance(free.pods.get(key), BoundPod) or bool(free.room_of(key)))

    def make_again(self, pod: PendingPod) -> Remade | None:
        """A pod as the webhook would leave it, if it were sent to it now; None where that is not known."""
        if pod.pod is None or left_by_namespace(pod, self._offers, self.policy):
            return None
        return remade_of(pod.pod, self._offers.without(pod.pod), self.policy)

    def keep(self, pod: PendingPod, move: Move) -> None:
        if self._offers.free is not None and pod.owner is not None:
            origin = Origin(pod.key.namespace, pod.owner.uid, pod.generate_name or pod.key.name)
            self._offers.free.reserve(move.pod, origin, self._clock.now())
