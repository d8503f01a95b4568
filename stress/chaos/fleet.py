"""Breaks what keeps the layouts of several nodes, and checks its promises: at any time, and after each round in a calm."""

import contextlib
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Final

from e2e.cluster import Cluster, Object, condition_of, pods_path
from e2e.cluster.errors import ClusterError
from e2e.layouts import LAYOUTS, NODES

from stress.chaos import samples
from stress.chaos.looks import PROMISES, Cut, FleetLook, NodeLook, PodLook, Promises
from stress.chaos.plugins import AWAY
from stress.chaos.schedule import Disturbance, Fault, Report
from stress.chaos.world import (
    AUTO,
    CORDONED_BY_ADMIN,
    DEPLOYMENTS,
    FIXED,
    MIG,
    MOST_UNAVAILABLE,
    NAMESPACE,
    NODES_OF,
    UNTIL,
    World,
    make_deployment,
    make_pod,
)
from tessera.protocol.mig.rollouts import RESULT, ROLLOUT

CALM: Final = 180.0  # seconds after which everything must have settled


class Fleet:
    """Breaks a world, and looks at what it promises."""

    kind: ClassVar[str] = "fleet"

    def __init__(self, cluster: Cluster, folder: Path, report: Report) -> None:
        self._cluster = cluster
        self._folder = folder
        self._report = report
        self._world = World(cluster, folder, report.seed)
        self._bound: dict[str, float] = {}  # since when pods have a node
        self._memory: dict[str, list[int]] = {"controller": [], "webhook": []}

    # Promises

    def _watch(self) -> None:
        """Look at the fleet several times a second. The stand-in plugins do their work then."""
        measured = 0.0
        while not self._world.over.wait(0.25):
            with contextlib.suppress(*AWAY):
                self._look()
            if time.monotonic() > measured + 2.0:
                measured = time.monotonic()
                for name, use in self._uses().items():
                    self._memory[name.partition("-")[0]].append(use.memory_kib)

    def _look(self) -> None:
        guarded = dict(self._world.guarded)
        nodes = self._cluster.api.get(NODES)["items"]
        pods = [pod for pod in self._cluster.api.get("/api/v1/pods")["items"] if not _has_ended(pod)]
        guarded = {uid: name for uid, name in guarded.items() if uid in self._world.guarded}
        now = time.monotonic()
        cuts = [
            self._world.plugins.look(node)
            for node in nodes
            if node["metadata"]["labels"].get("pool") in NODES_OF
        ]
        self._bound = {
            pod["metadata"]["uid"]: self._bound.get(pod["metadata"]["uid"], now)
            for pod in pods
            if pod["spec"].get("nodeName")
        }
        look = FleetLook(
            nodes=[NodeLook.read(node) for node in nodes],
            pods=[PodLook.read(pod, now - self._bound.get(pod["metadata"]["uid"], now)) for pod in pods],
            cuts=self._judged_cuts(cuts),
        )
        promises = Promises(
            most_unavailable=MOST_UNAVAILABLE,
            cordoned_by_admin=frozenset({CORDONED_BY_ADMIN}),
            untouched=self._world.untouched,
            guarded=guarded,
        )
        for promise in PROMISES:
            self._report.checks[promise.name] += 1
            for complaint in promise.complain(look, promises):
                self._report.add(self.kind, f"{promise.name}: {complaint}")

    def _judged_cuts(self, cuts: list[Cut | None]) -> list[Cut]:
        """The cuts that were ordered with the pods in mind that there are: a restored etcd brings back ended ones."""
        if time.monotonic() < self._world.restored + 30.0:
            return []
        return [cut for cut in cuts if cut is not None]

    def _uses(self) -> dict[str, samples.Use]:
        uses = {
            name: samples.read_use(process.process.pid) for name, process in self._world.processes().items()
        }
        return {name: use for name, use in uses.items() if use is not None}

    # Calm

    def calm(self) -> None:
        """Without faults and pods that come and go, everything settles, and then nothing happens."""
        self._report.checks["no cordon, record or layout is left over"] += 1
        self._world.calm.set()
        began = time.monotonic()
        try:
            self._cluster.settle()
            self._wait_until_settled()
            self._report.say(self.kind, f"calm after {time.monotonic() - began:.0f} s")
            self._rest_when_idle()
        except ClusterError as error:
            self._report.add(self.kind, f"not calm after {CALM:.0f} s: {error}: {self._unsettled()}")
        self._world.calm.clear()

    def _wait_until_settled(self) -> None:
        quiet_since, cleared = time.monotonic(), 0.0

        def settled() -> bool:
            nonlocal quiet_since, cleared
            try:
                if time.monotonic() > cleared + 5.0:
                    cleared = time.monotonic()
                    self._try_failed_nodes_again()
                if self._unsettled():
                    quiet_since = time.monotonic()
            except AWAY:
                quiet_since = time.monotonic()
            return time.monotonic() > quiet_since + 3.0

        self._cluster.wait(settled, timeout=CALM, what="a fleet without rollouts")

    def _try_failed_nodes_again(self) -> None:
        for node in self._cluster.api.get(NODES)["items"]:
            if RESULT in node["metadata"].get("annotations", {}):
                body = {"metadata": {"annotations": {RESULT: None}}}
                self._cluster.api.patch(f"{NODES}/{node['metadata']['name']}", body)

    def _unsettled(self) -> list[str]:
        """What has not settled yet."""
        api = self._cluster.api
        left = [
            f"{node['metadata']['name']} {word}"
            for node in api.get(NODES)["items"]
            for word, is_so in _state(node).items()
            if is_so
        ]
        layout = api.get(f"{LAYOUTS}/{FIXED}")
        ready = condition_of(layout, "Ready")
        if (ready.get("status"), ready.get("observedGeneration")) != (
            "True",
            layout["metadata"]["generation"],
        ):
            left.append(f"MigLayout {FIXED}: {json.dumps(layout.get('status', {}).get('conditions'))}")
        if api.get(pods_path(NAMESPACE), labelSelector=UNTIL)["items"]:
            left.append("pods that come and go are not gone")
        return left

    def _rest_when_idle(self) -> None:
        self._report.checks["nothing is busy when nothing happens"] += 1
        before, asked, looks = self._uses(), _requests(self._cluster), self._looks()
        time.sleep(6.0)
        own = 2 * (self._looks() - looks) + 2 * 6.0  # the looks' own requests, and those for pods to delete
        requests = (_requests(self._cluster) - asked - own) / 6.0
        shares = samples.processor_shares(before, self._uses(), 6.0)
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        self._report.say(self.kind, f"idle: {requests:.1f} requests a second; of a processor {told}")
        for complaint in samples.complaints_about_idle(shares, requests):
            self._report.add(self.kind, complaint)

    def _looks(self) -> int:
        return self._report.checks[PROMISES[0].name]

    # The run

    def run(self, faults: Callable[[World], list[Fault]], minutes: float, least: int) -> None:
        """Break things for so many minutes, then see that everything settles and works."""
        started = time.monotonic()
        with self._world.prepared(), ThreadPoolExecutor(2) as threads:
            work = [threads.submit(self._world.live), threads.submit(self._watch)]
            try:
                Disturbance(self.kind, faults(self._world), self._report, self._world.random).run(
                    minutes, least, self.calm
                )
                self.calm()
                self._use_everything()
            finally:
                self._world.over.set()
            for task in work:
                task.result()
            for log in sorted(self._folder.rglob("*.log")):
                self._report.checks["logs are bounded, without tracebacks"] += 1
                for complaint in samples.complaints_about_log(log, time.monotonic() - started):
                    self._report.add(self.kind, complaint)
            for role, memory in self._memory.items():
                self._report.checks["memory is flat"] += 1
                self._report.say(self.kind, f"memory of the {role}: {samples.memory_span(memory)}")
                for complaint in samples.complaints_about_memory(role, memory):
                    self._report.add(self.kind, complaint)
        self._report.say(
            self.kind,
            f"{self._world.pods} pods made, {self._world.plugins.cuts} cuts, {self._evictions()} evictions for patience",
        )

    def _use_everything(self) -> None:
        """A pod that needs a whole card gets it by the autopilot, also after rejections, and pods that waited have what is free."""
        self._report.checks["after the faults everything can be had"] += 1
        self._world.calm.set()
        whole = make_pod("whole", AUTO, MIG + "7g.141gb")
        whole["metadata"]["annotations"] = {"gpu-webhook.k8s.io/min-memory": "130Gi"}

        def all_bound() -> bool:
            wanted = {"app=web": 4, "app=whole": 1}
            pods = {
                label: self._cluster.api.get(pods_path(NAMESPACE), labelSelector=label)["items"]
                for label in wanted
            }
            return {
                label: sum("nodeName" in pod["spec"] for pod in each) for label, each in pods.items()
            } == wanted

        try:
            self._cluster.api.create(DEPLOYMENTS, make_deployment("whole", whole, 1))
            self._cluster.wait(
                all_bound, timeout=CALM, what="a node for a whole card, and for all who waited"
            )
        except ClusterError as error:
            self._report.add(self.kind, f"after the faults: {error}")

    def _evictions(self) -> int:
        return sum(
            log.read_text().count(" evicted: it waited") for log in self._folder.glob("controller-*.log")
        )


def _has_ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _state(node: Object) -> dict[str, bool]:
    metadata = node["metadata"]
    cordoned = bool(node["spec"].get("unschedulable")) and metadata["name"] != CORDONED_BY_ADMIN
    return {"is cordoned": cordoned, "has a rollout": ROLLOUT in metadata.get("annotations", {})}


def _requests(cluster: Cluster) -> float:
    """How many requests the API server has got, without those for Leases."""
    lines = re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", cluster.metrics(), re.MULTILINE)
    return sum(float(value) for labels, value in lines if 'resource="leases"' not in labels)
