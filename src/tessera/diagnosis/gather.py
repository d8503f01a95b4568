"""Reading what every diagnosis needs of a cluster. Reads only, each thing once.

Reading one pod or workload that is asked about, and the cluster around it. Reads only, each thing once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tessera.core.admission.policy import FallbackPolicy, Policy, is_bridge_on, may_claim
from tessera.core.admission.view.offers import Offers
from tessera.core.devices.capacity import PodUse
from tessera.core.dra.slices import API_VERSION as DRA_VERSION
from tessera.core.errors import TesseraError
from tessera.core.kubernetes.node import Namespace
from tessera.core.requests.asking import alternatives_of
from tessera.diagnosis.devices import SeenClaim, SeenDevices, devices_for, seen_claim
from tessera.diagnosis.evidence import (
    DiagnosisInventory,
    Evidence,
    SeenPod,
    SeenWorkload,
    Target,
    diagnosis_inventory,
)
from tessera.diagnosis.nodes import request_of
from tessera.diagnosis.patience.history import CONFIG_MAP, History
from tessera.diagnosis.patience.pending_pods import Job
from tessera.diagnosis.pod_groups.groups import PodGroups
from tessera.diagnosis.reading import POD, NoSuchObject, Reader, read_controller, read_drivers, read_webhook
from tessera.inventory.presence import Presences
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.rest.client import POD_KINDS, Client, collection, path_of
from tessera.kube.view.lease import PATIENCE
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.kube.watch.listing import list_once
from tessera.kube.watch.table import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    UNFINISHED_PODS,
    Resource,
    TableEntry,
)
from tessera.protocol.admission.viewed_pod import read_viewed_pod
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, Workload, decode_event, decode_workload
from tessera.protocol.kubernetes.dra import (
    ClaimIn,
    DeviceClassIn,
    SliceIn,
    decode_claim,
    decode_class,
    decode_slice,
)
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.nodes import decode_quota, namespace_of, quota_of
from tessera.protocol.kubernetes.pod import PodIn, decode_pod
from tessera.protocol.kubernetes.workloads import template_of
from tessera.protocol.mig.miglayout import API_VERSION, PLURAL, MigLayout

CONFIGURATIONS: Final = "mig-manager's configurations"  # as what could not be read
PLUGINS: Final = "app.kubernetes.io/component=device-plugin"  # the chart's label


def seen_pod(one: PodIn, raw: bytes, namespace: str = "") -> SeenPod:
    return SeenPod(pod_of(one, namespace), one, raw)


async def _gather_cluster(
    reader: Reader, policy: FallbackPolicy, wanted: Callable[[PodUse, PodIn], bool]
) -> tuple[DiagnosisInventory, tuple[SeenPod, ...]]:
    """The nodes, and what pods hold and wait for; pods that are `wanted` as a whole. Where it matters by the policy, what is free."""
    inventory, pods = diagnosis_inventory(policy), list[SeenPod]()

    def begin() -> None:
        pods.clear()
        inventory.begin_pods()
        if inventory.viewed:
            inventory.viewed.clear()

    def take(raw: bytes) -> None:
        one = decode_pod(raw)
        use = inventory.use_of(one)
        if wanted(use, one):
            pods.append(seen_pod(one, raw))
        inventory.add(use)
        if inventory.viewed is not None:
            key, viewed = read_viewed_pod(raw)
            if viewed is not None:
                inventory.viewed[key] = viewed

    await reader.fill(inventory.table(pods=False))
    inventory.mig_layouts = await reader.each(Resource(PLURAL, path_of(API_VERSION, PLURAL)), MigLayout.read)
    reader.unseen.pop(PLURAL, None)  # the answers stand without them
    with reader.reading(CONFIGURATIONS):
        await inventory.read_mig_manager(reader.client)
    if (manager := inventory.mig_manager) is not None and manager.error:
        reader.unseen[CONFIGURATIONS] = manager.error
    await reader.fill({UNFINISHED_PODS: TableEntry(bytes, take, begin=begin)})
    return inventory, tuple(pods)


@dataclass(frozen=True, slots=True)
class DraLists:
    """Everything of DRA, as the API server has it."""

    classes: tuple[DeviceClassIn, ...] = ()
    slices: tuple[SliceIn, ...] = ()
    claims: tuple[ClaimIn, ...] = ()


async def _gather_dra(reader: Reader, inventory: DiagnosisInventory) -> DraLists:
    """What DRA offers, and what claims hold; the inventory takes it in, too."""
    found = DraLists(
        await reader.each(DEVICE_CLASSES, decode_class),
        await reader.each(RESOURCE_SLICES, decode_slice),
        await reader.each(RESOURCE_CLAIMS, decode_claim),
    )
    inventory.dra.take(found.classes, found.slices, found.claims)
    inventory.refresh_dra()
    return found


async def _devices_for_pods(reader: Reader, dra: DraLists, pods: Iterable[SeenPod]) -> SeenDevices:
    asking = [one for one in pods if one.waits]
    named = {(one.pod.namespace, name) for one in asking for name in one.state.claims.values() if name}
    claims: dict[tuple[str, str], SeenClaim | None] = {}
    for claim in dra.claims if named else ():
        key = (claim.metadata.namespace, claim.metadata.name)
        if key in named:
            claims[key] = seen_claim(claim)
    for space, name in named - claims.keys():
        alone = Reader(
            reader.client
        )  # where claims of all namespaces may not be read; what then may not, either, is left out
        path = path_of(DRA_VERSION, "resourceclaims", namespace=space, name=name)
        found = await alone.one(name, ClaimIn, path) if RESOURCE_CLAIMS.name in reader.unseen else None
        if not alone.unseen:
            claims[space, name] = seen_claim(found) if found else None
    classes = None if DEVICE_CLASSES.name in reader.unseen else dra.classes
    slices = None if RESOURCE_SLICES.name in reader.unseen else dra.slices
    return devices_for(claims, {name for one in asking for name in request_of(one.pod).gpus}, classes, slices)


async def _gather_offers(reader: Reader, inventory: DiagnosisInventory, only: str) -> Offers:
    """What decisions are made by: nodes, namespaces and quotas; `only` those of one namespace if it is named."""

    def read(raw: bytes) -> Namespace:
        return namespace_of(objects.decode_any(raw))

    if only:
        own = await reader.get(f"namespace {only}", path_of("v1", "namespaces", name=only), read)
        namespaces: tuple[Namespace, ...] = () if own is None else (own,)
        quotas = Resource("resourcequotas", path_of("v1", "resourcequotas", namespace=only))
    else:
        namespaces = await reader.each(NAMESPACES, read)
        quotas = Resource("quotas", RESOURCE_QUOTAS.path)
    offers = Offers(inventory.capacity.values(), namespaces)
    for quota in await reader.each(quotas, lambda raw: quota_of(decode_quota(raw), only)):
        offers.put_quota(quota)
    return offers


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster:
    """What a cluster has, before it is known which parts of Tessera are at work."""

    now: float  # Unix time
    inventory: DiagnosisInventory
    pods: tuple[SeenPod, ...]  # that are asked about
    dra: DraLists
    devices: SeenDevices
    offers: Offers

    def is_bridge_used(self, policy: Policy, namespace: str = "") -> bool:
        """Whether a pod's request is a claim, or requests of the namespace, or of any namespace, may become claims."""
        if any(alternatives_of(one.pod) is not None for one in self.pods):
            return True
        namespaces, configured = self.offers.namespaces, policy.fallback.dra
        if namespace:
            return may_claim(namespaces.get(namespace), configured)
        return is_bridge_on(namespaces.values(), configured)

    def judged_by(
        self, reader: Reader, policy: Policy, presences: Presences, plugins: Iterable[PodIn]
    ) -> Evidence:
        """The evidence. `plugins`: the device plugin's pods; without any, Tessera may run without the plugin.

        Requests become claims only while the controller is at work. Decisions go by what is free if the policy wants
        that and all pods could be read.
        """
        inventory, offers = self.inventory, self.offers
        offers.put_classes(inventory.dra.pools.serving, inventory.dra.pools.classes)
        offers.put_controller(presences.controller is None or presences.controller.at_work)
        if inventory.viewed is not None and UNFINISHED_PODS.name not in reader.unseen:
            pods = offers.follow_pods(policy.fallback.transient_taints)
            pods.replace_pods(inventory.viewed.items(), 0.0)
            pods.block_by_times(self.now)
        return Evidence(
            self.now,
            inventory,
            offers,
            policy,
            self.devices,
            {one.spec.node_name: one.ready for one in plugins} or None,
            dict(reader.unseen),
            presences=presences,
        )


