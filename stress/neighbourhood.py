"""A cluster for `stress.neighbours`: nodes, a stand-in scheduler, and questions to the webhook."""

import asyncio
import base64
import contextlib
import itertools
import json
import time
from typing import Any, Final

from stress.attacks import answer, connect, request
from tessera.core.mig.geometry import product_named
from tessera.protocol.admission import review
from tessera.protocol.mig import documents as mig
from tessera.simulation.control_plane.kinds import ENDPOINT_SLICES, MIG_LAYOUTS, NAMESPACES, NODES, PODS
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import StatusError, Store, StoredChange

Document = dict[str, Any]

HONEST, TENANTS = "honest", ("tenant-a", "tenant-b")
ONE, TWO = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
SMALL, HALF, WHOLE = (f"nvidia.com/mig-{name}" for name in ("1g.18gb", "3g.71gb", "7g.141gb"))
CARDS: Final = [product_named("H200")] * 2
_IDLE_LAYOUT: Final = f"""\
version: v1
mig-configs:
  selected:
  - {{devices: [0, 1], mig-enabled: true, mig-devices: [{", ".join(["1g.18gb"] * 7)}]}}
"""
_JUDGES: Final = 0.05  # seconds that the scheduler takes


def _node(name: str, pool: str, has: dict[str, int], product: str, annotations: Document) -> Document:
    labels = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": "2",
        "nvidia.com/mig.strategy": "mixed",
        mig.CONFIG_STATE: "success",
        "pool": pool,
    }
    amounts = {resource: str(number) for resource, number in has.items()}
    amounts |= {"cpu": "64", "memory": "512Gi", "pods": "1000"}
    status = {
        "allocatable": amounts,
        "capacity": amounts,
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {}, "status": status}


def build(store: Store) -> None:
    """Three pools: one with free 2g, one with free 1g alone, and one whose cards are idle and cut small."""
    for name in ("gpu-webhook", HONEST, *TENANTS):
        store.create(NAMESPACES, {"metadata": {"name": name}})
    a100, h200 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H200"
    for number in range(4):
        store.create(NODES, _node(f"full-{number}", "full", {ONE: 8, TWO: 8}, a100, {}))
        store.create(NODES, _node(f"patience-{number}", "patience", {ONE: 16, TWO: 1}, a100, {}))
        document = pod(f"holder-{number}", TWO, "patience")
        document["spec"]["nodeName"], document["status"] = f"patience-{number}", {"phase": "Running"}
        store.create(PODS, document, HONEST)
        has = dict(mig.read_layout(_IDLE_LAYOUT, CARDS).resources())
        store.create(NODES, _node(f"auto-{number}", "auto", has, h200, {mig.RUNAI_CONFIG: _IDLE_LAYOUT}))
    spec = {"nodeSelector": {"pool": "auto"}, "mode": "Auto", "autopilot": {"dryRun": False}}
    store.create(MIG_LAYOUTS, {"metadata": {"name": "auto"}, "spec": spec})
    slices = {
        "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "gpu-webhook"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}],
    }
    store.create(ENDPOINT_SLICES, slices, "gpu-webhook")


def pod(name: str, resource: str, pool: str, owner: str = "", **spec: Any) -> Document:
    """A pod that asks for one device of a pool."""
    limits = {resource: "1"}
    metadata: Document = {"name": name}
    if owner:
        kind = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
        metadata |= {"generateName": f"{owner}-", "ownerReferences": [{**kind, "name": owner, "uid": owner}]}
    container = {"name": "main", "resources": {"limits": limits, "requests": dict(limits)}}
    return {
        "metadata": metadata,
        "spec": {"nodeSelector": {"pool": pool}, "containers": [container], **spec},
        "status": {"phase": "Pending"},
    }


def asked_by(document: Document) -> str:
    """What the container of such a pod asks for."""
    return str(next(iter(document["spec"]["containers"][0]["resources"]["limits"])))


class StandInScheduler:
    """Judges each pod a moment after it was created. It places pods of the honest namespace alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.follow(PODS, store.version, self._changed)

    def _changed(self, change: StoredChange) -> None:
        if change.type == "ADDED":
            asyncio.get_running_loop().call_later(_JUDGES, self.judge, change.after.key)

    def judge(self, key: tuple[str, str]) -> None:
        """Write a pod's node, or that there is none."""
        try:
            document = self._store.get(PODS, key[1], key[0]).document
        except StatusError:
            return
        spec = document["spec"]
        if spec.get("resourceClaims") or spec.get("nodeName"):
            return  # of a pod whose claim is missing it says nothing
        node = self._free_node(document) if key[0] == HONEST else ""
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._store.now()}
        if node:
            spec["nodeName"] = node
        else:
            reason = "SchedulingGated" if spec.get("schedulingGates") else "Unschedulable"
            condition |= {"status": "False", "reason": reason, "message": "0/12 nodes are available"}
            asyncio.get_running_loop().call_later(1.0, self._try_again, key)
        if not document["status"].get("conditions") or node:
            document["status"]["conditions"] = [condition]
            self._store.update(PODS, key[1], document, key[0])

    def _try_again(self, key: tuple[str, str]) -> None:
        if key[0] == HONEST:
            self.judge(key)

    def _free_node(self, document: Document) -> str:
        resource, pool = asked_by(document), document["spec"]["nodeSelector"]["pool"]
        held = [
            (other.document["spec"].get("nodeName"), asked_by(other.document))
            for other in self._store.list(PODS, HONEST)
        ]
        for stored in self._store.list(NODES):
            node = stored.document
            there = int(node["status"]["allocatable"].get(resource, "0")) - held.count(
                (stored.key[1], resource)
            )
            fits = node["metadata"]["labels"]["pool"] == pool and not node["spec"].get("unschedulable")
            if fits and there > 0:
                return stored.key[1]
        return ""


class ApiServersClient:
    """Asks the webhook about pods, as the API server does, on one connection from an address of its own."""

    def __init__(self, port: int, address: str) -> None:
        self._port, self._address = port, address
        self._client = connect(port, address)
        self._numbers = itertools.count()
        self.times_ms: list[float] = []
        self.failed = 0  # questions without an answer

    async def admit(self, document: Document, namespace: str, *, dry_run: bool = False) -> Document:
        """Return a pod as the webhook leaves it. It stays as it was if the webhook does not answer."""
        return await asyncio.to_thread(self._admit, document, namespace, dry_run)

    def _admit(self, document: Document, namespace: str, dry_run: bool) -> Document:
        asked = {
            "uid": f"{self._address}-{next(self._numbers)}",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "namespace": namespace,
            "dryRun": dry_run,
            "object": document,
        }
        octets = json.dumps(
            {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": asked}
        ).encode()
        began = time.perf_counter()
        try:
            self._client.sendall(request(octets))
            answered = json.loads(answer(self._client))["response"]
        except OSError:
            self.failed += 1
            with contextlib.suppress(OSError):
                self._client.close()
                self._client = connect(self._port, self._address)
            return document
        self.times_ms.append((time.perf_counter() - began) * 1e3)
        patch = json.loads(base64.b64decode(answered.get("patch", "W10=")))
        return apply_patch("application/json-patch+json", document, patch)
