"""A cluster on which nothing is wrong, to plant faults in."""

import base64
from collections.abc import Callable
from typing import Any

from tessera.doctor.checks import examine
from tessera.doctor.evidence import Names
from tessera.doctor.findings import Answer, Finding
from tessera.doctor.gather import Gatherer
from tessera.kube.access.cluster import Cluster, Endpoint
from tessera.kube.rest.client import Client
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.apiserver import Admitted, ApiServer, Target
from tessera.simulation.control_plane.kinds import Kind
from tessera.simulation.control_plane.store import Document, StatusError
from tests.kube.clock import FakeClock

DAEMON_SETS = Kind("apps/v1", "daemonsets", "DaemonSet")
NAMESPACE = "gpu-webhook"
CONDITION = (
    'object.metadata.?annotations["task.bkbcs.tencent.com/gpu-type"].hasValue() || object.spec.containers.exists(c, '
    'c.resources.requests.exists(k, k == "nvidia.com/gpu" || k.startsWith("nvidia.com/mig-")))'
)


def healthy(bundle: bytes, *, ca: bytes | None = None) -> dict[Kind, list[Document]]:
    """The objects of an installation that is all right, and a node with GPUs."""
    labels = {"app": "gpu-webhook"}
    selector = {"matchExpressions": [
        {"key": "gpu-webhook", "operator": "NotIn", "values": ["disabled"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]},
    ]}  # fmt: skip
    webhook = {
        "name": "gpu-allocation.k8s.io",
        "clientConfig": {
            "service": {"name": "gpu-webhook", "namespace": NAMESPACE, "path": "/mutate", "port": 443},
            "caBundle": _base64(bundle),
        },
        "rules": [
            {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
        ],
        "namespaceSelector": selector,
        "matchConditions": [{"name": "gpu", "expression": CONDITION}],
        "failurePolicy": "Ignore",
        "timeoutSeconds": 5,
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",
    }
    template = {"spec": {"volumes": [{"name": "config", "configMap": {"name": "gpu-webhook"}}]}}
    deployment = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    return {
        kinds.NAMESPACES: [_object(name) for name in ("default", "kube-system", NAMESPACE)],
        kinds.MUTATING_WEBHOOKS: [_object("gpu-allocation-webhook", webhooks=[webhook])],
        kinds.DEPLOYMENTS: [_object("gpu-webhook", spec=deployment, status={"readyReplicas": 3})],
        kinds.SERVICES: [_object("gpu-webhook", spec={"selector": labels, "ports": [{"port": 443}]})],
        kinds.CONFIG_MAPS: [_object("gpu-webhook", data={"config.yaml": "fallback: {upgrades: false}"})],
        kinds.SECRETS: [_object("gpu-webhook-ca", data={"ca.crt": _base64(bundle if ca is None else ca)})],
        kinds.PODS: [webhook_pod(f"gpu-webhook-{n}") for n in range(3)],
        kinds.NODES: [node("gpu-1", {"nvidia.com/mig-2g.20gb": "2"})],
    }


def webhook_pod(name: str, *, ready: bool = True, **status: Any) -> Document:
    """A replica."""
    found = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"name": "webhook", "ready": ready, "state": {"running": {}}}],
        **status,
    }
    return _object(
        name, labels={"app": "gpu-webhook"}, namespace=NAMESPACE, spec={"containers": []}, status=found
    )


def gpu_pod(
    name: str, resources: dict[str, str], *, node: str = "", message: str = "", **spec: Any
) -> Document:
    """A pod that asks for GPUs; without a node it is Pending, and the scheduler may have said why."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    return _object(
        name,
        namespace="default",
        spec={
            "containers": [{"name": "main", "resources": {"limits": resources, "requests": resources}}],
            **({"nodeName": node} if node else {}),
            **spec,
        },
        status={"phase": "Running" if node else "Pending", "conditions": conditions},
    )


def node(name: str, allocatable: dict[str, str], **metadata: Any) -> Document:
    """A node."""
    return _object(name, status={"allocatable": allocatable}, **metadata)


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

    def __init__(self, answers: list[Answer]) -> None:
        self.answers = {answer.check.name: answer for answer in answers}

    @property
    def findings(self) -> list[tuple[str, str]]:
        """Everything that is worth a person's time: check and severity."""
        return [
            (name, str(finding.severity))
            for name, answer in self.answers.items()
            for finding in answer.findings
            if finding.severity not in ("note", "unseen")
        ]

    def of(self, check: str) -> list[Finding]:
        """What one check found."""
        return list(self.answers[check].findings)

    def one(self, check: str) -> Finding:
        """The only thing that a check found."""
        (finding,) = self.of(check)
        return finding


async def examined(
    objects: dict[Kind, list[Document]],
    *,
    admission: Callable[..., Any] = admit_like_the_webhook,
    forbidden: frozenset[str] = frozenset(),
    now: float,
    names: Names | None = None,
) -> Examined:
    """Examine a cluster with these objects; `forbidden` names what may not be read."""

    class Guarded(ApiServer):
        def target(self, path: str) -> Target:
            target = super().target(path)
            if target.kind.plural in forbidden:
                raise StatusError(403, "Forbidden", f"{target.kind.plural} is forbidden")
            return target

    server = Guarded(admission=admission)
    server.kinds[DAEMON_SETS.prefix, DAEMON_SETS.plural] = DAEMON_SETS
    for kind, documents in objects.items():
        for document in documents:
            namespace = document["metadata"].get("namespace", NAMESPACE) if kind.namespaced else ""
            server.store.create(kind, document, namespace)
    clock = FakeClock(wall=now)
    async with await server.start(), Client(Cluster(Endpoint.parse(server.url, where="test"))) as client:
        seen = await Gatherer(client, names or Names(), clock).gather()
    return Examined(list(examine(seen)))


def _object(
    name: str, *, namespace: str | None = None, labels: Any = None, annotations: Any = None, **rest: Any
) -> Document:
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata | ({"namespace": namespace} if namespace else {}), **rest}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
