"""Looking at dynamic resource allocation: who offers devices, in which classes, and how the scheduler chooses among nodes."""

from collections.abc import Iterable
from typing import Final

from tessera.core.dra.slices import API_VERSION
from tessera.doctor.evidence import DynamicAllocation, Scheduler
from tessera.doctor.reading import Reader
from tessera.inventory.dra import DraInventory
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.controllers import PodTemplate, Workload
from tessera.protocol.kubernetes.dra import ClaimIn, ClaimTemplateIn, DeviceClassIn, SliceIn
from tessera.protocol.kubernetes.objects import NodeIn, node_of
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import ConfigMap

_DRIVERS: Final = "app.kubernetes.io/component=dra-driver"  # the chart's label
_SYSTEM: Final = "kube-system"
_SCHEDULERS: Final = "component=kube-scheduler"  # as kubeadm labels its static pods


async def gather_dra(reader: Reader, nodes: Iterable[NodeIn] = ()) -> DynamicAllocation:
    """Everything of it; an API server that does not have it has none."""
    slices = await reader.all("slices", SliceIn, path_of(API_VERSION, "resourceslices"))
    drivers = await reader.all("drivers", Workload, path_of("apps/v1", "daemonsets"), _DRIVERS)
    driver_pods: tuple[PodIn, ...] = ()
    if drivers:
        driver_pods = await reader.all("driver_pods", PodIn, path_of("v1", "pods"), _DRIVERS)
    templates = await reader.all("templates", ClaimTemplateIn, path_of(API_VERSION, "resourceclaimtemplates"))
    claims = await reader.all("claims", ClaimIn, path_of(API_VERSION, "resourceclaims"))
    choosy = [(one.metadata, one.spec.spec) for one in templates] + [
        (one.metadata, one.spec) for one in claims
    ]
    objects = DraInventory()
    if slices:
        with reader.looking("served_by_dra"):
            await objects.read(reader.client)
    looked_at = [node_of(node) for node in nodes]
    return DynamicAllocation(
        classes=await reader.all("classes", DeviceClassIn, path_of(API_VERSION, "deviceclasses")),
        slices=slices,
        drivers=drivers,
        driver_pods=driver_pods,
        alternatives=tuple(f"{meta.namespace}/{meta.name}" for meta, spec in choosy if spec.has_alternatives),
        schedulers=await _schedulers(reader) if slices else (),
        served={node.name: objects.served(node) for node in looked_at} if slices else {},
        invalid={pool: name for node in looked_at for pool, name in objects.invalid(node).items()},
        free=objects.free(looked_at),
    )


async def _schedulers(reader: Reader) -> tuple[Scheduler, ...]:
    """The schedulers that are pods, and their configuration where it lies in a ConfigMap."""
    path = path_of("v1", "pods", namespace=_SYSTEM)
    found = []
    for pod in await reader.all("schedulers", PodTemplate, path, _SCHEDULERS):
        file, text = pod.option("--config") or "", None
        if place := pod.config_map_of(file):
            where = path_of("v1", "configmaps", namespace=_SYSTEM, name=place[0])
            config = await reader.one("schedulers", ConfigMap, where)
            text = (config.data or {}).get(place[1]) if config else None
        found.append(Scheduler(pod.metadata.name, file, text))
    return tuple(found)
