"""Device plugins and DRA in one cluster, and the pods whose request never becomes a claim."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e import dra
from e2e.bridge import (
    MIG,
    NAMESPACE,
    RECORD,
    asks,
    bound,
    bridge,
    dra_node,
    given,
    held,
    is_bridged,
    limits_of,
    on_node,
    pods_of,
)
from e2e.cluster import ApiError, Client, ClusterWithNode, pods_path, unschedulable_message
from e2e.cluster.api import Object
from e2e.command import tessera
from e2e.webhook import Webhook

ONE = f"{MIG}1g.10gb"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@contextmanager
def plugin_node(cluster: Client, name: str, **has: int) -> Iterator[None]:
    """A node as a device plugin leaves it: pods are bound to it, and never run."""
    cluster.add_node(name, allocatable={MIG + profile: count for profile, count in has.items()})
    try:
        yield
    finally:
        cluster.remove_node(name)


def created(cluster: Client, namespace: str, pod: Object) -> Object:
    """The pod as the API server stored it."""
    found: Object = cluster.api.create(pods_path(namespace), pod)
    return found


def nodes_of(cluster: Client, namespace: str) -> dict[str, list[str]]:
    """The pods of each node, and under "" those that the scheduler has refused so far."""
    found: dict[str, list[str]] = {}
    for pod in pods_of(cluster, namespace):
        node = pod["spec"].get("nodeName", "")
        if node or unschedulable_message(pod):
            found.setdefault(node, []).append(pod["metadata"]["name"])
    return found


def slice_of(cluster: ClusterWithNode, namespace: str, name: str) -> str:
    """The only MIG device that a running container sees, as `nvidia-smi -L` tells it."""
    listed = cluster.kubectl("exec", name, "-n", namespace, "--", "nvidia-smi", "-L")
    [line] = [line for line in listed.splitlines() if line.startswith("  MIG ")]
    return line


def logs(webhook: Webhook, namespace: str, name: str, reason: str) -> None:
    """Wait until the webhook's log says why it did what it did about a pod: lines are written a moment later."""

    def said() -> bool:
        lines = [line for line in webhook.lines() if line.get("namespace") == namespace]
        return any(line.get("pod") == name and reason in line["reason"] for line in lines)

    webhook.until(said, what=f"{reason!r} in the webhook's log, about {name}")


def explained(cluster: Client, webhook: Webhook, pod: Object) -> str:
    """`tessera admit -o explain`, with the webhook's configuration."""
    return tessera(
        *("admit", "-o", "explain", f"--kubeconfig={cluster.kubeconfig}", f"--config={webhook.config}"),
        *("-f", "-", f"--tessera-namespace={NAMESPACE}"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "Pod", **pod}),
    ).stdout


