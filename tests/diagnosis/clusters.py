"""Small clusters to ask "why?" about: nodes, pods, workloads and events as documents, on the stand-in API server."""

from datetime import UTC, datetime
from typing import Any

from tessera.core.admission.policy import Policy
from tessera.diagnosis.diagnosis import Diagnosis, diagnose
from tessera.diagnosis.gather import Gatherer
from tessera.diagnosis.reading import parse_target
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.apiserver import ApiServer, Target
from tessera.simulation.control_plane.kinds import ResourceType
from tessera.simulation.control_plane.store import Document, StatusError, Store
from tessera.solver import highs
from tests.build import asking_pod, node_document
from tests.kube.clock import FakeClock

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
REPLICA_SETS = ResourceType("apps/v1", "replicasets", "ReplicaSet")
QUOTAS = ResourceType("v1", "resourcequotas", "ResourceQuota")
CLASSES, CLAIMS = kinds.DEVICE_CLASSES, kinds.RESOURCE_CLAIMS
_MADE = "2026-11-15T09:00:00Z"


def node(name: str, has: dict[str, int], *, capacity: dict[str, int] | None = None, cpu: str = "64", **more: Any) -> Document:  # fmt: skip
    """A node with MIG devices; `capacity` counts those that are not healthy too."""
    machine = {"cpu": cpu, "memory": "256Gi", "pods": 110}
    return node_document(
        name,
        {**machine, **has},
        capacity={**machine, **(has if capacity is None else capacity)},
        labels=more.get("labels"),
        annotations=more.get("annotations"),
        spec={"taints": more.get("taints", [])},
    )


def pod(name: str, asks: dict[str, int] | None = None, *, on: str = "", cpu: str = "1", **more: Any) -> Document:  # fmt: skip
    """A pod of namespace team; with a node it runs there since nine, else it waits."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available",
    }
    state = {"startTime": _MADE} if on else {"conditions": [condition]}
    return asking_pod(
        name,
        asks or {},
        requests={"cpu": cpu},
        node=on,
        namespace="team",
        metadata={"annotations": more.get("annotations", {}), **more.get("metadata", {})},
        spec=more.get("spec"),
        status={**state, **more.get("status", {})},
    )


def refused(message: str, asks: dict[str, int], **more: Any) -> dict[ResourceType, list[Document]]:
    """A ReplicaSet that wants two pods and gets none, and the event that says why."""
    template = pod("x", asks, **more)
    template = {"metadata": template["metadata"], "spec": template["spec"]}
    controller = {
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"replicas": 2, "template": template},
    }
    event = {
        "metadata": {"name": "web.1", "namespace": "team"},
        "involvedObject": {"kind": "ReplicaSet", "name": "web"},
        "reason": "FailedCreate",
        "type": "Warning",
        "message": message,
        "lastTimestamp": "2026-11-15T11:55:00Z",
    }
    return {REPLICA_SETS: [controller], kinds.EVENTS: [event]}


async def why(
    target: str,
    objects: dict[ResourceType, list[Document]],
    *,
    forbidden: frozenset[str] = frozenset(),
    policy: Policy | None = None,
    namespace: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    uid: str = "",
) -> Diagnosis:
    """Ask about something of namespace team.

    `namespace` are that namespace's annotations, `labels` its labels; pods' owners have this `uid`.
    """

    class Guarded(ApiServer):
        def target(self, path: str) -> Target:
            found = super().target(path)
            if found.kind.plural in forbidden or (
                f"all {found.kind.plural}" in forbidden and not found.namespace
            ):
                raise StatusError(403, "Forbidden", f"{found.kind.plural} is forbidden")
            return found

    times = [NOW]  # at which an object is made
    server = Guarded(Store(lambda: times[0]))
    for kind in (REPLICA_SETS, QUOTAS, CLASSES, CLAIMS, *objects):
        server.kinds[kind.prefix, kind.plural] = kind
    own = {"metadata": {"name": "team", "annotations": namespace or {}, "labels": labels or {}}}
    for kind, documents in {kinds.NAMESPACES: [own], **objects}.items():
        for document in documents:
            space = document["metadata"].get("namespace", "team") if kind.namespaced else ""
            created = document["metadata"].get("creationTimestamp")
            times[0] = datetime.fromisoformat(created) if created else NOW
            made = server.store.create(kind, document, space)
            if uid and kind is REPLICA_SETS:  # the server gives its own: pods are made to name that
                own_uid = made.document["metadata"]["uid"]
                for one in objects.get(kinds.PODS, ()):
                    for owner in one["metadata"].get("ownerReferences", ()):
                        owner["uid"] = own_uid
    async with await server.start(), Client(Cluster(ServerAddress.parse(server.url, where="test"))) as client:
        decides_by = PolicySource(given=UsedPolicy(policy or Policy()))
        clock = FakeClock(wall=NOW.timestamp(), auto=True)
        gatherer = Gatherer(client, "team", decides_by=decides_by, clock=clock)
        return diagnose(*await gatherer.gather(*parse_target(target)), highs)
