"""Reading one pod or workload that is asked about, and the cluster around it. Reads only, each thing once."""

from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.core.admission.policy import may_claim
from tessera.core.admission.view.offers import Offers
from tessera.core.requests.asking import alternatives_of
from tessera.diagnosis.evidence import DiagnosisInventory, Evidence, SeenPod, SeenWorkload, Target
from tessera.diagnosis.gather import (
    PLUGINS,
    devices_for_pods,
    gather_cluster,
    gather_dra,
    plugins_by_node,
    put_dra,
    put_free,
    seen_pod,
)
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
from tessera.kube.watch.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, Workload, decode_event, decode_workload
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import decode_quota, namespace_of, quota_of
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
        inventory, _ = await gather_cluster(reader, used.policy.fallback)
        dra = await gather_dra(reader, inventory)
        now = self._clock.wall()
        nodes, pods = inventory.capacity.values(), [pod] if pod else []
        drivers = await read_drivers(reader, nodes, dra.slices, dra.claims, now)
        devices = await devices_for_pods(reader, dra, pods)
        plugins = await reader.all("the device plugin's pods", PodIn, path_of("v1", "pods"), PLUGINS)
        offers, patient = await self._offers(inventory), used.policy.fallback.patience is not None
        installed = self._decides_by.namespace, self._decides_by.name
        bridged = pod is not None and alternatives_of(pod.pod) is not None
        on = bridged or may_claim(offers.namespaces.get(self._namespace), used.policy.fallback.dra)
        if not (on or any(one.state.claims for one in pods)):  # without DRA all else still stands
            for resource in (DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS):
                reader.unseen.pop(resource.name, None)
        presences = Presences(
            await read_webhook(reader, *installed),
            await read_controller(reader, installed[0], self._clock) if on else None,
            drivers,
            await read_controller(reader, installed[0], self._clock, PATIENCE) if patient else None,
        )
        put_dra(offers, inventory, presences)
        put_free(offers, reader, inventory, used.policy.fallback)
        history = None
        if patient and pod is not None and pod.waits:
            history = await self._history(installed[0])
            pod = replace(pod, job=await self._job(pod.state))
        unseen = {**reader.unseen, **reader.left_out()}
        if used.missing:
            unseen[CONFIGURATION] = used.missing
        plugged, told = plugins_by_node(plugins), str(used)
        evidence = Evidence(
            now, inventory, offers, used.policy, devices, plugged, unseen, told, presences, history
        )
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
        every = await self._reader.each(f"pods of namespace {self._namespace}", path, {}, own)
        pods = [one for one in every if one is not None]
        events = tuple([event for uid, by in makers.items() for event in await self._events(*by, uid)])
        title = f"{kind} {self._namespace}/{state.metadata.name}"
        first = min(pods, key=_progress, default=None)
        return SeenWorkload(title, state, template, len(pods), events), first

    async def _events(self, kind: str, name: str, uid: str) -> tuple[EventIn, ...]:
        """The events of an object, the latest last; not those of an earlier one of its name."""
        query = {"fieldSelector": f"involvedObject.name={name},involvedObject.kind={kind}"}
        path = path_of("v1", "events", namespace=self._namespace)
        found = await self._reader.each("events", path, query, decode_event)
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

    async def _offers(self, inventory: DiagnosisInventory) -> Offers:
        """What decisions are made by: nodes, the namespace, and its quotas."""
        offers = Offers(inventory.capacity.values())
        space, reader = self._namespace, self._reader
        path = path_of("v1", "namespaces", name=space)
        if (own := await reader.get(f"namespace {space}", path, objects.decode_any)) is not None:
            offers.put_namespace(namespace_of(own))
        path = path_of("v1", "resourcequotas", namespace=space)
        for quota in await reader.each(
            "resourcequotas", path, {}, lambda raw: quota_of(decode_quota(raw), space)
        ):
            offers.put_quota(quota)
        return offers


def _progress(one: SeenPod) -> tuple[int, str]:
    """How far a pod has come: the one that waits for a node first, one that runs last."""
    status, created = one.state.status, one.state.metadata.creation_timestamp or ""
    if not one.pod.node_name:
        return 0, created
    return (1 if status.phase == "Pending" or status.waiting else 2), created
