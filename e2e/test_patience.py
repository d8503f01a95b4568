"""Patience on a real control plane: who waits moves when something else comes free, and nobody else is touched."""

import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.bridge import NAMESPACE, rights
from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.command import Running
from e2e.webhook import Webhook, registered

ONE, TWO = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
MARK = "gpu-webhook.k8s.io/decided-when"
IGNORE = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}
COUNTED = {
    "rules": [{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}, *IGNORE["rules"]]
}
INDEXED = {"completionMode": "Indexed", "completions": 1, "parallelism": 1}
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


def template(asks: str = TWO, **spec: Any) -> Object:
    container = {"name": "c", "image": "x", "resources": {"limits": {asks: 1}}}
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container], **spec}}


def job(name: str, **spec: Any) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"backoffLimit": 6, **spec, "template": template(restartPolicy="Never")},
    }


def workload(name: str, replicas: int, **spec: Any) -> Object:
    made = template()
    made["metadata"]["labels"] = {"app": name}
    selector = {"matchLabels": {"app": name}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": made, **spec},
    }


def pods(cluster: Client, namespace: str) -> dict[str, Object]:
    """The pods of a namespace that are not being deleted, by uid."""
    found = cluster.api.get(pods_path(namespace))["items"]
    return {one["metadata"]["uid"]: one for one in found if "deletionTimestamp" not in one["metadata"]}


def asks(pod: Object) -> str:
    return str(next(iter(pod["spec"]["containers"][0]["resources"]["limits"])))


def owner(pod: Object) -> str:
    return next((one["kind"] for one in pod["metadata"].get("ownerReferences") or ()), "")


def waits(pod: Object) -> bool:
    return any(one.get("reason") == "Unschedulable" for one in pod["status"].get("conditions") or ())


def test_what_an_eviction_costs_a_job(control_plane: Client, namespace: str) -> None:
    """A pod that never started counts as failed, unless the Job's first rule that matches it ignores DisruptionTarget: indexes change nothing."""
    cluster, jobs = control_plane, f"/apis/batch/v1/namespaces/{namespace}/jobs"
    specs: dict[str, tuple[Object, bool]] = {
        "plain": ({}, True),
        "replaced-when-failed": ({"podReplacementPolicy": "Failed"}, True),
        "replaced-when-terminating": ({"podReplacementPolicy": "TerminatingOrFailed"}, True),
        "ignores": ({"podFailurePolicy": IGNORE}, False),
        "counts-first": ({"podFailurePolicy": COUNTED}, True),
        "indexed": (INDEXED, True),
        "per-index": ({**INDEXED, "backoffLimitPerIndex": 2}, True),
        "indexed-ignores": ({**INDEXED, "podFailurePolicy": IGNORE}, False),
        "per-index-ignores": ({**INDEXED, "backoffLimitPerIndex": 2, "podFailurePolicy": IGNORE}, False),
    }
    for name, (spec, _) in specs.items():
        cluster.api.create(jobs, job(name, **spec))

    def waiting() -> dict[str, Object] | None:
        found = {uid: one for uid, one in pods(cluster, namespace).items() if waits(one)}
        return found if len(found) == len(specs) else None

    before = cluster.wait(waiting, what="a pod of each Job that waits")
    for pod in before.values():
        metadata = pod["metadata"]
        preconditions = {name: metadata[name] for name in ("uid", "resourceVersion")}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata["name"]},
            "deleteOptions": {"preconditions": preconditions},
        }
        cluster.api.create(f"{pods_path(namespace)}/{metadata['name']}/eviction", body)
    cluster.wait(
        lambda: len(pods(cluster, namespace).keys() - before.keys()) == len(specs), what="all successors"
    )

    def failed() -> dict[str, int]:
        return {
            one["metadata"]["name"]: one["status"].get("failed", 0) for one in cluster.api.get(jobs)["items"]
        }

    expected = {name: int(costs) for name, (_, costs) in specs.items()}
    cluster.wait(lambda: failed() == expected, what=f"{expected}")


