"""Through a real kube-apiserver: what a pod's creation costs with and without a webhook.

The API server counts how long webhooks take. Pods are created by one client, as dry runs: everything but the
writing to etcd.
"""

import base64
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Final

from e2e.cluster import Cluster, ClusterError, Object, Unavailable, pods_path
from e2e.cluster.versions import KUBERNETES

from benchmarks import corpus
from benchmarks.results import NAIVE, PARTIAL, TESSERA, USUAL, Results, in_turns
from benchmarks.stage import Server, Stage

RUN: Final = "kube"
CREATION: Final = "ms of a pod's creation"
METRIC: Final = "ms by the API server's metric"
NONE: Final = "no webhook"
_WEBHOOK: Final = "bench.tessera.example"
_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_DURATION: Final = "apiserver_admission_webhook_admission_duration_seconds"
_PODS: Final = 60  # created in a round
_SETTLE: Final = 30.0  # seconds within which an API server notices a new configuration


def run(stage: Stage, results: Results) -> None:
    """A control plane with many nodes, and each webhook in turn."""
    nodes = 1_000 if stage.effort.short else corpus.NODES
    try:
        cluster = Cluster.start(f"bench{os.getpid()}")
    except Unavailable as error:
        results.note(f"{RUN} was left out: {error}")
        return
    results.note(f"{RUN}: Kubernetes {KUBERNETES}, {nodes:,} nodes")
    try:
        _add_nodes(cluster, nodes)
        _create(cluster)  # the first of all opens connections and fills caches
        with contextlib.ExitStack() as stack:
            measures: dict[str, Callable[[], dict[str, float]]] = {NONE: partial(_measure, cluster, _PODS)}
            for subject in (TESSERA, USUAL, PARTIAL, NAIVE):
                server = stack.enter_context(stage.webhook(subject, cluster.kubeconfig))
                measures[subject] = partial(_through, stage, cluster, server)
            results.add_all(RUN, f"{nodes:,} nodes", in_turns(stage.effort.rounds, measures))
    except ClusterError as error:
        results.note(f"{RUN} was broken off: {error}")
    finally:
        cluster.stop()


def _through(stage: Stage, cluster: Cluster, server: Server) -> dict[str, float]:
    with _registered(stage, cluster, server):
        return _measure(cluster, 2 if server.subject == NAIVE else _PODS)


def _add_nodes(cluster: Cluster, count: int) -> None:
    def add(number: int) -> None:
        node = corpus.node(number)
        del node["metadata"]["resourceVersion"], node["metadata"]["uid"], node["metadata"]["managedFields"]
        del node["spec"]["podCIDR"]
        cluster.api.create("/api/v1/nodes", node)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(count)))


@contextlib.contextmanager
def _registered(stage: Stage, cluster: Cluster, server: Server) -> Iterator[None]:
    bundle = base64.b64encode(stage.authority.files.certificate.read_bytes()).decode()
    webhook = {
        "name": _WEBHOOK,
        "clientConfig": {"url": f"https://{server.address}/mutate", "caBundle": bundle},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 30,
        "failurePolicy": "Fail",
    }
    name = "bench"
    cluster.api.create(_CONFIGURATIONS, {"metadata": {"name": name}, "webhooks": [webhook]})
    try:
        deadline = time.monotonic() + _SETTLE
        while "gpu-webhook.k8s.io/fallback" not in _create(cluster)["metadata"].get("annotations", {}):
            if time.monotonic() > deadline:
                raise ClusterError(f"the API server does not call {server.subject}")
            time.sleep(0.1)
        yield
    finally:
        cluster.api.delete(f"{_CONFIGURATIONS}/{name}")


def _measure(cluster: Cluster, pods: int) -> dict[str, float]:
    before, times = _spent(cluster), []
    for _ in range(pods):
        begun = time.perf_counter()
        _create(cluster)
        times.append((time.perf_counter() - begun) * 1000)
    seconds, calls = (now - then for now, then in zip(_spent(cluster), before, strict=True))
    return {CREATION: median(times)} | ({METRIC: seconds / calls * 1000} if calls else {})


def _spent(cluster: Cluster) -> tuple[float, float]:
    """Seconds that the API server waited for the webhook so far, and how often."""
    found = {"sum": 0.0, "count": 0.0}
    for line in cluster.metrics().splitlines():
        name, _, labels = line.partition("{")
        if name.startswith(_DURATION) and f'name="{_WEBHOOK}"' in labels:
            kind = name.rpartition("_")[2]
            found[kind] = found.get(kind, 0.0) + float(line.rpartition(" ")[2])
    return found["sum"], found["count"]


def _create(cluster: Cluster) -> Object:
    """A pod that asks for what no node offers, as a dry run."""
    return cluster.api.create(pods_path("default"), _POD, dryRun="All")


def _pod() -> Object:
    pod = corpus.pod(corpus.TEMPLATES[0], 0, corpus.SIZES["4 KB"], "same bytes")
    for field in ("ownerReferences", "managedFields"):
        del pod["metadata"][field]
    return pod


_POD: Final = _pod()
