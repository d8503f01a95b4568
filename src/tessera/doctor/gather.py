"""Looking at a cluster: every object once, and one pod tried with a dry run. What may not be read is remembered as unseen.

On a node also its files: the CDI specs, and what its device plugin remembers.

Pods that a webhook did not let controllers create, by the Events of these.
The pod that is tried with a dry run: a GPU without a limit, which Kubernetes refuses unless the webhook adds the limit.
What the webhook's replicas say of themselves in their metrics, and what their account may read.
"""

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tessera.core.admission.outcome import OBSERVE_MODE
from tessera.core.admission.policy import Policy
from tessera.core.dra.slices import API_VERSION
from tessera.core.errors import InvalidInput
from tessera.diagnosis.gather import PLUGINS, ObservedCluster, observe_cluster
from tessera.diagnosis.reading import Reader, read_controller
from tessera.doctor.observations import (
    TRIED,
    DynamicAllocation,
    FailedCreate,
    Names,
    Observations,
    SchedulerPod,
    Served,
    Trial,
)
from tessera.inventory.presence import DRIVERS, Presences, drivers_of, webhook_of
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.kube.rest.client import Client, collection, path_of
from tessera.kube.view.lease import CONTROLLER, PATIENCE
from tessera.kube.view.ticket_keys import TicketSecret, secret_path
from tessera.kube.watch.table import FAILED_CREATES, RESOURCE_SLICES
from tessera.protocol.configuration import webhook as configuration
from tessera.protocol.kubernetes.controllers import (
    PodTemplate,
    Workload,
    decode_event,
    decode_workload,
    denial_in,
)
from tessera.protocol.kubernetes.dra import ClaimTemplateIn
from tessera.protocol.kubernetes.objects import ObjectReference, decode_list, decoder
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import (
    AccessReview,
    ConfigMap,
    Secret,
    Service,
    Version,
    WebhookConfiguration,
)

_MOST_REFUSALS: Final = 500  # events; there may be thousands of the same
_MOST_OWNERS: Final = 50  # controllers that are read, one request each


async def failed_creates(reader: Reader) -> tuple[FailedCreate, ...]:
    """The refusals, and whether those controllers are still there."""
    found: list[FailedCreate] = []
    with reader.reading("refusals"):
        query = {**FAILED_CREATES.query, "limit": str(_MOST_REFUSALS)}
        page = decode_list(await reader.client.get(FAILED_CREATES.path, query))
        owners: dict[tuple[str, str, str], tuple[Workload | None, bool]] = {}
        for raw in page.items or ():
            event = reader.readable("refusals", raw, decode_event)
            if event is None or denial_in(event.message) is None:
                continue
            about = event.involved_object
            key = about.kind, about.namespace, about.name
            if key not in owners:
                owners[key] = (
                    await _owner(reader.client, about) if len(owners) < _MOST_OWNERS else (None, False)
                )
            found.append(FailedCreate(event, *owners[key]))
    return tuple(found)


async def _owner(client: Client, about: ObjectReference) -> tuple[Workload | None, bool]:
    """The controller that an event is about, and whether it is gone; what may not be read may well be there."""
    path = collection(about.kind, about.namespace, about.name)
    if not path:
        return None, False
    try:
        owner = decode_workload(await client.get(path))
    except ApiError as error:
        return None, error.is_not_found
    except (KubeError, InvalidInput):
        return None, False
    return owner, bool(about.uid and owner.metadata.uid and about.uid != owner.metadata.uid)


# as restricted as any namespace may want it
_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER: Final = {
    "name": "trial",
    "image": "tessera-doctor",
    "resources": {"requests": {TRIED: "1"}},
    "securityContext": _RESTRICTED,
}
_POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "tessera-doctor-"},
    "spec": {"containers": [_CONTAINER], "automountServiceAccountToken": False},
}
_document: Final = decoder(dict[str, Any])


async def tried(client: Client, namespace: str) -> Trial:
    """Create the pod in a namespace, with a dry run."""
    try:
        answer = await client.create(path_of("v1", "pods", namespace=namespace), _POD, {"dryRun": "All"})
    except ApiError as error:
        return Trial(error.message, observed=OBSERVE_MODE in error.warnings)
    containers = _document(answer).get("spec", {}).get("containers") or [{}]
    limits = containers[0].get("resources", {}).get("limits") or {}
    return Trial(limits={str(name): str(amount) for name, amount in limits.items()})


_MOST_SERVED: Final = 10  # replicas whose metrics are read
# for all of them: behind a network policy the API server itself would wait for half a minute
_PROXY_SECONDS: Final = 5.0
_METRICS_PORT: Final = 8080  # the chart's webhook.metricsPort
_ENDS: Final = re.compile(
    r'^gpu_webhook_certificate_expiry_timestamp_seconds\{certificate="serving"\} (\d{1,12}(?:\.\d+)?)$',
    re.MULTILINE,
)
_TRUSTED: Final = re.compile(r"^gpu_webhook_certificate_trusted ([01])$", re.MULTILINE)
_FOLLOWS: Final = re.compile(r"^gpu_webhook_free_view_known ([01])$", re.MULTILINE)
_REVIEWS: Final = path_of("authorization.k8s.io/v1", "subjectaccessreviews")


async def served(
    reader: Reader, namespace: str, deployment: Workload | None, pods: tuple[PodIn, ...]
) -> tuple[Served, ...]:
    """What the replicas say of the certificates that they serve, read by way of the API server."""
    port = (deployment.port("metrics") if deployment else None) or _METRICS_PORT
    found: list[Served] = []
    try:
        async with asyncio.timeout(_PROXY_SECONDS):
            for pod in pods[:_MOST_SERVED]:
                with reader.reading("served"):
                    found.append(await _served_by(reader.client, namespace, pod.metadata.name, port))
    except TimeoutError:
        reader.unseen["served"] = f"the webhook's pods do not answer the API server at port {port}"
    return tuple(found)


async def _served_by(client: Client, namespace: str, pod: str, port: int) -> Served:
    name = f"{pod}:{port}"
    path = path_of("v1", "pods", namespace=namespace, name=name, subresource="proxy")
    text = (await client.get(f"{path}/metrics")).decode("utf-8", "replace")
    ends, trusted, follows = _ENDS.search(text), _TRUSTED.search(text), _FOLLOWS.search(text)
    return Served(
        pod,
        float(ends[1]) if ends else None,
        trusted[1] == "1" if trusted else None,
        follows[1] == "1" if follows else None,
    )


async def may_follow_pods(reader: Reader, namespace: str, deployment: Workload | None) -> bool | None:
    """Whether the webhook's account may list and watch pods of all namespaces; asking changes nothing."""
    account = deployment and (deployment.spec.template.spec.service_account_name or "default")
    may = None
    with reader.reading("may_follow_pods"):
        for verb in ("list", "watch") if account else ():
            asked = {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "resourceAttributes": {"resource": "pods", "verb": verb},
            }
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": asked,
            }
            may = decoder(AccessReview)(await reader.client.create(_REVIEWS, review)).status.allowed
            if not may:
                break
    return may


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
