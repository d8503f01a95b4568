"""The DRA driver on a real kubelet, its devices in real containers."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e import dra
from e2e.cluster import ClusterError, ClusterWithNode, pods_path, schedulable
from e2e.cluster.api import Object
from e2e.command import tessera
from e2e.crashing_driver import STEPS

LAYOUT = 'layout: "2g.20gb=1,1g.10gb=2"'


def _time(line: str) -> float:
    """Seconds of the day at which a line was logged."""
    hours, minutes, seconds = line.split(maxsplit=1)[0].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def test_the_first_alternative_that_is_free(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """One 2g, two 1g, four pods "2g, else 1g": 2g, 1g, 1g, Pending; the first goes, and the fourth gets the 2g."""
    cluster, namespace = cluster_with_node, node_namespace
    config = dra.simulated(tmp_path, LAYOUT)
    with dra.driver(cluster, namespace, tmp_path, config):
        dra.template(cluster, namespace, "large-else-small", "2g.20gb", "1g.10gb")
        dra.run(cluster, namespace, [dra.pod(f"p{n}", template="large-else-small") for n in range(3)])
        assert [dra.seen(cluster, namespace, f"p{n}") for n in range(3)] == [
            ["2g.20gb"],
            ["1g.10gb"],
            ["1g.10gb"],
        ]
        uuids = [
            cluster.kubectl(
                "exec", f"p{n}", "-n", namespace, "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"
            ).strip()
            for n in range(3)
        ]
        assert len({*uuids}) == 3
        known = {one["attributes"]["uuid"]["string"] for one in dra.devices(cluster).values()}
        assert {*uuids} == known, "each container has a device of its own, and the slices name it"

        cluster.apply(dra.pod("p3", template="large-else-small"), namespace=namespace)
        assert "cannot allocate all claims" in cluster.wait_for_pod_unschedulable("p3", namespace=namespace)
        cluster.kubectl("delete", "pod", "p0", "-n", namespace)
        cluster.wait_for_pod_phase("p3", "Running", namespace=namespace)
        assert dra.seen(cluster, namespace, "p3") == ["2g.20gb"]


def test_kubelet_restarts(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """Slices are back within 3 s, pods untouched, a restarted container has its device, a second pod joins a claim."""
    cluster, namespace = cluster_with_node, node_namespace
    with dra.driver(cluster, namespace, tmp_path, dra.simulated(tmp_path, LAYOUT)):
        request = {"name": "gpu", "exactly": {"deviceClassName": dra.profile_class(cluster, "2g.20gb")}}
        claim = {"metadata": {"name": "shared"}, "spec": {"devices": {"requests": [request]}}}
        cluster.api.create(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims", claim)
        mortal = "trap 'exit 3' TERM; while :; do sleep 0.2; done"
        dra.run(cluster, namespace, [dra.pod("first", claim="shared", script=mortal, restart="Always")])
        in_pod = ("exec", "first", "-n", namespace, "--")
        listed = cluster.kubectl(*in_pod, "nvidia-smi", "-L")
        names = {one["metadata"]["uid"] for one in dra.slices(cluster)}

        cluster.stop_kubelet()
        cluster.start_kubelet()
        gone = cluster.wait(
            lambda: (
                time.monotonic()
                if not names & {one["metadata"]["uid"] for one in dra.slices(cluster)}
                else None
            ),
            what="the kubelet has removed the slices",
        )
        cluster.wait(lambda: len(dra.slices(cluster)) == len(names) or None, what="the slices are back")
        assert time.monotonic() - gone < 3.0
        status = cluster.wait_for_pod_phase("first", "Running", namespace=namespace)["status"]
        assert status["containerStatuses"][0]["restartCount"] == 0

        cluster.wait(
            lambda: cluster.try_kubectl(*in_pod, "kill", "1").returncode == 0 or None,
            what="the kubelet serves again",
        )
        cluster.wait_for(
            pods_path(namespace),
            "first",
            lambda item: (
                item["status"]["containerStatuses"][0]["restartCount"] == 1
                and bool(item["status"]["containerStatuses"][0]["state"].get("running"))
            ),
        )
        assert cluster.kubectl(*in_pod, "nvidia-smi", "-L") == listed
        dra.run(cluster, namespace, [dra.pod("second", claim="shared")])
        assert cluster.kubectl("exec", "second", "-n", namespace, "--", "nvidia-smi", "-L") == listed


def test_forced_deletion_never_gives_a_device_twice(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A pod is deleted by force, its container lives on: the next claim waits, and runs within a second after its end."""
    cluster, namespace = cluster_with_node, node_namespace
    config = dra.simulated(tmp_path, LAYOUT)
    with dra.driver(cluster, namespace, tmp_path, config) as running:
        dra.template(cluster, namespace, "large", "2g.20gb")
        stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
        manifest = json.loads(dra.pod("old", template="large", script=stubborn, grace=12))
        dra.run(cluster, namespace, [json.dumps(manifest)])
        # the API forgets the pod at once; the kubelet gives the container its grace
        cluster.kubectl("delete", "pod", "old", "-n", namespace, "--grace-period=0", "--force")
        cluster.apply(dra.pod("new", template="large"), namespace=namespace)
        running.wait_for_log("is still in use by claim")
        containers = ("sh", "-c", "grep -l 'echo up' /proc/[0-9]*/cmdline 2>/dev/null | wc -l")
        alive = int(cluster.run_on_node(*containers))
        status = cluster.api.get(f"{pods_path(namespace)}/new")["status"]
        assert alive > 1, "the old container runs"  # the search finds itself, too
        assert status["phase"] == "Pending"
        cluster.wait_for_pod_phase("new", "Running", namespace=namespace)
        lines = running.log.read_text().splitlines()
        [ended] = [_time(line) for line in lines if "old-gpu" in line and "ended: gpu-0" in line]
        [prepared] = [_time(line) for line in lines if "new-gpu" in line and "prepared: gpu-0" in line]
        assert 0 <= prepared - ended < 1.0, "after its end, and within a second"


