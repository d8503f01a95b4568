"""Reading one pod or workload that is asked about, and the cluster around it. Reads only, each thing once."""

from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.diagnosis.evidence import Evidence, SeenPod, SeenWorkload, Target
from tessera.diagnosis.gather import observe_cluster, read_plugins, seen_pod
from tessera.diagnosis.patience.history import CONFIG_MAP, History
from tessera.diagnosis.patience.jobs import Job
from tessera.diagnosis.reading import Reader, read_controller, read_drivers, read_webhook
from tessera.diagnosis.targets import POD, NoSuchObject
from tessera.inventory.presence import Presences
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import POD_KINDS, collection, path_of
from tessera.kube.view.lease import PATIENCE
from tessera.kube.view.policy import PolicySource
from tessera.kube.watch.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, Workload, decode_event, decode_workload
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.pod import PodIn, decode_pod
from tessera.protocol.kubernetes.workloads import template_of

_APPS: Final = "apps/v1"
CONFIGURATION: Final = "the webhook's configuration"  # as what could not be read

_whole: Final = objects.decoder(dict[str, Any])


class Gatherer:
    """Reads a pod or workload of a namespace, and the cluster around it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        decides_by: PolicySource = PolicySource(),  # noqa: B008 # frozen
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._decides_by = decides_by
        self._clock = clock
        self._reader = Reader(client)

    async def gather(self, kind: str, name: str) -> tuple[Evidence, Target]:
        """Read everything; `NoSuchObject` where there is no such pod or workload."""
        raw = await self._client.find(collection(kind, self._namespace, name))
        if raw is None:
            raise NoSuchObject(f"namespace {self._namespace} has no {kind} {name}")
        workload, pod = None, seen_pod(decode_pod(raw), raw, self._namespace) if kind == POD else None
        if kind != POD:
            workload, pod = await self._workload(kind, raw)
        if pod is not None:
            events = await self._events("Pod", pod.state.metadata.name, pod.state.metadata.uid)
            pod = replace(pod, events=events)
        reader, used = self._reader, await self._decides_by.read(self._client)
        policy, (installed, name) = used.policy, (self._decides_by.namespace, self._decides_by.name)
        seen = await observe_cluster(reader, policy.fallback, self._clock, pod=pod, namespace=self._namespace)
        nodes, dra = seen.inventory.capacity.values(), seen.dra
        bridge, patient = seen.is_bridge_used(policy, self._namespace), policy.fallback.patience is not None
        presences = Presences(
            await read_webhook(reader, installed, name),
            await read_controller(reader, installed, self._clock) if bridge else None,
            await read_drivers(reader, nodes, dra.slices, dra.claims, seen.now),
            await read_controller(reader, installed, self._clock, PATIENCE) if patient else None,
        )
        evidence = seen.judged_by(reader, policy, presences, await read_plugins(reader))
        history = None
        if patient and pod is not None and pod.waits:
            history = await self._history(installed)
            pod = replace(pod, job=await self._job(pod.state))
        unseen = {**reader.unseen, **reader.left_out()}
        if not (bridge or (pod is not None and pod.state.claims)):  # without DRA all else still stands
            for resource in (DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS):
                unseen.pop(resource.name, None)
        if used.missing:
            unseen[CONFIGURATION] = used.missing
        evidence = replace(evidence, unseen=unseen, decided_with=str(used), history=history)
        return evidence, Target(pod, workload)

    async def _workload(self, kind: str, raw: bytes) -> tuple[SeenWorkload, SeenPod | None]:
        """A workload, and the one of its pods that there is most to say about."""
        state, made = decode_workload(raw), POD_KINDS[kind].kind
        document: dict[str, Any] = {**_whole(raw), "kind": made}
        template = pod_of(decode_lean_pod(msgspec.json.encode(template_of(document))), self._namespace)
        makers = {state.metadata.uid: (made, state.metadata.name)}
        if kind == "deployment":
            path = path_of(_APPS, "replicasets", namespace=self._namespace)
            for one in await self._reader.all("replicasets", Workload, path):
                owner = one.metadata.controller
                if owner is not None and owner.uid == state.metadata.uid and one.wanted:
                    makers[one.metadata.uid] = ("ReplicaSet", one.metadata.name)

        def own(raw: bytes) -> SeenPod | None:
            one = decode_pod(raw)
            over = one.status.ended or one.metadata.deletion_timestamp
            owner = one.metadata.controller
            mine = not over and owner is not None and owner.uid in makers
            return seen_pod(one, raw, self._namespace) if mine else None

        path = path_of("v1", "pods", namespace=self._namespace)
        every = await self._reader.each(Resource(f"pods of namespace {self._namespace}", path), own)
        pods = [one for one in every if one is not None]
        events = tuple([event for uid, by in makers.items() for event in await self._events(*by, uid)])
        title = f"{kind} {self._namespace}/{state.metadata.name}"
        first = min(pods, key=_progress, default=None)
        return SeenWorkload(title, state, template, len(pods), events), first

    async def _events(self, kind: str, name: str, uid: str) -> tuple[EventIn, ...]:
        """The events of an object, the latest last; not those of an earlier one of its name."""
        fields = f"involvedObject.name={name},involvedObject.kind={kind}"
        path = path_of("v1", "events", namespace=self._namespace)
        found = await self._reader.each(Resource("events", path, fields), decode_event)
        mine = [one for one in found if not uid or one.involved_object.uid in ("", uid)]
        return tuple(sorted(mine, key=lambda one: one.last_seen or 0.0))

    async def _history(self, namespace: str) -> History | None:
        """What the controller of a namespace has evicted; None where nothing is written, or it may not be read."""
        path = path_of("v1", "configmaps", namespace=namespace, name=CONFIG_MAP)
        return await self._reader.get(f"ConfigMap {namespace}/{CONFIG_MAP}", path, History.read)

    async def _job(self, pod: PodIn) -> Job | None:
        """The Job of a pod; None where it is no Job's, or the Job is gone or may not be read."""
        owner, namespace = pod.metadata.controller, pod.metadata.namespace
        if owner is None or owner.kind != "Job":
            return None
        path = path_of("batch/v1", "jobs", namespace=namespace, name=owner.name)
        found = await self._reader.get(f"Job {namespace}/{owner.name}", path, Job.read)
        return found if found and found.uid == owner.uid else None


def _progress(one: SeenPod) -> tuple[int, str]:
    """How far a pod has come: the one that waits for a node first, one that runs last."""
    status, created = one.state.status, one.state.metadata.creation_timestamp or ""
    if not one.pod.node_name:
        return 0, created
    return (1 if status.phase == "Pending" or status.waiting else 2), created
