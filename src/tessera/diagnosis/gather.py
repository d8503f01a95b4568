"""Looking at one pod or workload and the cluster around it: reads only, each thing once. What may not be read is remembered as unseen."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from tessera.core.admission.decision import Policy
from tessera.core.admission.offers import Offers
from tessera.core.admission.quota import Quota
from tessera.core.dra.slices import API_VERSION
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.diagnosis.devices import SeenClaim, SeenDevices, claim_of, devices_for
from tessera.diagnosis.evidence import Evidence, SeenPod, SeenWorkload, WhyInventory, why_inventory
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.listing import PAGE, list_all, read_list
from tessera.kube.watch.resource import UNFINISHED_PODS
from tessera.protocol.configuration import webhook as configuration
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import EventIn, decode_event, decode_workload
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.pod import PodIn, decode_pod
from tessera.protocol.kubernetes.webhook import decode_config_map
from tessera.protocol.kubernetes.workloads import template_of

_APPS: Final = "apps/v1"
_POD: Final = "pod"
# kind → where it is read, and all names that kubectl knows for it
_KINDS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    _POD: ("v1", "pods", ("po",)),
    "deployment": (_APPS, "deployments", ("deploy",)),
    "replicaset": (_APPS, "replicasets", ("rs",)),
    "statefulset": (_APPS, "statefulsets", ("sts",)),
    "daemonset": (_APPS, "daemonsets", ("ds",)),
    "replicationcontroller": ("v1", "replicationcontrollers", ("rc",)),
    "job": ("batch/v1", "jobs", ()),
}
_CALLED: Final = {
    name: kind for kind, (_, plural, short) in _KINDS.items() for name in (kind, plural, *short)
}
KINDS: Final = tuple(sorted(_CALLED))  # for completion
_OBJECT: Final = {"deployment": "Deployment", "replicaset": "ReplicaSet", "statefulset": "StatefulSet",
                  "daemonset": "DaemonSet", "replicationcontroller": "ReplicationController", "job": "Job"}  # fmt: skip
_PLUGINS: Final = "app.kubernetes.io/component=device-plugin"  # the chart's label
_MOST_EVENTS: Final = 500

_whole: Final = objects.decoder(dict[str, Any])


class NoSuchObject(TesseraError):
    """There is nothing of that name."""


def parse_target(text: str) -> tuple[str, str]:
    """The kind and the name of `train`, `pod/train`, `deploy/web`, `job/night`, as kubectl names them."""
    kind, slash, name = text.rpartition("/")
    known = _CALLED.get(kind.lower().partition(".")[0]) if slash else _POD
    if known is None or not name:
        kinds = ", ".join(short[0] if short else kind for kind, (_, _, short) in _KINDS.items())
        raise InvalidInput(f'"{text}" is no pod and no KIND/NAME; kinds are {kinds}')
    return known, name


def collection(kind: str, namespace: str) -> str:
    """Where the objects of a kind are, by any of its names; empty for a kind that is not known."""
    known = _CALLED.get(kind.lower())
    if known is None:
        return ""
    version, plural, _ = _KINDS[known]
    return path_of(version, plural, namespace=namespace)


class Gatherer:
    """Reads what a diagnosis needs."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        policy: Policy | None = None,
        installed: tuple[str, str] = ("gpu-webhook", "gpu-webhook"),  # namespace and name, the chart's
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._policy = policy
        self._installed = installed
        self._clock = clock
        self._unseen: dict[str, str] = {}

    async def gather(self, kind: str, name: str) -> Evidence:
        """Look at a pod or a workload; `NoSuchObject` when there is none."""
        version, plural, _ = _KINDS[kind]
        path = path_of(version, plural, namespace=self._namespace, name=name)
        try:
            raw = await self._client.get(path)
        except ApiError as error:
            if error.is_not_found:
                raise NoSuchObject(f"namespace {self._namespace} has no {kind} {name}") from error
            raise
        workload: SeenWorkload | None = None
        chosen: bytes | None = raw
        if kind != _POD:
            workload, chosen = await self._workload(kind, raw)
        pod = await self._pod(chosen) if chosen is not None else None
        inventory = await self._inventory()
        offers = Offers(one.node for one in inventory.capacity.nodes())
        with self._looking(f"namespace {self._namespace}"):
            own = await self._client.get(path_of("v1", "namespaces", name=self._namespace))
            offers.put_namespace(objects.namespace_of(objects.decode_namespace(own)))
        for quota in await self._quotas():
            # the use of a pod that is there does not count against what it would get instead
            offers.put_quota(quota if pod is None else quota.without(pod.pod))
        return Evidence(
            now=self._clock.wall(),
            pod=pod,
            workload=workload,
            inventory=inventory,
            offers=offers,
            policy=await self._read_policy(),
            devices=await self._devices(pod),
            plugins=await self._plugins(),
            unseen=dict(self._unseen),
        )

    async def _workload(self, kind: str, raw: bytes) -> tuple[SeenWorkload, bytes | None]:
        """A workload, and the one of its pods that there is most to say about."""
        state = decode_workload(raw)
        document: dict[str, Any] = {**_whole(raw), "kind": _OBJECT[kind]}
        template = pod_of(decode_lean_pod(msgspec.json.encode(template_of(document))), self._namespace)
        makers = {state.metadata.uid: (_OBJECT[kind], state.metadata.name)}
        if kind == "deployment":
            with self._looking("replicasets"):
                path = path_of(_APPS, "replicasets", namespace=self._namespace)
                for one in await list_all(self._client, path, {}, decode_workload):
                    owner = one.metadata.controller
                    if owner is not None and owner.uid == state.metadata.uid and one.wanted:
                        makers[one.metadata.uid] = ("ReplicaSet", one.metadata.name)
        own: list[tuple[PodIn, bytes]] = []
        with self._looking(f"pods of namespace {self._namespace}"):
            path = path_of("v1", "pods", namespace=self._namespace)
            own = [
                one
                for one in await list_all(self._client, path, {}, lambda raw: (decode_pod(raw), raw))
                if (owner := one[0].metadata.controller) is not None
                and owner.uid in makers
                and one[0].status.phase not in ("Succeeded", "Failed")
                and not one[0].metadata.deletion_timestamp
            ]
        events = tuple([event for uid, by in makers.items() for event in await self._events(*by, uid)])
        own.sort(key=lambda one: (_progress(one[0]), one[0].metadata.creation_timestamp or ""))
        seen = SeenWorkload(
            f"{kind} {self._namespace}/{state.metadata.name}",
            state,
            template,
            len(own),
            sum(one.status.phase == "Running" for one, _ in own),
            events,
        )
        return seen, own[0][1] if own else None

    async def _pod(self, raw: bytes) -> SeenPod:
        state = decode_pod(raw)
        events = await self._events("Pod", state.metadata.name, state.metadata.uid)
        return SeenPod(pod_of(state, self._namespace), state, why_inventory().use_of(state), events)

    async def _events(self, kind: str, name: str, uid: str) -> tuple[EventIn, ...]:
        """What was told about an object, the latest last; what was told about an earlier one of its name is not."""
        found: list[EventIn] = []
        with self._looking("events"):
            query = {
                "fieldSelector": f"involvedObject.name={name},involvedObject.kind={kind}",
                "limit": str(_MOST_EVENTS),
            }
            path = path_of("v1", "events", namespace=self._namespace)
            found = await list_all(self._client, path, query, decode_event)
        mine = [one for one in found if not uid or one.involved_object.uid in ("", uid)]
        return tuple(sorted(mine, key=lambda one: one.last_seen or 0.0))

    async def _inventory(self) -> WhyInventory:
        inventory = why_inventory()
        with self._looking("nodes"):
            await inventory.read_cluster(self._client, pods=False)
        with self._looking("pods of other namespaces"):
            query: dict[str, str | int] = {**UNFINISHED_PODS.query, "limit": PAGE}
            await read_list(self._client, UNFINISHED_PODS.path, query, inventory.begin_pods)
        return inventory

    async def _read_policy(self) -> Policy:
        """The webhook's configuration: as it was given, else as its ConfigMap has it."""
        if self._policy is not None:
            return self._policy
        namespace, name = self._installed
        found = Policy()
        with self._looking("the webhook's configuration"):
            raw = await self._client.get(path_of("v1", "configmaps", namespace=namespace, name=name))
            text = (decode_config_map(raw).data or {}).get("config.yaml")
            if text:
                found = configuration.parse(text).policy
        return found

    async def _quotas(self) -> tuple[Quota, ...]:
        found: list[Quota] = []
        with self._looking("resourcequotas"):
            path = path_of("v1", "resourcequotas", namespace=self._namespace)
            found = await list_all(
                self._client,
                path,
                {},
                lambda raw: objects.quota_of(objects.decode_quota(raw), self._namespace),
            )
        return tuple(one for one in found if one.hard)

    async def _devices(self, pod: SeenPod | None) -> SeenDevices:
        """What DRA has for a pod that waits and could have devices by it."""
        if pod is None or pod.pod.node_name:
            return SeenDevices()
        claims = pod.state.claims
        if not claims and not any(map(is_any_gpu, pod.use.amounts)):
            return SeenDevices()
        classes = await self._listed("deviceclasses", told=bool(claims))
        slices = await self._listed("resourceslices", told=bool(claims))
        named = [one for own, name in claims.items() if (one := await self._claim(own, name))]
        return devices_for(named, tuple(filter(is_any_gpu, pod.use.amounts)), classes, slices)

    async def _claim(self, own: str, name: str | None) -> SeenClaim | None:
        """A claim; None where it may not be read."""
        if name is None:
            return SeenClaim(own, there=False)
        found: SeenClaim | None = None
        with self._looking("resourceclaims"):
            try:
                path = path_of(API_VERSION, "resourceclaims", namespace=self._namespace, name=name)
                found = claim_of(name, await self._client.get(path))
            except ApiError as error:
                if not error.is_not_found:
                    raise
                found = SeenClaim(name, there=False)
        return found

    async def _listed(self, plural: str, *, told: bool) -> list[bytes] | None:
        """Everything of a kind of DRA; None where it may not be read, and where the API server does not have it."""
        found: list[bytes] | None = None
        with self._looking(plural):
            found = await list_all(self._client, path_of(API_VERSION, plural), {}, bytes)
        if not told:  # the pod does not name it: without DRA all else still stands
            self._unseen.pop(plural, None)
        return found

    async def _plugins(self) -> dict[str, bool] | None:
        """The device plugin's pods, by node; None where there are none to be seen: it may run without pods."""
        found: list[PodIn] = []
        with self._looking("the device plugin's pods"):
            path = path_of("v1", "pods")
            found = await list_all(self._client, path, {"labelSelector": _PLUGINS}, decode_pod)
        ready = {one.spec.node_name: one.status.condition("Ready").status == "True" for one in found}
        return ready or None

    @contextlib.contextmanager
    def _looking(self, at: str) -> Iterator[None]:
        """What the API server will not show, or not in a way that can be read, is unseen."""
        try:
            yield
        except ApiError as error:
            self._unseen[at] = "there is none" if error.is_not_found else error.message
        except (KubeError, InvalidInput) as error:
            self._unseen[at] = str(error)


def _progress(one: PodIn) -> int:
    """How far a pod has come: the one that waits for a node first, one that runs last."""
    if not one.spec.node_name:
        return 0
    return 1 if one.status.phase == "Pending" or one.status.waiting else 2
