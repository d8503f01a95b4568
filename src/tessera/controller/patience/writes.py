"""What patience writes: evictions, its history, and Events of pods; and what it asks the API server just before an eviction."""

import logging
from typing import Final, Literal

from tessera.controller.patience.plan import Eviction
from tessera.core.text import age
from tessera.diagnosis.patience.history import CONFIG_MAP, History
from tessera.diagnosis.patience.jobs import Job
from tessera.diagnosis.patience.objects import PendingPod
from tessera.diagnosis.patience.rules import left_by_autoscaler
from tessera.kube.errors import ApiError
from tessera.kube.events.correlator import About, Event
from tessera.kube.events.recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.rest.eviction import evict
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.listing import read_list
from tessera.protocol.kubernetes.controllers import decode_event

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
