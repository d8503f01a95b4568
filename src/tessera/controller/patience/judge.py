"""What a plan asks about a pod, answered by the view that decisions are made by."""

from tessera.controller.patience.successors import Successors
from tessera.core.admission.moves import Move, move_of
from tessera.core.admission.policy import Policy, patience_of
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import Origin
from tessera.core.errors import InvalidInput
from tessera.diagnosis.patience.jobs import Job
from tessera.diagnosis.patience.objects import PendingPod
from tessera.diagnosis.patience.rules import left_by_job, left_by_namespace
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
        self._looked: dict[str, float] = {}  # by the pod's uid: until when it is fresh
        self._successors = Successors()

    def begin(self, successors: Successors) -> None:
        """A plan begins: what is known of pods and Jobs that are gone is forgotten."""
        self._successors = successors
        now = self._clock.now()
        self._jobs = {uid: one for uid, one in self._jobs.items() if one[1] > now}
        self._left = {uid: one for uid, one in self._left.items() if one[1] > now}
        self._looked = {uid: until for uid, until in self._looked.items() if until > now}

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
        if why := left_by_namespace(pod, self._offers, self.policy):
            return why
        if self._successors.is_doubted(pod.key.namespace, self._clock.now()):
            return "webhook"
        if pod.uid in self._left:
            return self._left[pod.uid][0]
        if not pod.owner.is_job:
            return ""
        if pod.owner.uid not in self._jobs:
            return None
        return left_by_job(pod, self._jobs[pod.owner.uid][0])

    def is_fresh(self, pod: PendingPod) -> bool:
        return pod.uid in self._looked

    def move(self, pod: PendingPod) -> Move | None:
        self._looked[pod.uid] = self._clock.now() + self._fresh
        if pod.pod is None:
            return None
        return move_of(pod.pod, "/".join(pod.key), self._offers.without(pod.pod), self.policy)

    def keep(self, pod: PendingPod, move: Move) -> None:
        if self._offers.free is not None and pod.owner is not None:
            origin = Origin(pod.key.namespace, pod.owner.uid, pod.generate_name or pod.key.name)
            self._offers.free.reserve(move.pod, origin, self._clock.now())
