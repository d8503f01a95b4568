"""Reading what every diagnosis needs of a cluster. Reads only, each thing once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tessera.core.admission.policy import FallbackPolicy, Policy, is_bridge_on
from tessera.core.admission.view.offers import Offers
from tessera.core.devices.capacity import PodUse
from tessera.core.dra.slices import API_VERSION as DRA_VERSION
from tessera.core.requests.asking import alternatives_of
from tessera.diagnosis.devices import SeenClaim, SeenDevices, devices_for, seen_claim
from tessera.diagnosis.evidence import DiagnosisInventory, SeenPod, diagnosis_inventory
from tessera.diagnosis.nodes import request_of
from tessera.diagnosis.reading import Reader
from tessera.inventory.presence import Presences
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    UNFINISHED_PODS,
)
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


async def gather_cluster(
    reader: Reader, policy: FallbackPolicy, wanted: Callable[[PodUse, PodIn], bool] = lambda *_: False
) -> tuple[DiagnosisInventory, tuple[SeenPod, ...]]:
    """The nodes, and what pods hold and wait for; pods that are `wanted` as a whole. Where it matters by the policy, what is free."""
    inventory, pods = diagnosis_inventory(policy), list[SeenPod]()

    def begin() -> Callable[[bytes], None]:
        pods.clear()
        inventory.begin_pods()
        if inventory.viewed:
            inventory.viewed.clear()
        return take

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

    await reader.fill(NODES.name, NODES.path, {}, inventory.begin_nodes)
    inventory.mig_layouts = await reader.each(PLURAL, path_of(API_VERSION, PLURAL), {}, MigLayout.read)
    reader.unseen.pop(PLURAL, None)  # the answers stand without them
    with reader.reading(CONFIGURATIONS):
        await inventory.read_mig_manager(reader.client)
    if (manager := inventory.mig_manager) is not None and manager.error:
        reader.unseen[CONFIGURATIONS] = manager.error
    await reader.fill(UNFINISHED_PODS.name, UNFINISHED_PODS.path, UNFINISHED_PODS.query, begin)
    return inventory, tuple(pods)


@dataclass(frozen=True, slots=True)
class DraLists:
    """Everything of DRA, as the API server has it."""

    classes: tuple[DeviceClassIn, ...] = ()
    slices: tuple[SliceIn, ...] = ()
    claims: tuple[ClaimIn, ...] = ()


async def gather_dra(reader: Reader, inventory: DiagnosisInventory) -> DraLists:
    """What DRA offers, and what claims hold; the inventory takes it in, too."""
    found = DraLists(
        await reader.each(DEVICE_CLASSES.name, DEVICE_CLASSES.path, {}, decode_class),
        await reader.each(RESOURCE_SLICES.name, RESOURCE_SLICES.path, {}, decode_slice),
        await reader.each(RESOURCE_CLAIMS.name, RESOURCE_CLAIMS.path, {}, decode_claim),
    )
    inventory.dra.take(found.classes, found.slices, found.claims)
    inventory.refresh_dra()
    return found


async def devices_for_pods(reader: Reader, dra: DraLists, pods: Iterable[SeenPod]) -> SeenDevices:
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


def plugins_by_node(pods: Iterable[PodIn]) -> dict[str, bool] | None:
    """Whether the device plugin is ready, by node; None where it has no pods: it may run without."""
    return {one.spec.node_name: one.ready for one in pods} or None


async def gather_offers(reader: Reader, inventory: DiagnosisInventory) -> Offers:
    """What decisions in every namespace are made by: nodes, namespaces and quotas."""
    namespaces = await reader.each(
        "namespaces", NAMESPACES.path, {}, lambda raw: namespace_of(objects.decode_any(raw))
    )
    offers = Offers(inventory.capacity.values(), namespaces)
    for quota in await reader.each(
        "quotas", RESOURCE_QUOTAS.path, {}, lambda raw: quota_of(decode_quota(raw))
    ):
        offers.put_quota(quota)
    return offers


def is_bridge_used(pods: Iterable[SeenPod], offers: Offers, policy: Policy) -> bool:
    """Whether some request is a claim, or may become one."""
    bridged = any(alternatives_of(one.pod) is not None for one in pods)
    return bridged or is_bridge_on(offers.namespaces.values(), policy.fallback.dra)


def put_free(offers: Offers, reader: Reader, inventory: DiagnosisInventory, policy: FallbackPolicy) -> None:
    """Have decisions go by what is free where they should: by the pods, unless these could not be read."""
    if inventory.viewed is not None and UNFINISHED_PODS.name not in reader.unseen:
        offers.follow_pods(policy.transient_taints).replace_pods(inventory.viewed.items(), 0.0)


def put_dra(offers: Offers, inventory: DiagnosisInventory, presences: Presences) -> None:
    """Have decisions go by the classes that there are, and by the controller: requests become claims only while it is at work."""
    offers.put_classes(inventory.dra.pools.serving, inventory.dra.pools.classes)
    offers.put_controller(presences.controller is None or presences.controller.at_work)
