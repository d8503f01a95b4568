"""The DRA driver on a real kubelet, its devices in real containers."""

import json
import time
from pathlib import Path

from e2e import dra
from e2e.cluster import ClusterWithNode, pods_path

LAYOUT = 'layout: "2g.20gb=1,1g.10gb=2"'


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
        log = running.log.read_text()
        ended, prepared = (
            next(line for line in log.splitlines() if text in line) for text in ("ended: gpu-0", "new-gpu")
        )
        assert log.index(ended) < log.rindex("prepared: gpu-0")
        assert prepared


def test_extended_resources(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """Pods that ask for nvidia.com/mig-2g.20gb as ever run on a node that has DRA alone."""
    cluster, namespace = cluster_with_node, node_namespace
    resource = "nvidia.com/mig-2g.20gb"
    name = dra.profile_class(cluster, "2g.20gb")
    cluster.api.patch(f"{dra.CLASSES}/{name}", {"spec": {"extendedResourceName": resource}})
    try:
        with dra.driver(cluster, namespace, tmp_path, dra.simulated(tmp_path, 'layout: "2g.20gb=2"')):
            dra.run(cluster, namespace, [dra.pod(f"p{n}", limits={resource: 1}) for n in range(2)])
            assert [dra.seen(cluster, namespace, f"p{n}") for n in range(2)] == [["2g.20gb"]] * 2
            cluster.apply(dra.pod("third", limits={resource: 1}), namespace=namespace)
            cluster.wait_for_pod_unschedulable("third", namespace=namespace)
    finally:
        cluster.api.patch(f"{dra.CLASSES}/{name}", {"spec": {"extendedResourceName": None}})
