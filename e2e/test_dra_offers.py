"""Pods through the webhook on a node whose devices DRA serves: nothing of them is in the node's allocatable."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import dra
from e2e.cluster import ApiError, ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.command import tessera
from e2e.test_dra_neighbour import OTHER, example_driver
from e2e.webhook import Webhook, registered

MIG = "nvidia.com/mig-"
RECORD = "gpu-webhook.k8s.io/fallback"


@contextmanager
def extended(cluster: ClusterWithNode, name: str, expression: str, resource: str) -> Iterator[None]:
    """A class that serves an extended resource, which goes at the end."""
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": resource}
    cluster.api.create(dra.CLASSES, {"metadata": {"name": name}, "spec": spec})
    try:
        yield
    finally:
        cluster.api.delete(f"{dra.CLASSES}/{name}")


@contextmanager
def plugin_node(cluster: ClusterWithNode, **has: int) -> Iterator[None]:
    """A node that no pod can run on, whose allocatable the webhook would fall back to."""
    cluster.add_node("plugin", allocatable={MIG + name: count for name, count in has.items()})
    try:
        yield
    finally:
        cluster.remove_node("plugin")


def asks(name: str, profile: str) -> str:
    return dra.pod(name, limits={MIG + profile: 1})


def admitted(cluster: ClusterWithNode, namespace: str, manifest: str) -> Object | None:
    """The pod as the API server would store it now; None while it is rejected."""
    try:
        found: Object = cluster.api.create(pods_path(namespace), json.loads(manifest), dryRun="All")
    except ApiError:
        return None
    return found


def profile_of(pod: Object) -> str:
    (resource,) = pod["spec"]["containers"][0]["resources"]["limits"]
    return str(resource).removeprefix(MIG)


def test_another_drivers_devices(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """With a class of ours over dra-example-driver's devices, a pod goes through the webhook unchanged and runs."""
    cluster, namespace = cluster_with_node, node_namespace
    cluster.forget_devices()  # a product's label among them, which capacity would show
    asked = asks("train", "4g.71gb")
    expression = (
        f"device.driver == '{OTHER}' && device.attributes['{OTHER}'].model.startsWith('LATEST') "
        f"&& device.capacity['{OTHER}'].memory.isGreaterThan(quantity('71G'))"
    )
    with (
        example_driver(cluster, tmp_path),
        plugin_node(cluster, **{"3g.30gb": 1}),
        Webhook(cluster, tmp_path / "webhook") as webhook,
        registered(cluster, webhook, failurePolicy="Fail"),
    ):
        cluster.wait(
            lambda: (found := admitted(cluster, namespace, asked)) and profile_of(found) == "3g.30gb",
            what="the fallback, while no class serves what is asked for",
        )
        with extended(cluster, "ours-4g", expression, MIG + "4g.71gb"):
            cluster.wait(
                lambda: (found := admitted(cluster, namespace, asked)) and profile_of(found) == "4g.71gb",
                what="the webhook sees what DRA serves",
            )
            try:
                dra.run(cluster, namespace, [asked])
                pod = cluster.api.get(f"{pods_path(namespace)}/train")
                assert RECORD not in pod["metadata"].get("annotations", {})
                (mapping,) = pod["status"]["extendedResourceClaimStatus"]["requestMappings"]
                assert mapping["resourceName"] == MIG + "4g.71gb"
                kubeconfig = f"--kubeconfig={cluster.kubeconfig}"
                told = tessera("admit", "-o", "explain", kubeconfig, "-f", "-", stdin=asked)
                assert "offered, up to 2 a node, through DRA" in told.stdout, told.stderr
                counted = tessera("capacity", "--resource=4g.71gb", "-o", "csv", "--no-headers", kubeconfig)
                assert counted.stdout == f"{cluster.node_name},,{MIG}4g.71gb,2,1,1,,dra\n", counted.stderr
            finally:
                dra.remove_pods(cluster, namespace)


def test_our_own_devices(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """What our driver serves is left alone when asked for, and taken in place of what is not there; both run."""
    cluster, namespace = cluster_with_node, node_namespace
    config = dra.simulated(tmp_path, 'layout: "2g.20gb=2"')
    expression = f"device.driver == '{dra.DRIVER}' && device.attributes['{dra.DRIVER}'].profile == '2g.20gb'"
    with (
        dra.driver(cluster, namespace, tmp_path, config),
        extended(cluster, "ours-2g", expression, MIG + "2g.20gb"),
        Webhook(cluster, tmp_path / "webhook") as webhook,
        registered(cluster, webhook, failurePolicy="Fail"),
    ):
        dra.run(cluster, namespace, [asks("as-asked", "2g.20gb"), asks("smaller", "3g.30gb")])
        stored = {name: cluster.api.get(f"{pods_path(namespace)}/{name}") for name in ("as-asked", "smaller")}
        assert {name: profile_of(pod) for name, pod in stored.items()} == {
            "as-asked": "2g.20gb",
            "smaller": "2g.20gb",
        }
        assert RECORD not in stored["as-asked"]["metadata"].get("annotations", {})
        assert stored["smaller"]["metadata"]["annotations"][RECORD] == "3g.30gb->2g.20gb"
        for name in stored:
            assert dra.seen(cluster, namespace, name) == ["2g.20gb"]
        dra.remove_pods(cluster, namespace)