def test_a_plugin_node_and_a_dra_node(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """Eight pods for eight slices of both kinds stay what they are and fill both nodes; the ninth waits.

    Beside them, pods that can only use the DRA node become claims: their fifth falls back to the 2g, their sixth waits.
    """
    cluster, namespace = cluster_with_node, node_namespace
    cluster.forget_devices()
    config = dra.simulated(tmp_path, 'layout: "2g.20gb=1,1g.10gb=4"')
    with (
        dra.driver(cluster, namespace, tmp_path, config),
        bridge(cluster, namespace, tmp_path) as work,
        plugin_node(cluster, "plugged", **{"1g.10gb": 4}),
    ):
        mixed = "no claim: 1g.10gb can also come from a device plugin or an autoscaler"
        probe = asks("probe", "1g.10gb")
        cluster.wait(
            lambda: not is_bridged(cluster.api.create(pods_path(namespace), probe, dryRun="All")) or None,
            what="the webhook sees the node of the device plugin",
        )
        names = [f"p{number}" for number in range(9)]
        for name in names[:8]:
            pod = created(cluster, namespace, asks(name, "1g.10gb"))
            assert limits_of(pod) == {ONE: "1"}, pod
            assert not pod["spec"].get("resourceClaims")
            logs(work.webhook, namespace, name, mixed)
        cluster.wait(lambda: len(bound(cluster, namespace)) == 8 or None, what="eight pods with a node")
        by_node = nodes_of(cluster, namespace)
        assert {node: len(some) for node, some in by_node.items()} == {cluster.node_name: 4, "plugged": 4}
        for name in by_node[cluster.node_name]:
            cluster.wait_for_pod_phase(name, "Running", namespace=namespace)
        slices = {slice_of(cluster, namespace, name) for name in by_node[cluster.node_name]}
        assert len(slices) == 4, "each has a slice of its own"
        assert all(line.startswith("  MIG 1g.10gb") for line in slices), slices

        created(cluster, namespace, asks(names[8], "1g.10gb"))
        waits = cluster.wait_for_pod_unschedulable(names[8], namespace=namespace)
        assert "nodes are available" in waits
        assert work.webhook.metric('gpu_webhook_bridge_total{way="not_dra"}') >= 9
        shown = tessera(
            "capacity",
            "--resource=1g.10gb",
            "-o",
            "csv",
            "--no-headers",
            f"--kubeconfig={cluster.kubeconfig}",
        )
        rows = [line.split(",") for line in shown.stdout.splitlines()]  # node, product, resource, ...
        assert sorted((row[0], *row[2:]) for row in rows) == sorted(
            [
                ("", ONE, "", "", "", "1", ""),
                (cluster.node_name, ONE, "4", "4", "0", "", "dra"),
                ("plugged", ONE, "4", "4", "0", "", "plugin"),
            ]
        ), shown.stderr
        assert mixed in explained(cluster, work.webhook, probe)

        dra.remove_pods(cluster, namespace)
        chosen = on_node(asks("probe", "1g.10gb"), cluster.node_name)
        assert "1g.10gb becomes a claim for 1g.10gb, else 2g.20gb" in explained(cluster, work.webhook, chosen)
        names = [f"q{number}" for number in range(6)]
        for name in names[:4]:
            pod = created(cluster, namespace, on_node(asks(name, "1g.10gb"), cluster.node_name))
            assert is_bridged(pod), pod
            assert ONE not in (limits_of(pod) or {})
            logs(work.webhook, namespace, name, "becomes a claim")
            cluster.wait_for_pod_phase(name, "Running", namespace=namespace)
        assert list(given(cluster, namespace).values()) == [["1g-10gb"]] * 4
        for name in names[4:]:
            created(cluster, namespace, on_node(asks(name, "1g.10gb"), cluster.node_name))
            cluster.wait(
                lambda name=name: any(name in some for some in nodes_of(cluster, namespace).values()) or None,  # type: ignore[misc]
                what=f"{name} has a node, or waits with a reason",
            )
        cluster.wait_for_pod_phase(names[4], "Running", namespace=namespace)
        assert dra.seen(cluster, namespace, names[4]) == ["2g.20gb"]
        cluster.wait_for_pod(
            names[4],
            lambda pod: pod["metadata"]["annotations"].get(RECORD) == "1g.10gb->2g.20gb",
            namespace=namespace,
            what="the record of the fallback",
        )
        assert "cannot allocate all claims" in cluster.wait_for_pod_unschedulable(
            names[5], namespace=namespace
        )


def test_preemption(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """A pod with a priority keeps its request: it evicts a pod from a plugin's node; for DRA's devices it waits for room."""
    cluster = control_plane
    urgent = f"urgent-{namespace}"
    cluster.api.create(PRIORITY_CLASSES, {"metadata": {"name": urgent}, "value": 1000})

    def important(name: str, node: str) -> Object:
        pod = on_node(asks(name, "2g.20gb"), node)
        pod["spec"]["priorityClassName"] = urgent
        return pod

    try:
        with (
            dra_node(cluster, "claimed", **{"2g.20gb": 1, "1g.10gb": 1}),
            bridge(cluster, namespace, tmp_path) as work,
            plugin_node(cluster, "plugged", **{"2g.20gb": 1}),
        ):
            cluster.wait(lambda: offered(cluster, namespace, "plugged") or None, what="both nodes are seen")
            for name, node in (("on-claimed", "claimed"), ("on-plugged", "plugged")):
                assert is_bridged(created(cluster, namespace, on_node(asks(name, "2g.20gb"), node))) == (
                    node == "claimed"
                )
                cluster.wait_for_pod_bound(name, namespace=namespace)

            why = "no claim: its priority is 1000, and the scheduler evicts no pod for a claim"
            for name, node in (("evicts", "plugged"), ("waits", "claimed")):
                pod = created(cluster, namespace, important(name, node))
                assert limits_of(pod) == {f"{MIG}2g.20gb": "1"}, pod
                assert not is_bridged(pod)
                logs(work.webhook, namespace, name, why)
            assert cluster.wait_for_pod_bound("evicts", namespace=namespace) == "plugged"
            cluster.wait_for_pod_unschedulable("waits", namespace=namespace)
            assert sorted(bound(cluster, namespace)) == ["evicts", "on-claimed"]
            assert work.webhook.metric('gpu_webhook_bridge_total{way="priority"}') >= 2

            cluster.api.delete(f"{pods_path(namespace)}/on-claimed", gracePeriodSeconds="0")
            assert cluster.wait_for_pod_bound("waits", namespace=namespace) == "claimed"
    finally:
        cluster.api.delete(f"{PRIORITY_CLASSES}/{urgent}")


def offered(cluster: Client, namespace: str, node: str) -> bool:
    """Whether the webhook knows that a node offers 2g.20gb: nothing is replaced there."""
    pod = on_node(asks("probe", "2g.20gb"), node)
    try:
        return RECORD not in cluster.api.create(pods_path(namespace), pod, dryRun="All")["metadata"].get(
            "annotations", {}
        )
    except ApiError:
        return False


def test_who_is_not_bridged(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """A node by name, another scheduler, claims of its own for the same card: the request stays, and the log says why."""
    cluster = control_plane
    with (
        dra_node(cluster, "claimed", **{"2g.20gb": 2, "1g.10gb": 1}),
        bridge(cluster, namespace, tmp_path) as work,
    ):
        template = {"name": "gpu", "exactly": {"deviceClassName": "bridge-1g.10gb"}}
        cluster.api.create(
            f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaimtemplates",
            {"metadata": {"name": "own"}, "spec": {"spec": {"devices": {"requests": [template]}}}},
        )
        own = asks("own-claims", "2g.20gb")
        own["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": "own"}]
        own["spec"]["containers"][0]["resources"]["claims"] = [{"name": "mine"}]
        named = asks("named-node", "2g.20gb")
        named["spec"]["nodeName"] = "claimed"
        other = asks("other-scheduler", "2g.20gb")
        other["spec"]["schedulerName"] = "volcano"
        ways: Mapping[str, tuple[Object, str]] = {
            "own_claims": (own, "no claim: it has claims of its own"),
            "node_name": (named, "no claim: spec.nodeName is set, and a claim needs the scheduler"),
            "scheduler": (other, "no claim: its scheduler is volcano"),
        }
        for way, (pod, why) in ways.items():
            stored = created(cluster, namespace, pod)
            assert limits_of(stored) == {f"{MIG}2g.20gb": "1"}, stored
            assert stored["spec"].get("resourceClaims") == pod["spec"].get("resourceClaims")
            logs(work.webhook, namespace, pod["metadata"]["name"], why)
            assert work.webhook.metric(f'gpu_webhook_bridge_total{{way="{way}"}}') >= 1

        # Kubernetes serves both halves of the first one: its own claim, and its extended resource.
        assert cluster.wait_for_pod_bound("own-claims", namespace=namespace) == "claimed"
        devices = held(cluster, namespace)
        assert sorted(device.rpartition("-")[0] for device in devices) == ["mig-1g-10gb", "mig-2g-20gb"]
        # and a pod beside them that is like all others is a claim
        assert is_bridged(created(cluster, namespace, asks("usual", "2g.20gb")))
        cluster.wait_for_pod_bound("usual", namespace=namespace)
