"""Layouts kept by the controller, beside a cluster; and a stand-in for the device plugin on nodes that are only objects, which answers to layouts as
the plugin does, in state and in what is allocatable."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.bridge import NAMESPACE, rights
from e2e.cluster.api import Object
from e2e.cluster.client import Client, condition_of, pods_path
from e2e.cluster.processes import until
from e2e.command import Running
from e2e.line import Line
from e2e.stand_in_plugin import StandInPlugin
from tessera.core.mig.geometry import product_named
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import ROLLOUT

NODES = "/api/v1/nodes"
LAYOUTS = "/apis/tessera.dev/v1alpha1/miglayouts"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
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


def add_running_pod(
    cluster: Client, namespace: str, name: str, node: str, resource: str = "nvidia.com/mig-3g.71gb"
) -> None:
    """A pod that counts as running: nobody runs it, and it is gone when it is deleted."""
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    body = {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    cluster.api.create(pods_path(namespace), body)
    ready = {"type": "Ready", "status": "True"}
    status = {"status": {"phase": "Running", "conditions": [ready]}}
    cluster.api.patch(f"{pods_path(namespace)}/{name}/status", status, kind="strategic")


def set_ready(cluster: Client, node: str, status: str) -> None:
    ready = {"type": "Ready", "status": status, "reason": "Simulated"}
    cluster.api.patch(f"{NODES}/{node}/status", {"status": {"conditions": [ready]}}, kind="strategic")


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
        cluster.wait_for(DEFINITIONS, name, served, what="the definition")
        yield
    cluster.wait_gone(DEFINITIONS, name)


def start_controller(
    folder: Path,
    number: int = 0,
    metrics: str = "none",
    lease: str = "",
    line: Line | None = None,
    soonest: float | None = None,
    more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Running:
    """`tessera controller --layouts` with the rights that the chart gives it.

    `lease`: other times of its Lease, `line`: its way to the API server, `soonest`: seconds between two looks of the autopilot,
    `more`: further options.
    """
    config = folder / "kubeconfig-of-the-controller"
    if line is not None:
        config = line.kubeconfig(folder / f"kubeconfig-{number}")
    options = [f"--kubeconfig={config}", f"--tessera-namespace={NAMESPACE}", "--layouts", "--log-format=text"]
    options += [f"--lease={lease}"] if lease else []
    options += [f"--soonest={soonest}"] if soonest is not None else []
    options += [f"--metrics-listen={metrics}", *more]
    log = folder / f"controller-{number}.log"
    module = "e2e.quick_controller" if lease or soonest is not None else "tessera"
    return Running("controller", *options, log=log, module=module, environment=environment)


class Replicas:
    """Two replicas of the controller, whose Lease holds for three seconds. The one that leads is killed and replaced, stopped for a while, or cut off."""

    def __init__(
        self,
        folder: Path,
        soonest: float | None = None,
        more: Sequence[str] = (),
        environment: Callable[[int], Mapping[str, str]] = lambda number: os.environ,
    ) -> None:
        """`more`: further options of each, `environment`: that of the replica with this number."""
        self.kills = self.stops = self.cuts = 0
        self._folder, self._soonest, self._more, self._environment = folder, soonest, more, environment
        self._started = 0
        self._running: dict[Running, Line] = {}
        self._start()
        self._start()

    def _start(self) -> None:
        self._started += 1
        line = Line(self._folder / "kubeconfig-of-the-controller")
        lease = '{"duration": 3, "deadline": 2, "retry": 0.4}'
        one = start_controller(
            self._folder,
            self._started,
            lease=lease,
            line=line,
            soonest=self._soonest,
            more=self._more,
            environment=self._environment(self._started),
        )
        self._running[one] = line

    @property
    def running(self) -> Sequence[Running]:
        """The replicas that were not killed."""
        return [*self._running]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for one in self._running:
            print(f"--- {one.log.name}\n{one.log.read_text()[-3000:]}")  # pytest shows it with a failure

    def close(self) -> None:
        """Kill the replicas."""
        for one, line in self._running.items():
            one.kill()
            line.close()

    def leader(self, *others: Running) -> Running:
        """The replica that leads, once one of those that are not left out does."""
        rest = [one for one in self._running if one not in others]
        return until(lambda: next(filter(_leads, rest), None), timeout=60.0, what="a leader")

    def kill(self, seconds: float) -> None:
        """Kill the leader after so long."""
        one = self.leader()
        time.sleep(seconds)
        one.kill()
        self._running.pop(one).close()
        self.kills += 1
        self._start()

    def stop(self, seconds: float, meanwhile: float) -> None:
        """Stop the leader after so long, until the other one has led for a while: then both believe to lead."""
        hold, let_go = (partial(_send, number) for number in (signal.SIGSTOP, signal.SIGCONT))
        self._without_leader(hold, let_go, seconds, meanwhile)
        self.stops += 1

    def cut_off(self, seconds: float, meanwhile: float) -> None:
        """Hold what the leader sends after so long, until the other one has led for a while: then it arrives."""
        lines = self._running
        self._without_leader(
            lambda one: lines[one].hold(), lambda one: lines[one].let_go(), seconds, meanwhile
        )
        self.cuts += 1

    def _without_leader(
        self,
        hold: Callable[[Running], None],
        let_go: Callable[[Running], None],
        seconds: float,
        meanwhile: float,
    ) -> None:
        self.leader()
        time.sleep(seconds)
        one = self.leader()
        said = one.log.read_text().count(_LOST)
        hold(one)
        try:
            self.leader(one)
            time.sleep(meanwhile)
        finally:
            let_go(one)
        one.until(lambda: one.log.read_text().count(_LOST) > said, what="the old leader's end")


_LEADS, _LOST = "leading as", "not leading any more"


def _send(number: int, one: Running) -> None:
    one.process.send_signal(number)


def _leads(one: Running) -> bool:
    said = one.log.read_text()
    return one.process.poll() is None and said.rfind(_LEADS) > said.rfind(_LOST)


@contextmanager
def kept(
    cluster: Client, folder: Path, layout: Object, soonest: float | None = None, **values: Any
) -> Iterator[Callable[[str], str]]:
    """A MigLayout, and a controller that keeps it; a function that tells the reason of one of its conditions that hold."""
    with definitions(cluster, folder, **values), start_controller(folder, soonest=soonest):
        path = f"{LAYOUTS}/{layout['metadata']['name']}"
        cluster.api.create(LAYOUTS, layout)
        try:
            yield lambda type_: condition_of(cluster.api.get(path), type_).get("status", "")
        finally:
            cluster.api.delete(path)


class StandInCutter(StandInPlugin):
    """Cuts the nodes of a pool as their annotation says, and watches their cordons, until the test is done."""

    gone = None  # what a node does not have any more is removed

    def __init__(self, cluster: Client, pool: str) -> None:
        super().__init__(CARDS)
        self.takes: Callable[[str], float] = lambda node: 0.0  # seconds that a cut takes
        self.at_cordon: dict[str, Callable[[], object]] = {}  # by node: what happens when its rollout begins
        self.at_cut: dict[str, Callable[[], object]] = {}  # and when its layout is written
        self.cuts: Counter[tuple[str, str]] = Counter()  # layouts that were written, by node and layout
        self.begun: Counter[str] = Counter()  # rollouts, by node
        self.most_cordoned = (
            0  # at the same time; those that were cordoned before count while they have a rollout
        )
        self.on_layout = self._hear
        self._before: set[str] = set()
        self._cordoned: set[str] = set()
        self._under_way: set[str] = set()
        self._cluster, self._pool = cluster, pool
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._query = {"labelSelector": f"pool={pool}"}
        listed = cluster.api.get(NODES, **self._query)
        for node in listed["items"]:
            self.remember(node)
            if node["spec"].get("unschedulable"):
                self._before.add(node["metadata"]["name"])
        self._version = listed["metadata"]["resourceVersion"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            for event in self._cluster.api.watch(
                NODES, timeout=1.0, resourceVersion=self._version, **self._query
            ):
                node = event["object"]
                self._version = node["metadata"]["resourceVersion"]
                self._see(node, gone=event["type"] == "DELETED")

    def _see(self, node: Object, *, gone: bool) -> None:
        name = node["metadata"]["name"]
        under_way = ROLLOUT in node["metadata"].get("annotations", {}) and not gone
        cordoned = node["spec"].get("unschedulable") and name not in self._before and not gone
        (self._cordoned.add if cordoned or under_way else self._cordoned.discard)(name)
        self.most_cordoned = max(self.most_cordoned, len(self._cordoned))
        if under_way and name not in self._under_way:
            self.begun[name] += 1
            self._after(0.0, self.at_cordon.get(name, lambda: None))
        (self._under_way.add if under_way else self._under_way.discard)(name)
        if not gone:
            self.see(node)

    def _hear(self, name: str, text: str) -> None:
        self.cuts[name, text] += 1
        self._after(0.0, self.at_cut.get(name, lambda: None))

    def _after(self, seconds: float, action: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, action)
        timer.daemon = True
        timer.start()

    def answer_soon(self, name: str) -> None:
        self._after(self.takes(name), lambda: self.answer(name))

    def read(self, name: str) -> Object | None:
        return self._cluster.api.find(f"{NODES}/{name}")

    def write(self, name: str, patch: Object) -> None:
        if "status" in patch:
            self._cluster.set_allocatable(name, patch["status"]["allocatable"])
        self._cluster.api.patch(f"{NODES}/{name}", {"metadata": patch["metadata"]})
