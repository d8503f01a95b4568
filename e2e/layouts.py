"""Layouts kept by the controller, beside a cluster; and a stand-in for the device plugin on nodes that are only objects, which answers to layouts as
the plugin does, in state and in what is allocatable."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.bridge import NAMESPACE, rights
from e2e.cluster.api import ApiError, Object
from e2e.cluster.client import Client, condition_of
from e2e.command import Running
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.mig.product import product_named
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import ROLLOUT

Refusal = Callable[[str, str], str]
NODES = "/api/v1/nodes"
LAYOUTS = "/apis/tessera.dev/v1alpha1/miglayouts"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CARDS = [product_named("H200")] * 2
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/gpu.memory": "143771",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/mig.strategy": "mixed",
}
BEFORE = """\
version: v1
mig-configs:
  selected:
  - {devices: [0, 1], mig-enabled: true, mig-devices: [3g.71gb, 3g.71gb]}
"""


def add_gpu_node(cluster: Client, name: str, pool: str) -> None:
    """A node with two cards, cut into halves."""
    labels = {**LABELS, "pool": pool, mig.CONFIG_STATE: "success"}
    has = mig.read_layout(BEFORE, CARDS).resources()
    cluster.add_node(name, allocatable=dict(has), labels=labels, annotations={mig.RUNAI_CONFIG: BEFORE})


def mig_layout(name: str, pool: str = "none", **spec: Any) -> Object:
    """A MigLayout for the nodes of a pool; a field that is None is not there."""
    given = {"nodeSelector": {"pool": pool}, "layouts": [{"perCard": {"1g.18gb": 4}}], **spec}
    return {
        "apiVersion": "tessera.dev/v1alpha1",
        "kind": "MigLayout",
        "metadata": {"name": name},
        "spec": {field: one for field, one in given.items() if one is not None},
    }


@contextmanager
def definitions(cluster: Client, folder: Path, **values: Any) -> Iterator[None]:
    """What the chart makes with `layouts.enabled`: the definition, and the controller's rights and policies."""
    with rights(cluster, folder, layouts={"enabled": True, **values}):
        served = lambda one: one and condition_of(one, "Established").get("status") == "True"  # noqa: E731
        name = "miglayouts.tessera.dev"
        cluster.wait_for(_DEFINITIONS, name, served, what="the definition")
        yield
    cluster.wait_gone(_DEFINITIONS, name)


def start_controller(folder: Path, number: int = 0, metrics: str = "none") -> Running:
    """`tessera controller --layouts` with the rights that the chart gives it."""
    config = folder / "kubeconfig-of-the-controller"
    options = (f"--kubeconfig={config}", f"--namespace={NAMESPACE}", "--layouts", "--log-format=text")
    log = folder / f"controller-{number}.log"
    return Running("controller", *options, f"--metrics-listen={metrics}", log=log)


@contextmanager
def kept(cluster: Client, folder: Path, layout: Object, **values: Any) -> Iterator[Callable[[str], str]]:
    """A MigLayout, and a controller that keeps it; a function that tells the reason of one of its conditions that hold."""
    with definitions(cluster, folder, **values), start_controller(folder):
        path = f"{LAYOUTS}/{layout['metadata']['name']}"
        cluster.api.create(LAYOUTS, layout)
        try:
            yield lambda type_: condition_of(cluster.api.get(path), type_).get("status", "")
        finally:
            cluster.api.delete(path)


class StandInCutter:
    """Cuts the nodes of a pool as their annotation says, until the test is done; what it cut is in `cuts`."""

    def __init__(self, cluster: Client, pool: str) -> None:
        self.refuses: Refusal = lambda node, text: ""  # why it does not take this one
        self.dead: set[str] = set()  # nodes where nobody answers
        self.cuts: Counter[tuple[str, str]] = Counter()  # by node and layout
        self.steps = 0  # changes of nodes that were cordoned by a rollout
        self.most_cordoned = 0  # by rollouts, at the same time
        self._cordoned: set[str] = set()
        self._cluster, self._pool = cluster, pool
        self._asked: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        query = {"labelSelector": f"pool={self._pool}"}
        listed = self._cluster.api.get(NODES, **query)
        for node in listed["items"]:
            self._asked[node["metadata"]["name"]] = _asked(node)
        version = listed["metadata"]["resourceVersion"]
        while not self._stop.is_set():
            for event in self._cluster.api.watch(NODES, timeout=1.0, resourceVersion=version, **query):
                node = event["object"]
                version = node["metadata"]["resourceVersion"]
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._see(node)

    def _see(self, node: Object) -> None:
        name, asked = node["metadata"]["name"], _asked(node)
        self.steps += name in self._cordoned
        ours = ROLLOUT in node["metadata"].get("annotations", {})
        (self._cordoned.add if ours else self._cordoned.discard)(name)
        self.most_cordoned = max(self.most_cordoned, len(self._cordoned))
        if self._asked.get(name) == asked or name in self.dead:
            return
        self._asked[name] = asked
        self.cuts[name, asked] += 1
        try:
            self._answer(node, asked)
        except ApiError as error:
            if error.code != 404:
                raise

    def _answer(self, node: Object, asked: str) -> None:
        name = node["metadata"]["name"]
        if reason := self.refuses(name, asked):
            said = {"labels": {mig.CONFIG_STATE: "failed"}, "annotations": {mig.CONFIG_REASON: reason}}
            self._cluster.api.patch(f"{NODES}/{name}", {"metadata": said})
            return
        has = mig.read_layout(asked, CARDS).resources()
        none = {one: None for one in node["status"]["allocatable"] if is_whole_or_mig(one)}
        self._cluster.set_allocatable(name, {**none, **has})
        shown = {"labels": {mig.CONFIG_STATE: "success"}, "annotations": {mig.CONFIG_REASON: None}}
        self._cluster.api.patch(f"{NODES}/{name}", {"metadata": shown})


def _asked(node: Object) -> str:
    return str(node["metadata"].get("annotations", {}).get(mig.RUNAI_CONFIG, ""))
