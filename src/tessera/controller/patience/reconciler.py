"""Follows the pods that wait and what is free for them, and evicts those whose patience is over.

Whether the webhook can be called, by the EndpointSlices of its Service.
What patience writes: evictions, its history, and Events of pods; and what it asks the API server just before an eviction.
"""

import logging
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Literal

from tessera.controller.patience.judge import ViewJudge
from tessera.controller.patience.plan import Eviction, PassedOver, Plan, counted, plan
from tessera.controller.patience.successors import SUCCESSOR_SECONDS, Successors
from tessera.controller.reconciler import Reconciler, ReconcilerParts
from tessera.core.admission.policy import LEAST_PATIENCE, Policy
from tessera.core.admission.view.pods import BoundPod
from tessera.core.text import age
from tessera.diagnosis.patience.history import CONFIG_MAP, History
from tessera.diagnosis.patience.pending_pods import Job, PendingPod, left_by_autoscaler
from tessera.kube.clock import CONFLICTS, Once, Retries
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.event_recorder import About, Event, Recorder
from tessera.kube.rest.client import Client, evict, path_of
from tessera.kube.view.lease import PATIENCE
from tessera.kube.view.live import LiveView
from tessera.kube.watch.listing import read_list
from tessera.kube.watch.table import UNFINISHED_PODS, Key, Resource, TableEntry, entry_by_key
from tessera.protocol.kubernetes.controllers import decode_event
from tessera.protocol.kubernetes.webhook import EndpointSlice, decode_endpoint_slice


def endpoint_slices(namespace: str, service: str) -> Resource:
    """The EndpointSlices of a Service."""
    path = path_of("discovery.k8s.io/v1", "endpointslices", namespace=namespace)
    return Resource("endpointslices", path, labels=f"kubernetes.io/service-name={service}")


class Endpoints:
    """The endpoints of a Service."""

    def __init__(self) -> None:
        self._slices: dict[Key, bool] = {}  # whether one of them is ready

    @property
    def is_ready(self) -> bool:
        return any(self._slices.values())

    def entry(self) -> TableEntry[EndpointSlice]:
        remove = self._slices.pop
        return TableEntry(
            decode_endpoint_slice, self._put, lambda key: remove(key, None), begin=self._slices.clear
        )

    def _put(self, one: EndpointSlice) -> None:
        self._slices[_key(one)] = one.is_ready


def _key(one: EndpointSlice) -> Key:
    return Key(one.metadata.namespace, one.metadata.name)


log = logging.getLogger(__name__)

REASON: Final = "GPUPatience"  # of Events
_EVENTS_OF_A_PAGE: Final = "100"

Result = Literal["evicted", "changed", "refused"]


class Writes:
    """Carries out what is planned."""

    def __init__(self, client: Client, recorder: Recorder, namespace: str) -> None:
        self._client = client
        self._recorder = recorder
        self._namespace = namespace
        self._clock = client.clock

    async def read_history(self) -> History:
        """What was evicted before, by whichever process; nothing where that was never written."""
        raw = await self._client.find(self._path(CONFIG_MAP))
        return History() if raw is None else History.read(raw)

    async def write_history(self, history: History) -> History:
        """Write it, and return it with its new version; `ApiError.is_conflict` where another process was first."""
        document = history.document(self._namespace)
        if history.version:  # a patch: labels that the chart has given it stay
            raw = await self._client.patch(self._path(CONFIG_MAP), document)
        else:
            raw = await self._client.create(self._path(), document)
        return History.read(raw)

    async def job(self, pod: PendingPod) -> Job | None:
        """The Job of a pod; None where it is gone, or another has its name."""
        if pod.owner is None:
            return None
        path = path_of("batch/v1", "jobs", namespace=pod.key.namespace, name=pod.owner.name)
        raw = await self._client.find(path)
        found = None if raw is None else Job.read(raw)
        return found if found and found.uid == pod.owner.uid else None

    async def scales_up(self, pod: PendingPod) -> bool:
        """Whether an autoscaler brings a node for a pod, by its Events.

        They are read one by one: a tenant can write hundreds about its pod, of a megabyte each.
        """
        query = {"fieldSelector": f"involvedObject.uid={pod.uid}", "limit": _EVENTS_OF_A_PAGE}
        now, scaling = self._clock.wall(), list[str]()

        def take(raw: bytes) -> None:
            if left_by_autoscaler([decode_event(raw)], now):
                scaling.append(pod.uid)

        await read_list(
            self._client, path_of("v1", "events", namespace=pod.key.namespace), query, lambda: take
        )
        return bool(scaling)

    async def evict(self, pod: PendingPod) -> Result:
        """Evict a pod as it was seen; `changed`: it is not so any more. Raises `KubeError` for anything else that goes wrong."""
        try:
            as_seen = await evict(self._client, *pod.key, {"uid": pod.uid, "resourceVersion": pod.version})
        except ApiError as error:
            if not error.is_too_many:
                raise
            return "refused"
        return "evicted" if as_seen else "changed"

    def evicted(self, one: Eviction) -> None:
        """Say on a pod why it was evicted."""
        owner = one.pod.owner
        who = f"its {owner.kind} {owner.name}" if owner else "its controller"
        waited = age(self._clock.wall(), one.pod.since or 0.0)
        text = (
            f"evicted: it waited {waited}, and {one.move.words} now. {who} creates it again, and the webhook "
            "decides again"
        )
        self._recorder.record(Event(_about(one.pod), REASON, text))
        log.info("pod %s/%s %s", one.pod.key.namespace, one.pod.key.name, text)

    def notice(self, one: Eviction) -> None:
        """Say on a pod without a controller what its author can do."""
        text = (
            f"it has waited {age(self._clock.wall(), one.pod.since or 0.0)}, and {one.move.words} now. "
            "No controller creates it again: delete it, and create it again as you first wrote it"
        )
        self._recorder.record(Event(_about(one.pod), REASON, text))

    def _path(self, name: str | None = None) -> str:
        return path_of("v1", "configmaps", namespace=self._namespace, name=name)


