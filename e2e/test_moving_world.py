"""What passes never changes a pod for good: restarts, nodes that come and go, pods that are bound to one node."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from e2e.cluster import ApiError, Client, ClusterWithNode, pods_path
from e2e.test_device_plugin import EXAMPLES, MIG, annotate, plugin, runai, wait_allocatable
from e2e.webhook import Webhook, registered

TWO, ONE = MIG + "2g.20gb", MIG + "1g.10gb"


class Stream:
    """Pods that are created one after the other for as long as the test is inside, and what became of each."""

    def __init__(self, cluster: Client, namespace: str, resource: str) -> None:
        self._cluster, self._namespace, self._resource = cluster, namespace, resource
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.found: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        container = {"name": "c", "image": "x", "resources": {"limits": {self._resource: 1}}}
        pod = {"metadata": {"generateName": "p-"}, "spec": {"containers": [container]}}
        while not self._over.wait(0.05):
            try:
                made = self._cluster.api.create(pods_path(self._namespace), pod, dryRun="All")
                self.found[next(iter(made["spec"]["containers"][0]["resources"]["limits"]))] += 1
            except ApiError as error:
                self.found[error.message] += 1


@contextlib.contextmanager
def _kept(cluster: Client, webhook: Webhook, resource: str) -> Iterator[None]:
    """Wait until a pod that asks for this keeps it."""
    container = {"name": "c", "image": "x", "resources": {"limits": {resource: 1}}}
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}

    def kept() -> bool:
        with contextlib.suppress(ApiError):
            made = cluster.api.create(pods_path("default"), probe, dryRun="All")
            return resource in made["spec"]["containers"][0]["resources"]["limits"]
        return False

    webhook.until(kept, what=f"{resource} in the view")
    yield


@pytest.mark.timeout(600, func_only=True)
def test_fault_29_restarts(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """The plugin restarts ten times and the kubelet three times while pods are created: none is denied, none changed."""
    cluster = cluster_with_node
    cluster.forget_devices()
    with contextlib.ExitStack() as stack:
        stack.callback(annotate, cluster, None)
        webhook = stack.enter_context(Webhook(cluster, tmp_path / "webhook"))
        stack.enter_context(registered(cluster, webhook, failurePolicy="Fail"))
        annotate(cluster, runai("[2g.20gb, 2g.20gb, 3g.30gb]"))
        with contextlib.ExitStack() as plugins:
            plugins.enter_context(plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"))
            wait_allocatable(cluster, {TWO: "8"})
            stack.enter_context(_kept(cluster, webhook, TWO))
            with Stream(cluster, node_namespace, TWO) as stream:
                for _ in range(10):
                    plugins.close()
                    wait_allocatable(cluster, {TWO: "0"})  # which is what a pod must not notice
                    plugins.enter_context(plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"))
                    wait_allocatable(cluster, {TWO: "8"})
                for _ in range(3):
                    cluster.restart_kubelet()
                    wait_allocatable(cluster, {TWO: "8"})
            assert list(stream.found) == [TWO], stream.found
            assert stream.found[TWO] > 100

            # a node that is re-cut on purpose is no restart: what it had is gone at once
            annotate(cluster, runai("[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]"))
            wait_allocatable(cluster, {ONE: "28", TWO: "0"})
            cluster.wait_for_node(
                cluster.node_name,
                lambda node: node["metadata"]["labels"].get(ONE + ".count") == "28",
            )
            stack.enter_context(_kept(cluster, webhook, ONE))
            container = {"name": "c", "image": "x", "resources": {"limits": {TWO: 1}}}
            pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}

            def falls_back() -> bool:
                made = cluster.api.create(pods_path(node_namespace), pod, dryRun="All")
                return ONE in made["spec"]["containers"][0]["resources"]["limits"]

            webhook.until(falls_back, what="2g.20gb becoming 1g.10gb", timeout=60.0)  # not two minutes


def test_fault_62_the_webhook_starts_in_an_outage(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """The plugin is gone, the kubelet has restarted, and then the webhook starts: what the node's labels count is kept."""
    cluster = cluster_with_node
    cluster.forget_devices()
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.forget_devices)
        stack.callback(annotate, cluster, None)
        annotate(cluster, runai("[2g.20gb, 2g.20gb, 3g.30gb]"))
        with plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml"):
            wait_allocatable(cluster, {TWO: "8"})
            cluster.wait_for_node(
                cluster.node_name, lambda node: node["metadata"]["labels"].get(TWO + ".count") == "8"
            )
        cluster.restart_kubelet()
        cluster.wait_for_node(
            cluster.node_name,
            lambda node: all(node["status"][of].get(TWO, "0") == "0" for of in ("capacity", "allocatable")),
        )
        webhook = stack.enter_context(Webhook(cluster, tmp_path / "webhook"))
        stack.enter_context(registered(cluster, webhook, failurePolicy="Fail"))
        container = {"name": "c", "image": "x", "resources": {"limits": {TWO: 1}}}
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
        made = cluster.api.create(pods_path(node_namespace), pod, dryRun="All")
        assert made["spec"]["containers"][0]["resources"]["limits"] == {TWO: "1"}


