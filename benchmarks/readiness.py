"""Pods ready in a second on a real node, and what they cost: slices from a device plugin, and the same slices from DRA, bridged and not.

One real node with a kubelet and containerd, busybox in every pod, simulated cards with the same layout each time. The webhook is called
for all of them. Served by DRA, a pod keeps its request (the scheduler makes its claim) or becomes one with a claim of alternatives
(the controller makes its template). A round is all three, in turns.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from e2e import bridge, dra
from e2e.cluster import ClusterError, ClusterWithNode, Object, Unavailable, condition_of, pods_path
from e2e.cluster.versions import KUBERNETES
from e2e.test_device_plugin import plugin, wait_allocatable
from e2e.webhook import Webhook, registered

from benchmarks.results import Results, in_turns
from benchmarks.scheduling import created_per_second
from benchmarks.stage import Stage

RUN: Final = "readiness"
RATE: Final = "pods ready a second"
SPENT: Final = "ms of processor time a pod"
PLUGIN: Final = "device plugin"
UNCHANGED: Final = "DRA, request kept"
BRIDGED: Final = "DRA, bridged"
_ROUNDS: Final = 3  # a round takes two minutes
_PODS: Final = 40
_CARDS: Final = 8
_LAYOUT: Final = 'layout: "1g.10gb=5,2g.20gb=1"'  # a second type, so that there is an alternative
_RESOURCE: Final = f"{bridge.MIG}1g.10gb"


def run(stage: Stage, results: Results) -> None:
    """A cluster with a node, and each way in turn."""
    try:
        cluster = ClusterWithNode.start(f"bench{os.getpid()}")
    except Unavailable as error:
        results.note(f"{RUN} was left out: {error}")
        return
    pods = 10 if stage.effort.short else _PODS
    try:
        with tempfile.TemporaryDirectory(prefix="tessera-") as folder, _around(cluster, Path(folder)):
            measures: dict[str, Callable[[], dict[str, float]]] = {
                PLUGIN: partial(_plugged, cluster, pods),
                UNCHANGED: partial(_claimed, cluster, pods, "extended-resources"),
                BRIDGED: partial(_claimed, cluster, pods, "first-available"),
            }
            results.add_all(RUN, f"{pods} pods of 1g", in_turns(_ROUNDS, measures))
        results.note(
            f"{RUN}: Kubernetes {KUBERNETES}, one real node on the machine of everything else; {pods} pods with one busybox container "
            f"each, created at once, ready as the kubelet says; processor time of control plane, node, containers and Tessera together, until all are ready; load average {os.getloadavg()[0]:.1f} at the end"
        )
    except ClusterError as error:
        results.note(f"{RUN} was broken off: {error}")
    finally:
        cluster.stop()


@contextmanager
def _around(cluster: ClusterWithNode, folder: Path) -> Iterator[None]:
    """The classes, the webhook and the controller, which are there for all; no pod is bridged unless its namespace says so."""
    with (
        bridge.classes(cluster),
        bridge.rights(cluster, folder),
        Webhook(cluster, folder / "webhook", f"--tessera-namespace={bridge.NAMESPACE}") as webhook,
        registered(cluster, webhook, failurePolicy="Fail"),
        bridge.start_controller(cluster, folder) as controller,
    ):
        controller.wait_for_log("leading as")
        yield


def _plugged(cluster: ClusterWithNode, pods: int) -> dict[str, float]:
    """Served by the device plugin; the kubelet remembers it afterwards, and is told to forget."""
    with _folder() as folder, cluster.namespace() as namespace:
        with plugin(cluster, folder, dra.simulated(folder, _LAYOUT, _CARDS)):
            wait_allocatable(cluster, {_RESOURCE: str(5 * _CARDS)})
            found = _measure(cluster, namespace, pods, is_bridged=False)
        wait_allocatable(cluster, {_RESOURCE: "0"})
    cluster.forget_devices()
    return found


def _claimed(cluster: ClusterWithNode, pods: int, way: str) -> dict[str, float]:
    """Served by the DRA driver."""
    with _folder() as folder, cluster.namespace() as namespace:
        cluster.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"annotations": {bridge.DRA: way}}})
        with dra.driver(cluster, namespace, folder, dra.simulated(folder, _LAYOUT, _CARDS)):
            return _measure(cluster, namespace, pods, is_bridged=way == "first-available")


def _measure(cluster: ClusterWithNode, namespace: str, pods: int, *, is_bridged: bool) -> dict[str, float]:
    """Wait until the webhook sees what is there; then the pods."""

    def goes_that_way() -> bool:
        pod = cluster.api.create(pods_path(namespace), _pod("probe"), dryRun="All")
        return bridge.is_bridged(pod) is is_bridged and bridge.RECORD not in pod["metadata"].get(
            "annotations", {}
        )

    cluster.wait(goes_that_way, what="the webhook sees the devices")
    created_per_second(cluster, namespace, [_pod("first")], _ready)  # opens what is opened once
    dra.remove_pods(cluster, namespace)
    before = _spent()
    rate = created_per_second(cluster, namespace, [_pod(f"p{number}") for number in range(pods)], _ready)
    spent = (_spent() - before) / pods * 1000
    ready = sum(map(_ready, cluster.api.get(pods_path(namespace))["items"]))
    dra.remove_pods(cluster, namespace)
    if ready != pods:
        raise ClusterError(f"{ready} of {pods} pods were ready")
    return {RATE: rate, SPENT: spent}


def _spent() -> float:
    """Seconds of processor time of all that this process has started, and that they have: cluster, node, containers, Tessera."""
    times: dict[
        int, tuple[int, int]
    ] = {}  # process → its parent, and its ticks with those of its children that have ended
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(") ")[2].split()
            times[int(file.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    ours, found = {os.getpid()}, 0
    while found < len(ours):
        found = len(ours)
        ours |= {process for process, (parent, _) in times.items() if parent in ours}
    ticks = sum(times[process][1] for process in ours - {os.getpid()})
    return ticks / os.sysconf("SC_CLK_TCK")


def _ready(pod: Object) -> bool:
    return condition_of(pod, "Ready").get("status") == "True"


def _pod(name: str) -> Object:
    pod: Object = json.loads(dra.pod(name, limits={_RESOURCE: 1}))
    return pod


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for a driver's life: short, since there are sockets in it."""
    with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
        yield Path(folder)
