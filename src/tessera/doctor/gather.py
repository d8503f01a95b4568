"""Looking at a cluster: every object once, and one pod tried with a dry run. What may not be read is remembered as unseen."""

import asyncio
import contextlib
import re
from typing import Any, Final, TypeVar

from tessera.core.admission.outcome import OBSERVE_MODE
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.quota import Quota
from tessera.diagnosis.evidence import DiagnosisInventory, SeenPod
from tessera.diagnosis.evidence import Evidence as ClusterEvidence
from tessera.diagnosis.gather import PLUGINS, DraLists, devices_for_pods, gather_cluster, plugins_by_node
from tessera.diagnosis.reading import Reader, decode, reason
from tessera.doctor import trial
from tessera.doctor.evidence import Evidence, Names, Refusal, Served, Trial
from tessera.doctor.gather_dra import gather_dra_checks
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.resource import FAILED_CREATES, NAMESPACES, RESOURCE_QUOTAS
from tessera.protocol.configuration import webhook as configuration
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, Workload
from tessera.protocol.kubernetes.nodes import decode_quota, namespace_of, quota_of
from tessera.protocol.kubernetes.objects import ObjectList, ObjectReference
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import ConfigMap, Secret, Service, Version, WebhookConfiguration

T = TypeVar("T")

_APPS: Final = "apps/v1"
_CONFIGURATIONS: Final = ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
_MOST_REFUSALS: Final = 500  # events; there may be thousands of the same
_MOST_OWNERS: Final = 50  # controllers that are read, one request each
_MOST_SERVED: Final = 10  # replicas whose metrics are read
_PROXY_SECONDS: Final = (
    5.0  # for all of them: behind a network policy the API server itself would wait for half a minute
)
_METRICS_PORT: Final = 8080  # the chart's webhook.metricsPort
_ENDS: Final = re.compile(
    r'^gpu_webhook_certificate_expiry_timestamp_seconds\{certificate="serving"\} (\d{1,12}(?:\.\d+)?)$',
    re.MULTILINE,
)
_TRUSTED: Final = re.compile(r"^gpu_webhook_certificate_trusted ([01])$", re.MULTILINE)
# The controllers that tell of pods that they could not create, where they are read.
_OWNERS: Final = {
    "ReplicaSet": (_APPS, "replicasets"),
    "StatefulSet": (_APPS, "statefulsets"),
    "DaemonSet": (_APPS, "daemonsets"),
    "ReplicationController": ("v1", "replicationcontrollers"),
    "Job": ("batch/v1", "jobs"),
}