async def observe_cluster(
    reader: Reader,
    policy: FallbackPolicy,
    clock: Clock,
    *,
    wanted: Callable[[PodUse, PodIn], bool] = lambda *_: False,
    pods: Sequence[SeenPod] = (),
    namespace: str = "",
) -> ObservedCluster:
    """Read everything once. Asked about are the pods that are `wanted`, and these `pods`; quotas matter in `namespace`, or in all."""
    inventory, found = await _gather_cluster(reader, policy, wanted)
    dra, pods = await _gather_dra(reader, inventory), (*pods, *found)
    return ObservedCluster(
        now=clock.wall(),
        inventory=inventory,
        pods=pods,
        dra=dra,
        devices=await _devices_for_pods(reader, dra, pods),
        offers=await _gather_offers(reader, inventory, namespace),
    )


async def read_plugins(reader: Reader) -> tuple[PodIn, ...]:
    """The device plugin's pods."""
    return await reader.all("the device plugin's pods", PodIn, path_of("v1", "pods"), PLUGINS)


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
        used, history = await self._decides_by.read(self._client), None
        if used.policy.fallback.patience is not None and pod is not None and pod.waits:
            history = await self._history(self._decides_by.namespace)
            pod = replace(pod, job=await self._job(pod.state))
        evidence = await self._observe(used, () if pod is None else (pod,))
        return replace(evidence, history=history), Target(pod, workload)

    async def gather_waiting(self) -> tuple[Evidence, PodGroups]:
        """Read everything, and the pods of the namespace that wait; without a namespace, all that wait."""
        groups = PodGroups()
        path = path_of("v1", "pods", namespace=self._namespace or None)
        waiting = Resource("waiting pods", path, fields=f"{UNFINISHED_PODS.fields},spec.nodeName=")
        table = {waiting: TableEntry(_read_waiting, groups.add, begin=groups.clear)}
        await list_once(self._client, table, odd=self._reader.odd)
        used = await self._decides_by.read(self._client)
        return await self._observe(used, tuple(group.oldest for group in groups.first())), groups

    async def _observe(self, used: UsedPolicy, pods: Sequence[SeenPod]) -> Evidence:
        """Read the cluster around some pods, and which parts of Tessera are at work there."""
        reader, policy = self._reader, used.policy
        installed, name = self._decides_by.namespace, self._decides_by.name
        seen = await observe_cluster(
            reader, policy.fallback, self._clock, pods=pods, namespace=self._namespace
        )
        nodes, dra = seen.inventory.capacity.values(), seen.dra
        bridge, patient = seen.is_bridge_used(policy, self._namespace), policy.fallback.patience is not None
        presences = Presences(
            await read_webhook(reader, installed, name),
            await read_controller(reader, installed, self._clock) if bridge else None,
            await read_drivers(reader, nodes, dra.slices, dra.claims, seen.now),
            await read_controller(reader, installed, self._clock, PATIENCE) if patient else None,
        )
        evidence = seen.judged_by(reader, policy, presences, await read_plugins(reader))
        unseen = {**reader.unseen, **reader.left_out()}
        if not (bridge or any(pod.state.claims for pod in pods)):  # without DRA all else still stands
            for resource in (DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS):
                unseen.pop(resource.name, None)
        if used.missing:
            unseen[CONFIGURATION] = used.missing
        return replace(evidence, unseen=unseen, decided_with=str(used))

    async def gather_node(self, name: str) -> Evidence:
        """Read the nodes and what pods hold there; `NoSuchObject` where there is no such node."""
        reader = self._reader
        inventory, _ = await _gather_cluster(reader, FallbackPolicy(), lambda *_: False)
        if name not in inventory.capacity:
            if NODES.name in reader.unseen:
                raise TesseraError(f"node {name} may not be read: {reader.unseen[NODES.name]}")
            raise NoSuchObject(f"the cluster has no node {name}")
        await _gather_dra(reader, inventory)
        plugins = {one.spec.node_name: one.ready for one in await read_plugins(reader)}
        unseen = {**reader.unseen, **reader.left_out()}
        return Evidence(now=self._clock.wall(), inventory=inventory, plugins=plugins or None, unseen=unseen)

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


def _read_waiting(raw: bytes) -> SeenPod | None:
    pod = seen_pod(decode_pod(raw), raw)
    return pod if pod.waits else None


def _progress(one: SeenPod) -> tuple[int, str]:
    """How far a pod has come: the one that waits for a node first, one that runs last."""
    status, created = one.state.status, one.state.metadata.creation_timestamp or ""
    if not one.pod.node_name:
        return 0, created
    return (1 if status.phase == "Pending" or status.waiting else 2), created
