"""`tessera doctor` on a real API server: what it says when it may not look, when little is there, and when it is over."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from e2e import dra
from e2e.cluster import BUSYBOX, Client, pods_path
from e2e.cluster.processes import until
from e2e.command import TESSERA, account_kubeconfig, tessera
from e2e.webhook import Webhook, registered

MIG = "nvidia.com/mig-"


def examined(kubeconfig: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and every check by its name."""
    done = tessera("doctor", f"--kubeconfig={kubeconfig}", "--output=json", *options)
    assert not done.stderr, done.stderr
    return done.returncode, {one["check"]: one for one in json.loads(done.stdout)}


def test_without_permissions_nothing_is_well(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """An account without any right gets exit code 1, and no check that says ok but the version, which all may read."""
    kubeconfig = account_kubeconfig(control_plane, namespace, tmp_path)
    code, checks = examined(kubeconfig)
    assert code == 1
    assert {name for name, one in checks.items() if one["ok"]} == {"version"}
    assert checks["offers"]["state"] == "not seen"
    assert "cannot list resource" in checks["offers"]["findings"][0]["text"]
    assert "cannot create resource" in checks["trial"]["findings"][0]["text"]


def test_nothing_is_installed(control_plane: Client) -> None:
    """Without an installation that is the problem; what would be looked at in one is called neither right nor wrong."""
    code, checks = examined(control_plane.kubeconfig)
    assert code == 3
    assert [
        name
        for name, one in checks.items()
        if one["findings"] and one["findings"][0]["severity"] == "problem"
    ] == ["installed"]
    assert {
        checks[name]["state"]
        for name in ("running", "service", "trust", "trial", "selection", "policy", "configuration")
    } == {"not applicable"}


def test_misspelt_profile_is_mentioned(control_plane: Client, namespace: str) -> None:
    """A pod that waits for a resource that cannot exist is reported, with what was meant."""
    container = {"name": "c", "image": "x", "resources": {"limits": {MIG + "1g18gb": "1"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "typo"},
        "spec": {"containers": [container]},
    }
    control_plane.apply(json.dumps(pod), namespace=namespace)
    code, checks = examined(control_plane.kubeconfig, "--check=offers")
    assert code == 3
    text = checks["offers"]["findings"][0]["text"]
    assert text == f"pod {namespace}/typo waits: no node has {MIG}1g18gb; did you mean {MIG}1g.18gb?"


def test_events_of_what_is_gone_are_no_alarm(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """A ReplicaSet whose pods are rejected is a problem; once it is deleted, its events are history."""
    container = {"name": "c", "image": "x", "resources": {"limits": {MIG + "7g.80gb": "1"}}}
    labels = {"app": "refused"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    replica_set = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "refused"},
        "spec": spec,
    }

    def refused() -> bool:
        return examined(control_plane.kubeconfig, "--check=refused")[0] == 3

    with Webhook(control_plane, tmp_path) as webhook, registered(control_plane, webhook):
        control_plane.apply(json.dumps(replica_set), namespace=namespace)
        until(refused, timeout=120, what="the doctor tells of the ReplicaSet")
        control_plane.kubectl("delete", "replicaset", "refused", "-n", namespace)
        assert examined(control_plane.kubeconfig, "--check=refused")[0] == 0


def test_wait_until_it_works(control_plane: Client, tmp_path: Path) -> None:
    """`--wait` ends with 0 as soon as a pod reaches the webhook, which was not there when it began."""
    command = [
        *TESSERA,
        "doctor",
        f"--kubeconfig={control_plane.kubeconfig}",
        "--check=installed",
        "--check=trial",
    ]
    waiting = subprocess.Popen([*command, "--wait", "--timeout=200s"], stdout=subprocess.PIPE, text=True)
    try:
        with Webhook(control_plane, tmp_path) as webhook:
            assert waiting.poll() is None
            with registered(control_plane, webhook):
                said, _ = waiting.communicate(timeout=210)
    finally:
        waiting.kill()
        waiting.wait()
    assert waiting.returncode == 0, said
    assert "ok       A GPU pod reaches it and is changed" in said


def test_which_of_two_classes_wins_and_pools_that_are_stale(control_plane: Client, namespace: str) -> None:
    """Two classes have one extendedResourceName: the doctor names the one whose device the scheduler gives out. A pool
    whose slices are not all there, and one of a node that is gone, are problems.
    """
    cluster, resource, node = control_plane, "doctor.example.com/gpu", "doctor-dra"
    drivers = ("older.example.com", "younger.example.com")
    uid = cluster.add_node(node)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    checks = ("--check=classes", "--check=pools", "--check=counters", "--check=score")
    try:
        for driver in drivers:
            _offer(cluster, driver, node, owner=[owner])
            selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
            spec: dict[str, Any] = {"selectors": [selector], "extendedResourceName": resource}
            made = cluster.api.create(dra.CLASSES, {"metadata": {"name": driver}, "spec": spec})["metadata"]
            while time.strftime("%FT%TZ", time.gmtime()) <= made["creationTimestamp"]:
                time.sleep(0.1)  # the API server counts ages in whole seconds
        code, found = examined(cluster.kubeconfig, *checks)
        assert (code, found["pools"]["ok"]) == (0, True)
        [conflict] = found["classes"]["findings"]
        assert conflict["text"].startswith(
            f"DeviceClass {drivers[1]} wins over {drivers[0]} for pods that ask for {resource}"
        )
        assert (found["counters"]["state"], found["score"]["state"]) == ("not applicable", "not applicable")

        container = {"name": "c", "image": BUSYBOX, "resources": {"limits": {resource: "1"}}}
        spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}}
        cluster.api.create(pods_path(namespace), {"metadata": {"name": "asks"}, "spec": spec})
        cluster.wait_for_pod_bound("asks", namespace=namespace)
        [claim] = cluster.api.get(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]
        assert claim["status"]["allocation"]["devices"]["results"][0]["driver"] == drivers[1]

        _offer(cluster, "half.example.com", node, count=2, owner=[owner])
        _offer(cluster, "lost.example.com", "doctor-gone")
        code, found = examined(cluster.kubeconfig, *checks)
        assert code == 3
        assert [one["text"].partition(":")[0] for one in found["pools"]["findings"]] == [
            f"pool {node}/half.example.com of half.example.com",
            "node doctor-gone is gone, and ResourceSlices of lost.example.com still offer its devices",
        ]
        cluster.kubectl(*found["pools"]["findings"][1]["commands"][0].split()[1:])  # what it says to type
        [left] = examined(cluster.kubeconfig, "--check=pools")[1]["pools"]["findings"]
        assert "half.example.com" in left["text"]
    finally:
        cluster.remove_node(node)
        for driver in (*drivers, "half.example.com", "lost.example.com"):
            cluster.api.delete(f"{dra.CLASSES}/{driver}")
            cluster.api.delete(f"{dra.SLICES}/{driver}")


def _offer(cluster: Client, driver: str, node: str, *, count: int = 1, owner: Any = ()) -> None:
    """One slice of so many, with one device."""
    pool = {"name": f"{node}/{driver}", "generation": 1, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "one"}]}
    metadata = {"name": driver, "ownerReferences": list(owner)}
    cluster.api.create(dra.SLICES, {"metadata": metadata, "spec": spec})