def test_extended_resources(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """Pods that ask for nvidia.com/mig-2g.20gb as ever run on a node that has DRA alone."""
    cluster, namespace = cluster_with_node, node_namespace
    resource = "nvidia.com/mig-2g.20gb"
    name = dra.profile_class(cluster, "2g.20gb")
    if cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["capacity"].get(resource, "0") != "0":
        cluster.restart_kubelet()  # it remembers a device plugin of an earlier test
    cluster.api.patch(f"{dra.CLASSES}/{name}", {"spec": {"extendedResourceName": resource}})
    try:
        with dra.driver(cluster, namespace, tmp_path, dra.simulated(tmp_path, 'layout: "2g.20gb=2"')):
            dra.run(cluster, namespace, [dra.pod(f"p{n}", limits={resource: 1}) for n in range(2)])
            assert [dra.seen(cluster, namespace, f"p{n}") for n in range(2)] == [["2g.20gb"]] * 2
            cluster.apply(dra.pod("third", limits={resource: 1}), namespace=namespace)
            cluster.wait_for_pod_unschedulable("third", namespace=namespace)
    finally:
        cluster.api.patch(f"{dra.CLASSES}/{name}", {"spec": {"extendedResourceName": None}})


def test_an_ill_device(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """Tainted within 2 s, and the pod's status says why; well again, the taint is gone and the status says so."""
    cluster, namespace = cluster_with_node, node_namespace
    with dra.driver(cluster, namespace, tmp_path, dra.simulated(tmp_path, LAYOUT)):
        dra.template(cluster, namespace, "large", "2g.20gb")
        dra.run(cluster, namespace, [dra.pod("holder", template="large")])

        def health(pod: Object) -> tuple[str, str]:
            statuses = pod["status"]["containerStatuses"][0].get("allocatedResourcesStatus") or []
            found = [one for status in statuses for one in status["resources"]]
            return (found[0]["health"], found[0].get("message", "")) if found else ("", "")

        def tainted() -> bool:
            return all("taints" in device for device in dra.devices(cluster).values())

        (tmp_path / "faults").write_text("card 0: XID 79, fell off the bus\n")
        began = time.monotonic()
        cluster.wait(tainted, what="the devices are tainted")
        assert time.monotonic() - began < 2.0
        pod = cluster.wait_for_pod("holder", lambda pod: health(pod)[0] == "Unhealthy", namespace=namespace)
        assert "XID 79" in health(pod)[1]
        cluster.apply(dra.pod("next", template="large"), namespace=namespace)
        cluster.wait_for_pod_unschedulable("next", namespace=namespace)

        (tmp_path / "faults").unlink()
        cluster.wait(lambda: not tainted() or None, what="the taints are gone")
        cluster.wait_for_pod("holder", lambda pod: health(pod)[0] == "Healthy", namespace=namespace)


def test_an_update_disturbs_no_pod(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """Ten pods come and go while one process of the driver takes over from another: none fails, none waits for a retry."""
    cluster, namespace = cluster_with_node, node_namespace
    config = dra.simulated(tmp_path, 'layout: "1g.10gb=7"')
    with dra.driver(cluster, namespace, tmp_path, config) as old:
        dra.template(cluster, namespace, "small", "1g.10gb")
        dra.run(cluster, namespace, [dra.pod(f"before-{n}", template="small") for n in range(3)])
        with dra.start(cluster, tmp_path, config, name="newer") as new:
            for n in range(4):
                cluster.apply(dra.pod(f"during-{n}", template="small"), namespace=namespace)
            cluster.kubectl("delete", "pod", "before-0", "-n", namespace, "--wait=false")
            new.wait_for_log("registered with the kubelet")
            old.stop()
            for n in range(3):
                cluster.kubectl("delete", "pod", f"during-{n}", "-n", namespace)
                cluster.apply(dra.pod(f"after-{n}", template="small"), namespace=namespace)
            names = ["before-1", "before-2", "during-3", "after-0", "after-1", "after-2"]
            for name in names:
                cluster.wait_for_pod_phase(name, "Running", namespace=namespace, timeout=120)
            listed = cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
            failed = [event["message"] for event in listed if event["reason"].startswith("FailedPrepare")]
            assert failed == []
            assert len(dra.slices(cluster)) == 1
            dra.remove_pods(cluster, namespace)


def test_driver_gone_for_a_while(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """After 30 s the kubelet removes the slices, running pods are untouched, `why` and the doctor name the driver; it is back: everything runs."""
    cluster, namespace = cluster_with_node, node_namespace
    config = dra.simulated(tmp_path, LAYOUT)
    dra.template(cluster, namespace, "any", "2g.20gb", "1g.10gb")
    with dra.start(cluster, tmp_path, config) as first:
        first.wait_for_log("registered with the kubelet")
        dra.run(cluster, namespace, [dra.pod("holder", template="any")])
        first.process.kill()
        cluster.wait(lambda: not dra.slices(cluster) or None, what="the kubelet has removed the slices")
    cluster.apply(dra.pod("waiting", template="any"), namespace=namespace)
    cluster.wait_for_pod_unschedulable("waiting", namespace=namespace)
    gone = f"the DRA driver of node {cluster.node_name} is unavailable: no pod of it runs there, and claims hold its devices"
    kubeconfig = f"--kubeconfig={cluster.kubeconfig}"
    why = tessera("why", "waiting", "-n", namespace, kubeconfig)
    assert why.stdout.partition("\n")[0].endswith(f"; {gone}"), why
    checked = tessera("doctor", "--check=driver", kubeconfig)
    assert (checked.returncode, gone in checked.stdout) == (3, True), checked
    with dra.driver(cluster, namespace, tmp_path, config):
        cluster.wait_for_pod_phase("waiting", "Running", namespace=namespace)
        assert dra.seen(cluster, namespace, "holder") == ["2g.20gb"]
        assert dra.seen(cluster, namespace, "waiting") == ["1g.10gb"]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path, step: str
) -> None:
    """The driver ends as by SIGKILL: the next process goes on from there, no device is lost, no file stays."""
    cluster, namespace = cluster_with_node, node_namespace
    config = dra.simulated(tmp_path, LAYOUT)
    dra.template(cluster, namespace, "large", "2g.20gb")
    with dra.start(cluster, tmp_path, config, name="crashing", crash_at=step) as crashing:
        crashing.wait_for_log("registered with the kubelet")
        cluster.apply(dra.pod("first", template="large"), namespace=namespace)
        if step.startswith("unprepare"):
            cluster.wait_for_pod_phase("first", "Running", namespace=namespace)
            cluster.kubectl("delete", "pod", "first", "-n", namespace, "--wait=false")
        assert crashing.process.wait(60) == -signal.SIGKILL
    with dra.driver(cluster, namespace, tmp_path, config):
        if step.startswith("prepare"):
            cluster.wait_for_pod_phase("first", "Running", namespace=namespace)
            assert dra.seen(cluster, namespace, "first") == ["2g.20gb"]
            cluster.kubectl("delete", "pod", "first", "-n", namespace)
        cluster.wait_gone(pods_path(namespace), "first")
        dra.run(cluster, namespace, [dra.pod("second", template="large")])
        assert dra.seen(cluster, namespace, "second") == ["2g.20gb"]


def test_slices_are_cut_on_demand(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """One empty card: 2g ×3, 1g, then 3g waits; two neighbouring 2g go, and the 3g runs where they were."""
    cluster, namespace = cluster_with_node, node_namespace
    config = dra.simulated(tmp_path, "partitioning: dynamic")
    with dra.driver(cluster, namespace, tmp_path, config):
        for name, profile in (("one", "1g.10gb"), ("two", "2g.20gb"), ("three", "3g.30gb")):
            dra.template(cluster, namespace, name, profile)
        dra.run(cluster, namespace, [dra.pod(f"two-{n}", template="two") for n in range(3)])
        dra.run(cluster, namespace, [dra.pod("one", template="one")])
        cluster.apply(dra.pod("three", template="three"), namespace=namespace)
        cluster.wait_for_pod_unschedulable("three", namespace=namespace)
        assert [dra.seen(cluster, namespace, f"two-{n}") for n in range(3)] == [["2g.20gb"]] * 3

        placed = sorted((dra.position(cluster, namespace, f"two-{n}"), f"two-{n}") for n in range(3))
        (low, first), (next_, second) = placed[:2]
        assert next_ == low + 2, "neighbours"
        for name in (first, second):
            cluster.kubectl("delete", "pod", name, "-n", namespace)
        cluster.wait_for_pod_phase("three", "Running", namespace=namespace)
        assert dra.seen(cluster, namespace, "three") == ["3g.30gb"]
        assert low <= dra.position(cluster, namespace, "three") <= low + 1


@pytest.mark.timeout(1800, func_only=True)
def test_killed_at_random(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """Killed many times while pods come and go: no device is lost, none is given twice, no file is left over."""
    cluster, namespace = cluster_with_node, node_namespace
    kills = int(os.environ.get("TESSERA_E2E_KILLS", "20"))
    config, locks = dra.simulated(tmp_path, LAYOUT), tmp_path / "locks"
    locks.mkdir()
    dra.template(cluster, namespace, "any", "2g.20gb", "1g.10gb")
    # each container writes its name into its device's file and reads it back: two that live at once see each other
    script = """
        owner=/locks/$NVIDIA_VISIBLE_DEVICES
        while :; do
            echo $HOSTNAME >$owner
            sleep 0.1
            read -r found <$owner
            test "$found" = "$HOSTNAME" || touch /locks/twice-$NVIDIA_VISIBLE_DEVICES
        done
    """

    def manifest(name: str, *, template: str = "", claim: str = "") -> Object:
        pod: Object = json.loads(dra.pod(name, script=script, template=template, claim=claim))
        pod["spec"]["volumes"] = [{"name": "locks", "hostPath": {"path": str(locks)}}]
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "locks", "mountPath": "/locks"}]
        return pod

    over, ran = threading.Event(), set[str]()

    def churn(number: int) -> None:
        count = 0
        while not over.is_set():
            name, count = f"p{number}-{count}", count + 1
            cluster.api.create(pods_path(namespace), manifest(name, template="any"))
            until = time.monotonic() + random.uniform(0.5, 20.0)
            while time.monotonic() < until and not over.is_set():
                if cluster.api.get(f"{pods_path(namespace)}/{name}")["status"].get("phase") == "Running":
                    ran.add(name)
                    break
                over.wait(0.2)
            over.wait(random.uniform(0.0, 1.0))
            force = {"gracePeriodSeconds": "0"} if random.random() < 0.5 else {}
            cluster.api.delete(f"{pods_path(namespace)}/{name}", **force)

    with ThreadPoolExecutor(4) as threads:
        churning = [threads.submit(churn, number) for number in range(4)]
        try:
            for number in itertools.count():
                if number >= kills and len(ran) > max(5, kills / 20):  # and pods did run meanwhile
                    break
                with dra.start(
                    cluster, tmp_path, config, name=f"crashing-{number}", crash_at="random"
                ) as crashing:
                    if random.random() < 0.8:  # else it may be killed before it is at work
                        with contextlib.suppress(ClusterError):  # it has ended itself
                            crashing.wait_for_log("registered with the kubelet")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        crashing.process.wait(random.uniform(0.0, 4.0))
                    crashing.process.kill()
        finally:
            over.set()
    for one in churning:
        one.result()  # what went wrong in a thread is this test's failure
    with dra.driver(cluster, namespace, tmp_path, config):
        dra.remove_pods(cluster, namespace)
        assert dra.left_over(cluster, tmp_path) == []
        assert [path.name for path in locks.glob("twice-*")] == []
        dra.run(cluster, namespace, [dra.pod(f"p{n}", template="any") for n in range(3)])
        assert sorted(dra.seen(cluster, namespace, f"p{n}")[0] for n in range(3)) == [
            "1g.10gb",
            "1g.10gb",
            "2g.20gb",
        ]
        dra.remove_pods(cluster, namespace)
        # and the containers would have noticed: two that share a claim do
        request = {"name": "gpu", "exactly": {"deviceClassName": dra.profile_class(cluster, "2g.20gb")}}
        claim = {"metadata": {"name": "shared"}, "spec": {"devices": {"requests": [request]}}}
        cluster.api.create(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims", claim)
        dra.run(cluster, namespace, [json.dumps(manifest(name, claim="shared")) for name in ("a", "b")])
        cluster.wait(lambda: list(locks.glob("twice-*")) or None, what="two containers see each other")


def test_node_object_deleted(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """The slices go with their node, and come back with it."""
    cluster = cluster_with_node
    with dra.driver(cluster, node_namespace, tmp_path, dra.simulated(tmp_path, LAYOUT)):
        cluster.remove_node(cluster.node_name)
        cluster.wait(lambda: not dra.slices(cluster) or None, what="the slices are gone")
        cluster.restart_kubelet()  # a kubelet makes its node when it starts
        cluster.wait_for_node(cluster.node_name, schedulable)
        cluster.wait(lambda: dra.slices(cluster) or None, what="the slices are back")
