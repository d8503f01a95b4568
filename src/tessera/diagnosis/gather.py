"""Reading what every diagnosis needs of a cluster. Reads only, each thing once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tessera.core.admission.policy import FallbackPolicy, Policy, is_bridge_on, may_claim
from tessera.core.admission.view.offers import Offers
from tessera.core.devices.capacity import PodUse
from tessera.core.dra.slices import API_VERSION as DRA_VERSION
from tessera.core.kubernetes.node import Namespace
from tessera.core.requests.asking import alternatives_of
from tessera.diagnosis.devices import SeenClaim, SeenDevices, devices_for, seen_claim
from tessera.diagnosis.evidence import DiagnosisInventory, Evidence, SeenPod, diagnosis_inventory
from tessera.diagnosis.nodes import request_of
from tessera.diagnosis.reading import Reader
from tessera.inventory.presence import Presences
from tessera.kube.clock import Clock
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import (
    DEVICE_CLASSES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    UNFINISHED_PODS,
    Resource,
)
from tessera.kube.watch.table import TableEntry
from tessera.protocol.admission.viewed_pod import read_viewed_pod
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.dra import (
    ClaimIn,
    DeviceClassIn,
    SliceIn,
    decode_claim,
    decode_class,
    decode_slice,
)
from tessera.protocol.kubernetes.lean_pod import pod_of
from tessera.protocol.kubernetes.nodes import decode_quota, namespace_of, quota_of
from tessera.protocol.kubernetes.pod import PodIn, decode_pod
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
    pod: SeenPod | None = None,
    namespace: str = "",
) -> ObservedCluster:
    """Read everything once. Asked about are the pods that are `wanted`, and this `pod`; quotas matter in `namespace`, or in all."""
    inventory, found = await _gather_cluster(reader, policy, wanted)
    dra, pods = await _gather_dra(reader, inventory), (pod, *found) if pod is not None else found
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
