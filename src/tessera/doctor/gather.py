"""Looking at a cluster: every object once, and one pod tried with a dry run. What may not be read is remembered as unseen."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.doctor import wire
from tessera.doctor.evidence import Evidence, Names, SeenPod, Trial
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.resource import FAILED_CREATES, UNFINISHED_PODS
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.pod import decode_pod, pod_of

T = TypeVar("T")

_APPS: Final = "apps/v1"
_CONFIGURATIONS: Final = ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
_PLUGINS: Final = "app.kubernetes.io/component=device-plugin"  # the chart's label
_MOST_REFUSALS: Final = 500  # events; there may be thousands of the same
TRIED: Final = "nvidia.com/gpu"  # fallback leaves it alone, so the answer does not depend on the nodes


class Gatherer:
    """Reads what checks need."""

    def __init__(self, client: Client, names: Names, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._names = names
        self._clock = clock
        self._unseen: dict[str, str] = {}

    async def gather(self) -> Evidence:
        """Look at everything; raises `KubeError` when the API server cannot be talked to at all."""
        names = self._names
        version = _decode(await self._client.get("/version"), wire.Version)
        deployment = await self._one("deployment", wire.Workload, _APPS, "deployments", names.webhook)
        plugins = await self._listed("plugins", wire.Workload, path_of(_APPS, "daemonsets"), _PLUGINS)
        return Evidence(
            names=names,
            now=self._clock.wall(),
            version=version,
            configuration=await self._configuration(),
            deployment=deployment,
            service=await self._one("service", wire.Service, "v1", "services", names.webhook),
            webhook_pods=await self._listed(
                "webhook_pods",
                wire.PodState,
                path_of("v1", "pods", namespace=names.namespace),
                f"app={names.webhook}",
            ),
            secret=await self._one("secret", wire.Secret, "v1", "secrets", names.secret),
            config=await self._config(deployment),
            trial=await self._try(),
            nodes=await self._nodes(),
            namespaces=tuple(
                objects.namespace_of(one)
                for one in await self._listed("namespaces", objects.NamespaceIn, path_of("v1", "namespaces"))
            ),
            pods=await self._gpu_pods(),
            refusals=await self._refusals(),
            plugins=plugins,
            plugin_pods=await self._listed("plugin_pods", wire.PodState, path_of("v1", "pods"), _PLUGINS)
            if plugins
            else (),
            plugin_configs=await self._plugin_configs(plugins),
            unseen=dict(self._unseen),
        )

    async def _configuration(self) -> wire.WebhookConfiguration | None:
        path = path_of(*_CONFIGURATIONS, name=self._names.configuration)
        return await self._object("configuration", wire.WebhookConfiguration, path)

    async def _config(self, deployment: wire.Workload | None) -> str | None:
        name = deployment.config_map() if deployment else None
        if name is None:
            return None
        found = await self._one("config", wire.ConfigMap, "v1", "configmaps", name)
        return (found.data or {}).get("config.yaml") if found else None

    async def _plugin_configs(self, plugins: tuple[wire.Workload, ...]) -> dict[str, str]:
        configs = {}
        for plugin in plugins:
            if name := plugin.config_map():
                path = path_of("v1", "configmaps", namespace=plugin.metadata.namespace, name=name)
                found = await self._object("plugin_configs", wire.ConfigMap, path)
                if text := (found.data or {}).get("devices.yaml") if found else None:
                    configs[plugin.metadata.name] = text
        return configs

    async def _nodes(self) -> tuple[objects.NodeIn, ...]:
        return await self._listed("nodes", objects.NodeIn, path_of("v1", "nodes"))

    async def _gpu_pods(self) -> tuple[SeenPod, ...]:
        found: list[SeenPod | None] = []
        with self._looking("pods"):
            pods = UNFINISHED_PODS
            found = await list_all(self._client, pods.path, pods.query, _seen_pod)
        return tuple(one for one in found if one is not None)

    async def _refusals(self) -> tuple[wire.Event, ...]:
        found: list[wire.Event] = []
        with self._looking("refusals"):
            page = await self._client.get(
                FAILED_CREATES.path, {**FAILED_CREATES.query, "limit": _MOST_REFUSALS}
            )
            found = [_decode(raw, wire.Event) for raw in _decode(page, wire.Page).items or ()]
        return tuple(found)

    async def _try(self) -> Trial | None:
        """Create a pod with a dry run."""
        path = path_of("v1", "pods", namespace=self._names.try_namespace)
        try:
            answer = await self._client.create(path, _trial_pod(), {"dryRun": "All"})
        except ApiError as error:
            return Trial(error.code, error.message)
        return Trial(limits=wire.resources_of(_decode(answer, dict[str, Any])))

    async def _one(self, field: str, kind: type[T], version: str, plural: str, name: str) -> T | None:
        path = path_of(version, plural, namespace=self._names.namespace, name=name)
        return await self._object(field, kind, path)

    async def _object(self, field: str, kind: type[T], path: str) -> T | None:
        found: T | None = None
        with self._looking(field):
            try:
                found = _decode(await self._client.get(path), kind)
            except ApiError as error:
                if not error.is_not_found:
                    raise
        return found

    async def _listed(self, field: str, kind: type[T], path: str, labels: str = "") -> tuple[T, ...]:
        found: list[T] = []
        with self._looking(field):
            query = {"labelSelector": labels or None}
            found = await list_all(self._client, path, query, lambda raw: _decode(raw, kind))
        return tuple(found)

    @contextlib.contextmanager
    def _looking(self, field: str) -> Iterator[None]:
        """What the API server will not show is unseen; that it cannot be talked to is the caller's trouble."""
        try:
            yield
        except ApiError as error:
            self._unseen[field] = error.message


def _seen_pod(raw: bytes) -> SeenPod | None:
    """A pod if it asks for GPUs, whatever else may be odd about it."""
    one = decode_pod(raw)
    try:
        pod = pod_of(one)
    except InvalidInput:
        return None  # the API server accepted it, and the scheduler will say what it thinks of it
    asks = any(is_whole_or_mig(name) for each in pod.all_containers() for name in each.resources())
    return SeenPod(pod, _decode(raw, wire.PodState)) if asks else None


def _trial_pod() -> dict[str, Any]:
    """Asks for a GPU without a limit: Kubernetes refuses that, unless the webhook adds the limit."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "trial",
        "image": "tessera-doctor",
        "resources": {"requests": {TRIED: "1"}},
        "securityContext": restricted,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "tessera-doctor-"},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


def _decode(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the API server sent something that is no {kind.__name__}: {error}") from error