def _about(pod: PendingPod) -> About:
    namespace, name = pod.key
    return About("v1", "Pod", name, namespace, pod.uid)


_HISTORY: Final = "history"


@dataclass(frozen=True, slots=True)
class Pace:
    """How quickly all this goes, in seconds; tests go quicker."""

    least: float = LEAST_PATIENCE  # of a pod
    evictions: int = 10  # in the cluster, in so much time
    window: float = 60.0
    successor: float = SUCCESSOR_SECONDS
    poll: float = 1.0  # between two plans
    fresh: float = 5.0  # until a pod is decided about again


DEFAULT_PACE: Final = Pace()


class PatienceReconciler(Reconciler):
    """Evicts pods that wait for longer than their patience, when something else is free for them."""

    name = PATIENCE

    def __init__(
        self,
        parts: ReconcilerParts,
        namespace: str,
        service: str,
        pace: Pace = DEFAULT_PACE,
    ) -> None:
        """Work for the webhook behind a Service of a namespace; the history is kept in that namespace, too."""
        super().__init__(parts, "the controller evicts no pods that wait: %s")
        self.pods: dict[Key, PendingPod] = {}  # those that ask for GPUs
        self._webhook = Endpoints()
        self._pace = pace
        self._view = LiveView(parts.client, follower=parts.follower)
        self.table = {
            UNFINISHED_PODS: entry_by_key(
                PendingPod.read_waiting, self._put, self._remove, key=attrgetter("key"), known=self.pods.keys
            ).bounded(attrgetter("key"), attrgetter("size"), PendingPod.without_spec),
            endpoint_slices(namespace, service): self._webhook.entry(),
        }
        parts.follower.add(self.table)
        self._judge = ViewJudge(self._view.offers, self._clock, pace.least, pace.fresh)
        self._successors = Successors(pace.successor)
        self._writes = Writes(parts.client, parts.recorder, namespace)
        self._history: History | None = None  # None: it is to be read
        self._unwritten = False  # some of it helped, and is not written yet
        self._written_doubts = 0  # their revision in the history
        self._passed_over = PassedOver()
        self._noticed = Once()  # by bare pod: its uid, once it has an Event
        self._conflicts = Retries(self._clock.now, *CONFLICTS)  # of the history, and of pods by UID
        parts.metrics.webhook_seen = lambda: self._webhook.is_ready
        parts.metrics.doubted_namespaces = lambda: len(self._successors.doubts)

    def configure(self, policy: Policy) -> None:
        """Decide as the webhook does with this configuration. Without a patience in it the pods count that have an annotation, or whose namespace has one."""
        self._judge.policy = policy
        # pods are followed here also where the webhook does not
        self._view.configure(replace(policy.fallback, full_enabled=True))

    # what the process asks

    async def follow(self) -> None:
        await self._view.run()

    def missing(self) -> str | None:
        return "; ".join(filter(None, (self._view.missing(), super().missing()))) or None

    async def synced(self) -> None:
        await self._view.synced()
        await super().synced()

    def lacks(self) -> str:
        return self.missing() or ("it may not list pods" if self._view.offers.free is None else "")

    def begin(self) -> None:
        # what another leader did since this one was it
        self._conflicts.clear()
        self._history, self._unwritten, self._successors = None, False, Successors(self._pace.successor)
        self._written_doubts = 0

    async def rest(self, _: float) -> None:
        await self._clock.sleep(self._pace.poll)

    async def reconcile(self) -> bool:
        """Make one plan and carry it out. Raises when the API server refuses something that is not of one pod."""
        await self.until_able()  # a new configuration may need pods that are not followed yet
        self._conflicts.forget_old()
        if not self._conflicts.is_due(_HISTORY):
            return False
        if self._history is None:
            self._history, self._unwritten = await self._writes.read_history(), False
            self._successors.restore(self._history.doubts, self._clock.now(), self._clock.wall())
        history = self._history
        for owner in self._successors.settle(self._clock.now(), self._has_node):
            history.helped(owner)
            self._unwritten = True
        found = self._plan(history)
        if found.unknown:
            for pod in found.unknown:
                self._judge.put_job(pod, await self._writes.job(pod))
            if not found.evictions and not found.notices:
                found = self._plan(history)  # else the Jobs' pods come a second later
        self._metrics.patience_states = dict(found.states)
        for one in found.notices:
            self._notice(one)
        due = [one for one in found.evictions if self._conflicts.is_due(one.pod.uid)]
        evictions = [one for one in due if not await self._scales_up(one)]
        revision = self._successors.revision
        if evictions or self._unwritten or revision != self._written_doubts:
            self._fence()
            wall, doubts = self._clock.wall(), self._successors.written(self._clock.now(), self._clock.wall())
            # before the evictions: what is not written is not done, and of two that lead one cannot write
            fresh = history.with_evictions(counted(evictions), wall, self._pace.window).with_doubts(doubts)
            self._history = None  # until it is written: another process may have
            self._history, self._unwritten = await self._written(fresh), False
            self._written_doubts = revision
        while evictions:
            try:
                await self._evict(evictions[0])
            except KubeError:
                for one in evictions:
                    self._undo(one)
                raise
            del evictions[0]
        return False

    async def _written(self, history: History) -> History:
        """Write the history; where another process was first, it is left alone for a while."""
        try:
            written = await self._writes.write_history(history)
        except ApiError as error:
            if error.is_conflict:
                self._conflicts.put_off(_HISTORY)
            raise
        self._conflicts.forget(_HISTORY)
        return written

    async def _scales_up(self, one: Eviction) -> bool:
        """Whether an autoscaler brings a node for a pod: then it is left alone."""
        if scales_up := await self._writes.scales_up(one.pod):
            self._judge.leave(one.pod, "scale_up")
        return scales_up

    async def _evict(self, one: Eviction) -> None:
        # before the call: the successor may be seen before the call has returned
        self._successors.expect(one.pod, self.pods.values(), one.move, self._clock.now())
        result = "failed"
        try:
            self._fence()
            result = await self._writes.evict(one.pod)
        finally:
            self._metrics.evictions.add(result)
        if result == "evicted":
            self._writes.evicted(one)
            return
        self._undo(one)
        if result == "refused":
            self._judge.leave(one.pod, "refused")
        else:  # the watch brings what it is now
            self._conflicts.put_off(one.pod.uid)

    def _undo(self, one: Eviction) -> None:
        """A pod was not evicted after all: that counts for nothing."""
        if one.pod.owner is not None and self._history is not None:
            self._successors.forget(one.pod.owner.uid)
            self._history.undone(one.pod.owner.uid)
            self._unwritten = True

    def _plan(self, history: History) -> Plan:
        wall = self._clock.wall()
        left = history.left(wall, self._pace.evictions, self._pace.window)
        lately = {uid for uid, one in history.owners.items() if wall - one.at < self._pace.successor}
        self._judge.begin(self._successors)
        return plan(
            self.pods.values(),
            self._judge,
            history,
            self._successors.owners | lately,
            self._passed_over,
            now=wall,
            most=left if self._webhook.is_ready else 0,
            window=self._pace.window,
        )

    def _notice(self, one: Eviction) -> None:
        if self._noticed.begin(one.pod.uid, one.pod.key):
            self._noticed.keep(self.pods)
            self._writes.notice(one)

    def _has_node(self, key: Key, uid: str) -> bool:
        """Whether a pod that waited has a node now."""
        free, waits = self._view.offers.free, self.pods.get(key)
        return (
            free is not None
            and (waits is None or waits.uid != uid)
            and isinstance(free.pods.get("/".join(key)), BoundPod)
        )

    # what is seen

    def _put(self, pod: PendingPod) -> None:
        before = self.pods.get(pod.key)
        if before is not None and before.uid == pod.uid and pod.since is not None:
            # The condition of a pod that loses its gates keeps its time: the scheduler has looked at it only since.
            waited_from = self._clock.wall() if before.left_alone == "gated" else before.since or 0.0
            pod = replace(pod, since=max(pod.since, waited_from))
        self.pods[pod.key] = pod
        self._successors.see(pod, self._clock.now(), self._judge.make_again)

    def _remove(self, key: Key) -> None:
        self.pods.pop(key, None)
