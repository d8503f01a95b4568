"""Pods with claims through a real scheduler: how many are bound in a second, with and without counters.

Nodes are objects, and their ResourceSlices are made by the driver's own code: eight cards cut on demand, or the same devices
without counters. There is no kubelet: a pod counts when it is bound. Every release is a process of its own, since a cluster is of
one release.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from e2e import dra
from e2e.cluster import Client, Cluster, ClusterError, Object, Unavailable, pods_path
from e2e.cluster.versions import KUBERNETES

from benchmarks.results import Results
from benchmarks.stage import Stage
from tessera.core.mig.geometry import product_named

RUN: Final = "scheduling"
RATE: Final = "pods bound a second"
RELEASES: Final = (KUBERNETES, "v1.37.1")  # the one of the tests, and the first that has counters mended
_PLAIN: Final = "no counters"
_COUNTED: Final = "counters"
_NODES: Final = (10, 30, 100)
_CARDS: Final = 8
_PODS: Final = 60
_PATIENCE: Final = 60.0  # seconds: what is bound by then is counted
_PRODUCT: Final = product_named("H200")
_PROFILE: Final = "1g.18gb"


def run(stage: Stage, results: Results) -> None:
    """One process for each release that is built."""
    for release in dict.fromkeys(RELEASES):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.scheduling",
                *map(str, _NODES[:1] if stage.effort.short else _NODES),
            ],
            env={**os.environ, "TESSERA_E2E_KUBERNETES": release},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            results.note(f"{RUN}, {release} was left out or broken off")
            continue
        for kind, rates in json.loads(done.stdout).items():
            for count, rate in rates.items():
                results.add(
                    RUN, f"{count} nodes, {_CARDS} cards × 26 devices", RATE, f"{release}, {kind}", [rate]
                )
    results.note(
        f"{RUN}: {_PODS} pods with one claim each, created at once; what is bound within {_PATIENCE:g} s counts; nodes are objects; "
        f"load average {os.getloadavg()[0]:.1f} at the end"
    )


def main(counts: list[int]) -> None:
    """Measure this release; the rates as JSON."""
    cluster = Cluster.start(f"bench{os.getpid()}")
    try:
        dra.profile_class(cluster, _PROFILE)
        rates = {kind: _by_nodes(cluster, kind, counts) for kind in (_PLAIN, _COUNTED)}
        print(json.dumps(rates))
    finally:
        cluster.stop()


def _by_nodes(cluster: Client, kind: str, counts: list[int]) -> dict[int, float]:
    """The rates of one kind of node, with more and more of them; they are gone at the end."""
    rates: dict[int, float] = {}
    names: list[str] = []
    for count in counts:
        more = [f"{kind.partition(' ')[0]}-{number}" for number in range(len(names), count)]
        names += more
        with ThreadPoolExecutor(8) as threads:
            add = partial(
                dra.cut_on_demand, cluster, product=_PRODUCT, cards=_CARDS, counted=kind == _COUNTED
            )
            list(threads.map(add, more))
        _settle(cluster, count)
        rates[count] = _measure(cluster)
    for name in names:
        cluster.remove_node(name)
    cluster.wait(lambda: not cluster.api.get(dra.SLICES)["items"], what="the slices are gone")
    return rates


def _settle(cluster: Client, nodes: int) -> None:
    """One pod ahead of all: the scheduler has seen the nodes when it is bound, and has compiled the class's expression."""
    _measure(cluster, pods=1)
    if len(cluster.api.get("/api/v1/nodes")["items"]) != nodes:
        raise ClusterError("nodes are missing")


def _measure(cluster: Client, pods: int = _PODS) -> float:
    with cluster.namespace() as namespace:
        claims = f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims"
        request = {"name": "gpu", "exactly": {"deviceClassName": dra.profile_class(cluster, _PROFILE)}}
        names = [f"p{number}" for number in range(pods)]
        with ThreadPoolExecutor(4) as threads:

            def claim(name: str) -> None:
                cluster.api.create(
                    claims, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
                )

            list(threads.map(claim, names))
        rate = created_per_second(
            cluster, namespace, [_pod(name) for name in names], lambda pod: pod["spec"].get("nodeName")
        )
        cluster.api.delete(pods_path(namespace), gracePeriodSeconds="0")
        cluster.wait(lambda: not cluster.api.get(pods_path(namespace))["items"], what="the pods are gone")
        cluster.api.delete(claims)
        cluster.wait(lambda: not cluster.api.get(claims)["items"], what="the claims are gone")
    return rate


def created_per_second(
    cluster: Client, namespace: str, pods: list[Object], is_done: Callable[[Object], object]
) -> float:
    """Create pods at once, and watch until all are done; how many were done in a second."""
    path = pods_path(namespace)
    version = cluster.api.get(path)["metadata"]["resourceVersion"]
    done: set[str] = set()
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        created = [threads.submit(cluster.api.create, path, pod) for pod in pods]
        for event in cluster.api.watch(path, timeout=_PATIENCE, resourceVersion=version):
            if is_done(event["object"]):
                done.add(event["object"]["metadata"]["name"])
            if len(done) == len(pods):
                break
        taken = time.monotonic() - begun
        for one in created:
            one.result()
    return len(done) / taken


def _pod(name: str) -> Object:
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": [container]}
    return {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 0}}


if __name__ == "__main__":
    try:
        main([int(word) for word in sys.argv[1:]])
    except Unavailable as error:
        sys.exit(f"{Path(__file__).name}: {error}")
