"""Looking at a cluster: every object once, and one pod tried with a dry run. What may not be read is remembered as unseen.

On a node also its files: the CDI specs, and what its device plugin remembers.
"""

import contextlib
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tessera.core.admission.policy import Policy
from tessera.core.dra.slices import API_VERSION
from tessera.core.errors import InvalidInput
from tessera.diagnosis.gather import PLUGINS, ObservedCluster, observe_cluster
from tessera.diagnosis.reading import Reader, read_controller
from tessera.doctor.failed_creates import failed_creates
from tessera.doctor.observations import DynamicAllocation, Names, Observations, SchedulerPod
from tessera.doctor.replicas import may_follow_pods, served
from tessera.doctor.trial import tried
from tessera.inventory.presence import DRIVERS, Presences, drivers_of, webhook_of
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import KubeError, Unreachable
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.view.lease import CONTROLLER, PATIENCE
from tessera.kube.view.ticket_keys import TicketSecret, secret_path
from tessera.kube.watch.resource import RESOURCE_SLICES
from tessera.protocol.configuration import webhook as configuration
from tessera.protocol.kubernetes.controllers import PodTemplate, Workload
from tessera.protocol.kubernetes.dra import ClaimTemplateIn
from tessera.protocol.kubernetes.objects import decoder
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import ConfigMap, Secret, Service, Version, WebhookConfiguration

T = TypeVar("T")

_APPS: Final = "apps/v1"
_CONFIGURATIONS: Final = ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
_SYSTEM: Final = "kube-system"
_SCHEDULERS: Final = "component=kube-scheduler"  # as kubeadm labels its static pods