class Gatherer:
    """Reads what checks need."""

    def __init__(self, client: Client, names: Names, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._names = names
        self._clock = clock
        self._reader = Reader(client)

    async def gather(self) -> Evidence:
        """Look at everything; raises `Unreachable` when the API server cannot be talked to at all."""
        names = self._names
        version = await self._version()
        deployment = await self._one("deployment", Workload, _APPS, "deployments", names.webhook)
        pods_path = path_of("v1", "pods", namespace=names.namespace)
        webhook_pods = await self._reader.all("webhook_pods", PodIn, pods_path, f"app={names.webhook}")
        controller = await self._one("controller", Workload, _APPS, "deployments", names.controller)
        controller_pods = await self._reader.all(
            "controller_pods", PodIn, pods_path, f"app={names.controller}"
        )
        plugins = await self._reader.all("plugins", Workload, path_of(_APPS, "daemonsets"), PLUGINS)
        plugin_pods: tuple[PodIn, ...] = ()
        if plugins:
            plugin_pods = await self._reader.all("plugin_pods", PodIn, path_of("v1", "pods"), PLUGINS)
        namespaces = await self._reader.each("namespaces", NAMESPACES.path, {}, _namespace)
        config = await self._config(deployment)
        inventory, pods = await gather_cluster(self._reader, lambda use: not use.node or bool(use.claim))
        dra, lists = await gather_dra_checks(self._reader, inventory)
        return Evidence(
            names=names,
            now=self._clock.wall(),
            version=version,
            configuration=await self._reader.one(
                "configuration",
                WebhookConfiguration,
                path_of(*_CONFIGURATIONS, name=names.configuration),
            ),
            deployment=deployment,
            service=await self._one("service", Service, "v1", "services", names.webhook),
            webhook_pods=webhook_pods,
            controller=controller,
            controller_pods=controller_pods,
            secret=await self._secret(deployment),
            served=await self._served(deployment, webhook_pods),
            config=config,
            trial=await self._try(),
            cluster=await self._cluster(inventory, lists, pods, namespaces, config, plugin_pods),
            namespaces=namespaces,
            pods=pods,
            refusals=await self._refusals(),
            plugins=plugins,
            plugin_pods=plugin_pods,
            plugin_configs=await self._plugin_configs(plugins),
            dra=dra,
            unseen=dict(self._reader.unseen),
            odd={field: tuple(odd) for field, odd in self._reader.odd.items()},
        )

    async def _version(self) -> Version | None:
        """The first question: without any answer to it there is no cluster to check."""
        try:
            return decode(await self._client.get("/version"), Version)
        except Unreachable:
            raise
        except (KubeError, InvalidInput) as error:
            self._reader.unseen["version"] = reason(error)
        return None

    async def _secret(self, deployment: Workload | None) -> Secret | None:
        """The Secret behind the certificate: the one that it was given, or the one with its own authority."""
        given = deployment.given_secret() if deployment else None
        own = deployment.spec.template.option("--ca-secret") if deployment else None
        name = given or own or self._names.secret
        return await self._one("secret", Secret, "v1", "secrets", name)

    async def _served(self, deployment: Workload | None, pods: tuple[PodIn, ...]) -> tuple[Served, ...]:
        """What the replicas say of the certificates that they serve, read by way of the API server."""
        port = (deployment.port("metrics") if deployment else None) or _METRICS_PORT
        found: list[Served] = []
        try:
            async with asyncio.timeout(_PROXY_SECONDS):
                for pod in pods[:_MOST_SERVED]:
                    with self._reader.reading("served"):
                        found.append(await self._served_by(pod.metadata.name, port))
        except TimeoutError:
            self._reader.unseen["served"] = f"the webhook's pods do not answer the API server at port {port}"
        return tuple(found)

    async def _served_by(self, pod: str, port: int) -> Served:
        name = f"{pod}:{port}"
        path = path_of("v1", "pods", namespace=self._names.namespace, name=name, subresource="proxy")
        text = (await self._client.get(f"{path}/metrics")).decode("utf-8", "replace")
        ends, trusted = _ENDS.search(text), _TRUSTED.search(text)
        return Served(pod, float(ends[1]) if ends else None, trusted[1] == "1" if trusted else None)

    async def _config(self, deployment: Workload | None) -> str | None:
        name = deployment.config_map() if deployment else None
        if name is None:
            return None
        found = await self._one("config", ConfigMap, "v1", "configmaps", name)
        return (found.data or {}).get("config.yaml") if found else None

    async def _plugin_configs(self, plugins: tuple[Workload, ...]) -> dict[str, str]:
        configs = {}
        for plugin in plugins:
            if name := plugin.config_map():
                path = path_of("v1", "configmaps", namespace=plugin.metadata.namespace, name=name)
                found = await self._reader.one("plugin_configs", ConfigMap, path)
                if text := (found.data or {}).get("devices.yaml") if found else None:
                    configs[plugin.metadata.name] = text
        return configs

    async def _cluster(
        self,
        inventory: DiagnosisInventory,
        dra: DraLists,
        pods: tuple[SeenPod, ...],
        namespaces: tuple[Namespace, ...],
        config: str | None,
        plugins: tuple[PodIn, ...],
    ) -> ClusterEvidence:
        """What the diagnosis judges pods by."""
        offers = Offers((one.node for one in inventory.capacity.nodes()), namespaces)
        for quota in await self._reader.each("quotas", RESOURCE_QUOTAS.path, {}, _quota):
            offers.put_quota(quota)
        policy = Policy()
        with contextlib.suppress(InvalidInput):  # the check of the configuration reports it
            policy = configuration.parse(config or "").policy
        return ClusterEvidence(
            now=self._clock.wall(),
            inventory=inventory,
            offers=offers,
            policy=policy,
            devices=await devices_for_pods(self._reader, dra, pods),
            plugins=plugins_by_node(plugins),
            unseen=dict(self._reader.unseen),
        )

    async def _refusals(self) -> tuple[Refusal, ...]:
        """Pods that a webhook did not let controllers create, and whether those controllers are still there."""
        found: list[Refusal] = []
        with self._reader.reading("refusals"):
            query = {**FAILED_CREATES.query, "limit": str(_MOST_REFUSALS)}
            page = decode(await self._client.get(FAILED_CREATES.path, query), ObjectList)
            owners: dict[tuple[str, str, str], tuple[Workload | None, bool]] = {}
            for raw in page.items or ():
                event = self._reader.readable("refusals", raw, lambda one: decode(one, EventIn))
                if event is None or "denied the request" not in event.message:
                    continue
                about = event.involved_object
                key = about.kind, about.namespace, about.name
                if key not in owners:
                    owners[key] = await self._owner(about) if len(owners) < _MOST_OWNERS else (None, False)
                found.append(Refusal(event, *owners[key]))
        return tuple(found)

    async def _owner(self, about: ObjectReference) -> tuple[Workload | None, bool]:
        """The controller that an event is about, and whether it is gone; what may not be read may well be there."""
        if about.kind not in _OWNERS:
            return None, False
        path = path_of(*_OWNERS[about.kind], namespace=about.namespace, name=about.name)
        try:
            owner = decode(await self._client.get(path), Workload)
        except ApiError as error:
            return None, error.is_not_found
        except (KubeError, InvalidInput):
            return None, False
        return owner, bool(about.uid and owner.metadata.uid and about.uid != owner.metadata.uid)

    async def _try(self) -> Trial | None:
        """Create a pod with a dry run."""
        path = path_of("v1", "pods", namespace=self._names.try_namespace)
        found: Trial | None = None
        with self._reader.reading("trial"):
            try:
                answer = await self._client.create(path, trial.pod(), {"dryRun": "All"})
                found = Trial(limits=trial.limits_of(decode(answer, dict[str, Any])))
            except ApiError as error:
                observed = OBSERVE_MODE in error.warnings
                found = Trial(error.code, error.message, observed=observed)
        return found

    async def _one(self, field: str, kind: type[T], version: str, plural: str, name: str) -> T | None:
        return await self._reader.one(
            field, kind, path_of(version, plural, namespace=self._names.namespace, name=name)
        )


def _namespace(raw: bytes) -> Namespace:
    return namespace_of(objects.decode_any(raw))


def _quota(raw: bytes) -> Quota:
    return quota_of(decode_quota(raw))