@pytest.fixture
def webhook(own_control_plane: Client, tmp_path: Path) -> Iterator[Webhook]:
    """The webhook on a control plane, with types that an autoscaler could bring."""
    with (
        Webhook(own_control_plane, tmp_path, config=f"fallback: {{autoscaled: [{TWO}]}}") as running,
        registered(own_control_plane, running, failurePolicy="Fail"),
    ):
        yield running


@pytest.mark.parametrize(
    "key",
    [
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/disrupted",
        "node.cilium.io/agent-not-ready",
    ],
)
def test_nodes_that_come_and_go(
    own_control_plane: Client, namespace: str, webhook: Webhook, key: str
) -> None:
    """A node on its way in or out still has what it has: no pod is changed for it."""
    cluster = own_control_plane
    three = MIG + "3g.30gb"
    cluster.add_node("stays", allocatable={ONE: 28})
    cluster.add_node("goes", allocatable={three: 4}, taints=[{"key": key, "effect": "NoSchedule"}])
    try:
        with _kept(cluster, webhook, three):
            container = {"name": "c", "image": "x", "resources": {"limits": {three: 1}}}
            pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
            made = cluster.api.create(pods_path(namespace), pod, dryRun="All")
        assert made["spec"]["containers"][0]["resources"]["limits"] == {three: "1"}
    finally:
        cluster.remove_node("stays")
        cluster.remove_node("goes")


def test_daemon_sets(own_control_plane: Client, namespace: str, webhook: Webhook) -> None:
    """A DaemonSet has a pod on every node, on those without such devices too, and its controller never stalls."""
    cluster = own_control_plane
    has = {"two": {TWO: 8}, "one": {ONE: 28}, "none-a": {}, "none-b": {}, "none-c": {}}
    for name, counts in has.items():
        cluster.add_node(name, allocatable=counts, labels={"daemons": "yes"})
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {
            "nodeSelector": {"daemons": "yes"},
            "containers": [{"name": "c", "image": "x", "resources": {"limits": {TWO: 1}}}],
        },
    }
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": template},
    }
    try:
        with _kept(cluster, webhook, ONE):
            cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/daemonsets", daemons)
        pods = cluster.wait(
            lambda: found if len(found := cluster.api.get(pods_path(namespace))["items"]) == 5 else None,
            what="a pod for every node",
        )
        asked = {}
        for pod in pods:
            terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            node = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
            asked[node] = next(iter(pod["spec"]["containers"][0]["resources"]["limits"]))
        # the autoscaler could bring a 2g.20gb, but not to the node that a pod is bound to
        assert asked == {**dict.fromkeys(has, TWO), "one": ONE}
    finally:
        for name in has:
            cluster.remove_node(name)
