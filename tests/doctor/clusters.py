"""A cluster on which nothing is wrong, to plant faults in."""

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tessera.doctor.examination import examine
from tessera.doctor.findings import CheckResult, Finding
from tessera.doctor.gather import Observer
from tessera.doctor.observations import Names
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client
from tessera.serving.http_messages import Request, Response, Stream, text
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.apiserver import Admitted, ApiServer, Target
from tessera.simulation.control_plane.kinds import ResourceType
from tessera.simulation.control_plane.store import Document, StatusError, Store
from tests.build import asking_pod, node_document, object_of
from tests.doctor.authorities import DAY, key_of
from tests.kube.clock import FakeClock

DAEMON_SETS = ResourceType("apps/v1", "daemonsets", "DaemonSet")
REPLICA_SETS = ResourceType("apps/v1", "replicasets", "ReplicaSet")
DEVICE_CLASSES, CLAIMS = kinds.DEVICE_CLASSES, kinds.RESOURCE_CLAIMS
CLAIM_TEMPLATES = kinds.RESOURCE_CLAIM_TEMPLATES
NAMESPACE = "gpu-webhook"
CONDITION = (
    'object.metadata.?annotations["task.bkbcs.tencent.com/gpu-type"].hasValue() || object.spec.containers.exists(c, '
    'c.resources.requests.exists(k, k == "nvidia.com/gpu" || k.startsWith("nvidia.com/mig-")))'
)


def healthy(bundle: bytes, *, ca: bytes | None = None) -> dict[ResourceType, list[Document]]:
    """The objects of an installation that is all right, and a node with GPUs."""
    labels, own = {"app": "gpu-webhook"}, bundle if ca is None else ca
    selector = {"matchExpressions": [
        {"key": "gpu-webhook", "operator": "NotIn", "values": ["disabled"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]},
    ]}  # fmt: skip
    webhook = {
        "name": "gpu-allocation.k8s.io",
        "clientConfig": {
            "service": {"name": "gpu-webhook", "namespace": NAMESPACE, "path": "/mutate", "port": 443},
            "caBundle": encoded(bundle),
        },
        "rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
        ],
        "namespaceSelector": selector,
        "matchConditions": [{"name": "gpu", "expression": CONDITION}],
        "failurePolicy": "Ignore",
        "timeoutSeconds": 5,
        "sideEffects": "NoneOnDryRun",
        "reinvocationPolicy": "IfNeeded",
    }
    template = {
        "spec": {
            "volumes": [{"name": "config", "configMap": {"name": "gpu-webhook"}}],
            "containers": [{"name": "webhook", "args": ["webhook", "--read-only-certificates"]}],
        }
    }
    keeper = {"replicas": 1, "template": {"spec": {"serviceAccountName": "gpu-webhook-certificates"}}}
    deployment = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    return {
        kinds.NAMESPACES: [object_of(name) for name in ("default", "kube-system", NAMESPACE)],
        kinds.MUTATING_WEBHOOKS: [object_of("gpu-allocation-webhook", webhooks=[webhook])],
        kinds.DEPLOYMENTS: [
            object_of("gpu-webhook", spec=deployment, status={"readyReplicas": 3}),
            object_of("gpu-webhook-certificates", spec=keeper, status={"readyReplicas": 1}),
        ],
        kinds.SERVICES: [object_of("gpu-webhook", spec={"selector": labels, "ports": [{"port": 443}]})],
        kinds.CONFIG_MAPS: [object_of("gpu-webhook", data={"config.yaml": "fallback: {upgrades: false}"})],
        kinds.SECRETS: [
            object_of("gpu-webhook-ca", data={"ca.crt": encoded(own), "ca.key": encoded(key_of(own))})
        ],
        kinds.PODS: [webhook_pod(f"gpu-webhook-{n}") for n in range(3)],
        kinds.NODES: [node_document("gpu-1", {"nvidia.com/mig-2g.20gb": "2"})],
    }


def webhook_pod(name: str, *, ready: bool = True, **status: Any) -> Document:
    """A replica."""
    found = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"name": "webhook", "ready": ready, "state": {"running": {}}}],
        **status,
    }
    return object_of(
        name, labels={"app": "gpu-webhook"}, namespace=NAMESPACE, spec={"containers": []}, status=found
    )