@pytest.fixture(scope="module")
def world(control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The webhook under `full` with patience, its Service's endpoints, and the controller's rights as the chart gives them."""
    folder = tmp_path_factory.mktemp("patience")
    config = {"fallback": {"when": "full", "patience": "3s"}}
    labels = {"kubernetes.io/service-name": "gpu-webhook"}
    endpoints = [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}]
    slices = {"metadata": {"name": "e2e", "labels": labels}, "addressType": "IPv4", "endpoints": endpoints}
    with (
        rights(control_plane, folder, config=config),
        Webhook(control_plane, folder / "webhook", config=json.dumps(config)) as webhook,
        registered(control_plane, webhook, failurePolicy="Fail"),
    ):
        control_plane.api.create(SLICES, slices)
        try:
            yield folder
        finally:
            control_plane.api.delete(f"{SLICES}/e2e")


def start(folder: Path, name: str, **pace: float) -> Running:
    """`tessera controller`, quicker than users may have it."""
    quick = {"least": 1.0, "poll": 0.2, "fresh": 0.5, "successor": 30.0, **pace}
    return Running(
        "controller",
        f"--kubeconfig={folder / 'kubeconfig-of-the-controller'}",
        f"--tessera-namespace={NAMESPACE}",
        f"--config={folder / 'webhook' / 'config.yaml'}",
        "--log-format=text",
        f"--pace={json.dumps(quick)}",
        log=folder / f"{name}.log",
        module="e2e.quick_controller",
    )


def evictions(*controllers: Running) -> list[str]:
    """The pods that these evicted, as their logs say."""
    lines = [line for one in controllers for line in one.log.read_text().splitlines()]
    return [
        line.partition(" evicted: it waited")[0].rpartition(" ")[2]
        for line in lines
        if " evicted: it waited" in line
    ]


@contextlib.contextmanager
def full_node(
    cluster: Client, namespace: str, name: str, ones: int, twos: int
) -> Iterator[Callable[[], None]]:
    """A node whose slices are all taken; what comes out frees the small ones."""
    cluster.add_node(name, allocatable={ONE: ones, TWO: twos, "pods": 1000})
    resources = [ONE] * ones + [TWO] * twos
    holds = [f"holds-{number}" for number in range(len(resources))]
    for one, resource in zip(holds, resources, strict=True):
        cluster.api.create(
            pods_path(namespace), {"metadata": {"name": one}, "spec": template(resource)["spec"]}
        )

    def free() -> None:
        for one in holds[:ones]:
            cluster.api.delete(f"{pods_path(namespace)}/{one}", gracePeriodSeconds="0")

    try:
        for one in holds:
            cluster.wait_for_pod_bound(one, namespace=namespace)
        yield free
    finally:
        cluster.remove_node(name)


def test_who_waited_moves_and_nobody_else_is_touched(
    control_plane: Client, namespace: str, world: Path
) -> None:
    """A Deployment of ten, a StatefulSet and two Jobs wait on a full node; slices come free, more than are needed. One leader is stopped, the next one killed.

    Who is left alone: a Job that would pay, a bare pod, a pod of a gang, and one for which an autoscaler brings a node.
    """
    cluster = control_plane
    with full_node(cluster, namespace, "patience", ones=17, twos=3) as free, contextlib.ExitStack() as stack:
        held = pods(cluster, namespace).keys()
        cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", workload("web", 10))
        sets = workload("set", 2, podManagementPolicy="Parallel", serviceName="set")
        cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/statefulsets", sets)
        jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        for made in (job("pays"), job("ignores", podFailurePolicy=IGNORE)):
            cluster.api.create(jobs, made)
        cluster.api.create(pods_path(namespace), {"metadata": {"name": "bare"}, "spec": template()["spec"]})

        for name, labels in (("gang", {"jobset.sigs.k8s.io/jobset-name": "gang"}), ("scaling", {})):
            made = workload(name, 1)
            made["spec"]["template"]["metadata"]["labels"].update(labels)
            cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", made)

        def waiting() -> dict[str, Object] | None:
            found = {uid: one for uid, one in pods(cluster, namespace).items() if waits(one)}
            return found if len(found) == 17 else None

        before = cluster.wait(waiting, what="seventeen pods that wait")
        for one in before.values():
            if one["metadata"]["name"].startswith("scaling"):
                _scale_up(cluster, one)
        assert {asks(one) for one in before.values()} == {TWO}
        quick = {"evictions": 100}
        first = stack.enter_context(start(world, "first", **quick))
        first.wait_for_log("leading as")
        second = stack.enter_context(start(world, "second", **quick))
        time.sleep(4.0)  # everybody's patience is over, and nothing is free
        assert evictions(first, second) == []
        free()
        first.until(lambda: len(evictions(first)) >= 3, what="the first three evictions")

        # two leaders: the first one is asleep for so long that the other takes over, and wakes in the middle of its work
        first.process.send_signal(signal.SIGSTOP)
        stack.callback(first.process.send_signal, signal.SIGCONT)
        slept_at = len(evictions(first))
        second.until(lambda: len(evictions(second)) >= 3, what="three evictions by the other", timeout=60)
        first.process.send_signal(signal.SIGCONT)
        first.wait_for_log("not leading any more")
        second.kill()  # and who leads is killed
        # one call may have been under way when it fell asleep: it evicts a pod as it was seen, or nothing
        assert len(evictions(first)) <= slept_at + 1

        def moved() -> dict[str, Object] | None:
            now = pods(cluster, namespace)
            found = {uid: one for uid, one in now.items() if asks(one) == ONE and one["spec"].get("nodeName")}
            return found if len(found) == 13 else None

        found = cluster.wait(moved, what="thirteen pods with what came free", timeout=90)
        assert Counter(map(owner, found.values())) == {"ReplicaSet": 10, "StatefulSet": 2, "Job": 1}
        assert all(MARK in one["metadata"]["annotations"] for one in found.values())

        time.sleep(2.0)  # ten plans, with four slices free
        after = pods(cluster, namespace)
        assert len(after) == len(held) - 17 + 17
        stayed = [one["metadata"]["name"] for uid, one in after.items() if uid in before]
        assert sorted(name.partition("-")[0] for name in stayed) == ["bare", "gang", "pays", "scaling"]
        counted = {
            one["metadata"]["name"]: one["status"].get("failed", 0) for one in cluster.api.get(jobs)["items"]
        }
        assert counted == {"pays": 0, "ignores": 0}, "no Job paid"
        # a process may be killed between an eviction and its line in the log
        assert len(evictions(first, second)) in (12, 13)
        assert len(set(evictions(first, second))) == len(evictions(first, second)), "nobody twice"
        events = cluster.api.get(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=GPUPatience")
        told = Counter(one["involvedObject"]["name"] for one in events["items"])
        assert told["bare"] >= 1


def _scale_up(cluster: Client, pod: Object) -> None:
    """What the cluster-autoscaler says on a pod for which it brings a node."""
    metadata = pod["metadata"]
    about = {name: metadata[name] for name in ("name", "namespace", "uid")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    event = {
        "metadata": {"generateName": "scale-up-"},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", **about},
        "reason": "TriggeredScaleUp",
        "message": "pod triggered scale-up",
        "lastTimestamp": now,
        "firstTimestamp": now,
        "type": "Normal",
    }
    cluster.api.create(f"/api/v1/namespaces/{metadata['namespace']}/events", event)


def test_a_flood_of_waiting_pods(control_plane: Client, world: Path) -> None:
    """Five hundred pods wait, nearly all in one namespace: ten are evicted in a minute, and the other namespace has its turn."""
    cluster = control_plane
    with contextlib.ExitStack() as stack:
        many, few = (stack.enter_context(cluster.namespace()) for _ in range(2))
        free = stack.enter_context(full_node(cluster, many, "flood", ones=20, twos=1))
        for namespace, number, replicas in ((many, 49, 10), (few, 10, 1)):
            path = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
            stack.callback(
                cluster.api.delete, path, propagationPolicy="Background"
            )  # before their pods, or they make them again
            for each in range(number):
                cluster.api.create(path, workload(f"w{each}", replicas))

        def waiting(namespace: str) -> int:
            return sum(map(waits, pods(cluster, namespace).values()))

        cluster.wait(lambda: waiting(few) == 10 and waiting(many) == 490, what="500 pods that wait")
        with start(world, "flood") as controller:
            controller.wait_for_log("leading as")
            free()
            controller.until(lambda: len(evictions(controller)) == 10, what="ten evictions")
            began = time.monotonic()
            used = _cpu_seconds(controller.process.pid)
            time.sleep(5.0)  # of the minute in which there is no more
            busy = (_cpu_seconds(controller.process.pid) - used) / (time.monotonic() - began)
            done = evictions(controller)
            assert Counter(one.partition("/")[0] for one in done) == {many: 5, few: 5}
            assert busy < 0.5, f"{busy:.0%} of a processor"
            print(
                f"{busy:.1%} of a processor with 500 pods beyond their patience, a plan five times a second"
            )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
