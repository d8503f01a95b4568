"""Looking at dynamic resource allocation: who offers devices, in which classes, and how the scheduler chooses among nodes."""

from typing import Final

from tessera.core.dra.slices import API_VERSION
from tessera.diagnosis.evidence import DiagnosisInventory
from tessera.diagnosis.gather import DraLists, gather_dra
from tessera.diagnosis.reading import Reader, decode
from tessera.doctor.evidence import DynamicAllocation, Scheduler
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.controllers import PodTemplate, Workload
from tessera.protocol.kubernetes.dra import ClaimIn, ClaimTemplateIn, DeviceClassIn, SliceIn
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import ConfigMap

_DRIVERS: Final = "app.kubernetes.io/component=dra-driver"  # the chart's label
_SYSTEM: Final = "kube-system"
_SCHEDULERS: Final = "component=kube-scheduler"  # as kubeadm labels its static pods


async def gather_dra_checks(
    reader: Reader, inventory: DiagnosisInventory
) -> tuple[DynamicAllocation, DraLists]:
    """Everything of it, for the checks and for the diagnosis; an API server that does not have it has none."""
    lists = await gather_dra(reader, inventory)
    slices = tuple(decode(one, SliceIn) for one in lists.slices)
    drivers = await reader.all("drivers", Workload, path_of("apps/v1", "daemonsets"), _DRIVERS)
    driver_pods: tuple[PodIn, ...] = ()
    if drivers:
        driver_pods = await reader.all("driver_pods", PodIn, path_of("v1", "pods"), _DRIVERS)
    templates = await reader.all("templates", ClaimTemplateIn, path_of(API_VERSION, "resourceclaimtemplates"))
    claims = [decode(one, ClaimIn) for one in lists.claims]
    choosy = [(one.metadata, one.spec.spec) for one in templates] + [
        (one.metadata, one.spec) for one in claims
    ]
    nodes = [inventory.capacity[name] for name in inventory.capacity]
    found = DynamicAllocation(
        classes=tuple(decode(one, DeviceClassIn) for one in lists.classes),
        slices=slices,
        drivers=drivers,
        driver_pods=driver_pods,
        alternatives=tuple(f"{meta.namespace}/{meta.name}" for meta, spec in choosy if spec.has_alternatives),
        schedulers=await _schedulers(reader) if slices else (),
        invalid={pool: name for node in nodes for pool, name in inventory.dra.invalid(node).items()},
        free=inventory.dra.free(nodes),
    )
    return found, lists


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