def gpu_pod(
    name: str, resources: dict[str, str], *, node: str = "", message: str = "", owner: str = "", **spec: Any
) -> Document:
    """A pod that asks for GPUs; without a node it is Pending, and the scheduler may have said why."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    status = {"phase": "Running" if node else "Pending", "conditions": conditions}
    pod = asking_pod(name, resources, node=node, spec=spec, status=status)
    if owner:
        pod["metadata"]["ownerReferences"] = [{"kind": owner, "name": f"{name}-owner", "controller": True}]
    return pod


async def admit_like_the_webhook(target: Target, document: Document, dry_run: bool) -> Admitted:
    """The answer of an API server whose webhook works: the limit is there."""
    if target.kind is kinds.PODS:
        for container in document["spec"]["containers"]:
            resources = container.get("resources", {})
            resources["limits"] = dict(resources.get("requests", {}))
    return Admitted(document)


def refusing(code: int, message: str) -> Callable[..., Any]:
    """The answer of an API server that refuses the pod."""

    async def admission(target: Target, document: Document, dry_run: bool) -> Admitted:
        raise StatusError(code, "", message)

    return admission


class Examined:
    """What the doctor found, by check."""

    def __init__(self, results: list[CheckResult]) -> None:
        self.results = {result.check.name: result for result in results}

    @property
    def findings(self) -> list[tuple[str, str]]:
        """Everything that is worth a person's time: check and severity."""
        return [
            (name, str(finding.severity))
            for name, result in self.results.items()
            for finding in result.findings
            if finding.severity in ("problem", "warning")
        ]

    def of(self, check: str) -> list[Finding]:
        """What one check found."""
        return list(self.results[check].findings)

    @property
    def states(self) -> dict[str, str]:
        """Whether each check was made."""
        return {name: str(result.state) for name, result in self.results.items()}

    def one(self, check: str) -> Finding:
        """The only thing that a check found."""
        (finding,) = self.of(check)
        return finding


async def examined(
    objects: Mapping[ResourceType, list[Document]],
    *,
    admission: Callable[..., Any] = admit_like_the_webhook,
    forbidden: frozenset[str] | None = frozenset(),
    metrics: str | None = None,
    may: Mapping[str, bool] | None = None,
    age: float = DAY,
    now: float,
    names: Names | None = None,
    before_uninstall: bool = False,
) -> Examined:
    """Examine a cluster with these objects, which are so old.

    `forbidden` names what may not be read, None forbids everything; `metrics` are what the API server's proxy gets from pods,
    `may` says by verb what the API server says of accounts; None: it does not.
    """

    class Guarded(ApiServer):
        async def route(self, request: Request) -> Response | Stream:
            if request.path.endswith("/proxy/metrics") and metrics is not None:
                return text(metrics)
            if request.path.endswith("/subjectaccessreviews") and may is not None:
                asked = json.loads(request.body)["spec"]
                assert asked["user"] == f"system:serviceaccount:{NAMESPACE}:default"
                return text(
                    json.dumps({"status": {"allowed": may[asked["resourceAttributes"]["verb"]]}}), 201
                )
            if forbidden is None:
                raise StatusError(403, "Forbidden", "you may not")
            return await super().route(request)

        def target(self, path: str) -> Target:
            target = super().target(path)
            if forbidden and target.kind.plural in forbidden:
                raise StatusError(403, "Forbidden", f"{target.kind.plural} is forbidden")
            return target

    made = datetime.fromtimestamp(now - age, UTC)
    server = Guarded(Store(lambda: made), admission=admission)
    fill(server, objects)
    clock = FakeClock(wall=now, auto=True)
    async with await server.start(), Client(Cluster(ServerAddress.parse(server.url, where="test"))) as client:
        seen = await Observer(client, names or Names(), clock).gather()
    return Examined(list(examine(seen, before_uninstall=before_uninstall)))


def fill(server: ApiServer, objects: Mapping[ResourceType, list[Document]]) -> None:
    """Put objects into a stand-in API server."""
    for kind in (DAEMON_SETS, REPLICA_SETS, DEVICE_CLASSES, CLAIMS, CLAIM_TEMPLATES, *objects):
        server.kinds[kind.prefix, kind.plural] = kind
    for kind, documents in objects.items():
        for document in documents:
            namespace = document["metadata"].get("namespace", NAMESPACE) if kind.namespaced else ""
            server.store.create(kind, document, namespace)


def encoded(data: bytes) -> str:
    """Bytes as they stand in a Secret."""
    return base64.b64encode(data).decode()