class Observer:
    """Reads what checks need."""

    def __init__(self, client: Client, names: Names, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._names = names
        self._clock = clock
        self._reader = Reader(client)

    async def gather(self) -> Observations:
        """Look at everything; raises `Unreachable` when the API server cannot be talked to at all."""
        names, reader = self._names, self._reader
        version = await self._version()
        deployment = await self._one("deployment", Workload, _APPS, "deployments", names.webhook)
        webhook_pods = await self._pods("webhook_pods", names.webhook)
        plugins, plugin_pods = await self._daemon_sets("plugins", "plugin_pods", PLUGINS)
        config_map, policy = deployment.config_map() if deployment else None, Policy()
        config = await self._config_map("config", names.namespace, config_map, "config.yaml")
        with contextlib.suppress(InvalidInput):  # the check of the configuration reports it
            policy = configuration.parse(config or "").policy
        fallback = policy.fallback
        seen = await observe_cluster(
            reader, fallback, self._clock, wanted=lambda use, pod: not use.node or pod.has_claims
        )
        dra, configured = await self._dra(seen), path_of(*_CONFIGURATIONS, name=names.configuration)
        bridge, nodes = seen.is_bridge_used(policy), seen.inventory.capacity.values()
        slices = None if RESOURCE_SLICES.name in reader.unseen else dra.slices
        driver_pods = None if {"drivers", "driver_pods"} & reader.unseen.keys() else dra.driver_pods
        presences = Presences(
            webhook_of(deployment) if deployment else None,
            await read_controller(reader, names.namespace, self._clock) if bridge else None,
            drivers_of(nodes, slices, dra.claims, driver_pods, installed=bool(dra.drivers), now=seen.now),
            await read_controller(reader, names.namespace, self._clock, PATIENCE)
            if fallback.patience
            else None,
        )
        cluster = seen.judged_by(reader, policy, presences, plugin_pods)
        trial = None
        with reader.reading("trial"):
            trial = await tried(self._client, names.try_namespace)
        return Observations(
            names=names,
            now=seen.now,
            version=version,
            configuration=await reader.one("configuration", WebhookConfiguration, configured),
            deployment=deployment,
            service=await self._one("service", Service, "v1", "services", names.webhook),
            webhook_pods=webhook_pods,
            controller=await self._one("controller", Workload, _APPS, "deployments", names.controller),
            controller_pods=await self._pods("controller_pods", names.controller),
            bridge=bridge,
            bridge_controller=await self._one(
                "bridge_controller", Workload, _APPS, "deployments", CONTROLLER
            ),
            bridge_controller_pods=await self._pods("bridge_controller_pods", CONTROLLER),
            secret=await self._one("secret", Secret, "v1", "secrets", names.certificate_secret(deployment)),
            ticket_key=await reader.get("ticket_key", secret_path(names.namespace), TicketSecret.read),
            served=await served(reader, names.namespace, deployment, webhook_pods),
            may_follow_pods=await may_follow_pods(reader, names.namespace, deployment)
            if fallback.full_enabled
            else None,
            config=config,
            trial=trial,
            cluster=cluster,
            namespaces=tuple(seen.offers.namespaces.values()),
            pods=seen.pods,
            refusals=await failed_creates(reader),
            plugins=plugins,
            plugin_pods=plugin_pods,
            plugin_configs=await self._plugin_configs((*plugins, *dra.drivers)),
            dra=dra,
            unseen=dict(reader.unseen),
            odd={field: tuple(odd) for field, odd in reader.odd.items()},
        )

    async def _one(self, field: str, kind: type[T], version: str, plural: str, name: str) -> T | None:
        path = path_of(version, plural, namespace=self._names.namespace, name=name)
        return await self._reader.one(field, kind, path)

    async def _pods(self, field: str, app: str) -> tuple[PodIn, ...]:
        path = path_of("v1", "pods", namespace=self._names.namespace)
        return await self._reader.all(field, PodIn, path, f"app={app}")

    async def _daemon_sets(
        self, field: str, pods_field: str, labels: str
    ) -> tuple[tuple[Workload, ...], tuple[PodIn, ...]]:
        """The DaemonSets of a component in all namespaces, and their pods."""
        found = await self._reader.all(field, Workload, path_of(_APPS, "daemonsets"), labels)
        if not found:
            return (), ()
        return found, await self._reader.all(pods_field, PodIn, path_of("v1", "pods"), labels)

    async def _version(self) -> Version | None:
        """The first question: without any answer to it there is no cluster to check."""
        try:
            return decoder(Version)(await self._client.get("/version"))
        except Unreachable:
            raise
        except (KubeError, InvalidInput) as error:
            self._reader.missed("version", error)
            return None

    async def _config_map(self, field: str, namespace: str, name: str | None, key: str) -> str | None:
        """The value of a ConfigMap's key; None where there is no such key or ConfigMap."""
        if name is None:
            return None
        path = path_of("v1", "configmaps", namespace=namespace, name=name)
        found = await self._reader.one(field, ConfigMap, path)
        return (found.data or {}).get(key) if found else None

    async def _plugin_configs(self, plugins: tuple[Workload, ...]) -> dict[str, str]:
        configs = {}
        for one in plugins:
            where = one.metadata.namespace
            if text := await self._config_map("plugin_configs", where, one.config_map(), "devices.yaml"):
                configs[one.metadata.name] = text
        return configs

    # Dynamic resource allocation

    async def _dra(self, seen: ObservedCluster) -> DynamicAllocation:
        """Which drivers offer devices, in which classes, and how the scheduler chooses among nodes."""
        inventory, lists = seen.inventory, seen.dra
        drivers, driver_pods = await self._daemon_sets("drivers", "driver_pods", DRIVERS)
        path = path_of(API_VERSION, "resourceclaimtemplates")
        templates = await self._reader.all("templates", ClaimTemplateIn, path)
        choosy = [(one.metadata, one.spec.spec) for one in templates]
        choosy += [(one.metadata, one.spec) for one in lists.claims]
        nodes = list(inventory.capacity.values())
        return DynamicAllocation(
            classes=lists.classes,
            slices=lists.slices,
            claims=lists.claims,
            templates=templates,
            drivers=drivers,
            driver_pods=driver_pods,
            alternatives=tuple(
                f"{meta.namespace}/{meta.name}" for meta, spec in choosy if spec.has_alternatives
            ),
            schedulers=await self._schedulers() if lists.slices else (),
            invalid={
                pool: name for node in nodes for pool, name in inventory.dra.pools.invalid(node).items()
            },
            free=inventory.dra.free(nodes),
        )

    async def _schedulers(self) -> tuple[SchedulerPod, ...]:
        """The schedulers that are pods, and their configuration where it lies in a ConfigMap."""
        path = path_of("v1", "pods", namespace=_SYSTEM)
        found = []
        for pod in await self._reader.all("schedulers", PodTemplate, path, _SCHEDULERS):
            file = pod.option("--config") or ""
            volume, key = pod.volume_of(file)
            name = volume.config_map.name if volume.config_map else None
            text = await self._config_map("schedulers", _SYSTEM, name, key)
            found.append(SchedulerPod(pod.metadata.name, file, text))
        return tuple(found)


class _RememberedDevice(msgspec.Struct):
    id: str
    cdi_kind: str


def read_cdi(cdi_dir: Path, state_dir: Path) -> tuple[dict[str, bytes], tuple[str, ...] | None]:
    """A node's CDI specs, and the CDI names of the devices that its plugin published last; None: the folder has no record that can be read."""
    files = {path.name: path.read_bytes() for path in sorted(cdi_dir.iterdir()) if path.is_file()}
    try:
        remembered = (state_dir / "devices.json").read_bytes()
        devices = msgspec.json.decode(remembered, type=list[_RememberedDevice])
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return files, None
    return files, tuple(f"{device.cdi_kind}={device.id}" for device in devices)
