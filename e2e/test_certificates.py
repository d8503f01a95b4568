"""The webhook's own certificates, with a real API server calling three replicas through a Service."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.cluster import ApiError, Client, pods_path
from e2e.cluster.api import Object
from e2e.command import Running, tessera

SERVICE = "gpu-webhook"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
# minutes and days become seconds; an API server hears of a new bundle within some milliseconds
QUICK = {"look": 0.5, "settle": 3.0, "lag": 1.0, "leaf_life": 8.0, "renew_after": 2.0, "skew": 0.5}


class Replica(Running):
    """A `tessera webhook` with certificates of its own, on the machine's address."""

    def __init__(self, cluster: Client, namespace: str, folder: Path, address: str, name: str) -> None:
        super().__init__(
            "webhook",
            f"--listen={address}:0",
            "--metrics-listen=127.0.0.1:0",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--namespace={namespace}",
            f"--webhook-configuration={namespace}",
            f"--certificate-policy={json.dumps(QUICK)}",
            "--log-format=json",
            "--shutdown-delay=0",
            log=folder / f"{name}.log",
            module="e2e.quick_certificates",
        )
        self.until(lambda: len(self._ports()) == 2, what="both addresses in the log")
        self._metrics_port, self.port = self._ports()
        self.until(lambda: self.fetch("/readyz") == "ok\n", what="the replica ready")

    def _ports(self) -> list[int]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [int(line["address"].rpartition(":")[2]) for line in lines if "address" in line]

    def fetch(self, path: str) -> str:
        """GET from the port of metrics and probes."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}{path}", timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()


def _address() -> str:
    """An address of this machine that is not loopback, which Services may not lead to. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = one.getsockname()[0]
        return address


def _configuration(namespace: str) -> Object:
    """A configuration named after the namespace, for its pods alone, that trusts nobody yet."""
    webhook = {
        "name": "gpu-allocation.k8s.io",
        "clientConfig": {"service": {"name": SERVICE, "namespace": namespace, "path": "/mutate"}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [webhook],
    }


def _service(ports: list[int], address: str) -> Iterator[Object]:
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE},
        "spec": {"ports": [{"name": "https", "port": 443}]},
    }
    for port in ports:  # a slice has one port for all its addresses
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{SERVICE}-{port}", "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        }


class Users(threading.Thread):
    """People who create pods all the while; a webhook that cannot be called fails them."""

    def __init__(self, cluster: Client, namespace: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace = cluster, namespace
        self.created = 0
        self.failures: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.create()
                self.created += 1
            except ApiError as error:
                self.failures.append(str(error))

    def create(self) -> Object:
        """Create a pod, as far as admission goes; the webhook gives it what the one node has."""
        container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/mig-2g.20gb": "1"}}}
        pod = {"metadata": {"generateName": "p-"}, "spec": {"containers": [container]}}
        made = self._cluster.api.create(pods_path(self._namespace), pod, dryRun="All")
        assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
        return made

    def reached(self) -> bool:
        """Whether the API server has heard of the Service and of the bundle."""
        try:
            return bool(self.create())
        except ApiError:
            return False


def test_fault_14_rotation(own_control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """Three replicas agree on an authority, and change to another without one failed call."""
    cluster, address = own_control_plane, _address()

    def certs(*words: str) -> str:
        names = ("-n", namespace, "--webhook-configuration", namespace, "--kubeconfig", cluster.kubeconfig)
        done = tessera("certs", *words, *names)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def authorities() -> list[Object]:
        found: list[Object] = json.loads(certs("show", "-o", "json"))
        return found

    cluster.add_node("certified", allocatable={"nvidia.com/mig-1g.10gb": 7})
    with ExitStack() as stack:
        stack.callback(cluster.remove_node, "certified")
        cluster.api.create(CONFIGURATIONS, _configuration(namespace))
        stack.callback(cluster.api.delete, f"{CONFIGURATIONS}/{namespace}")
        replicas = [
            stack.enter_context(Replica(cluster, namespace, tmp_path, address, f"replica-{n}"))
            for n in range(3)
        ]
        (first,) = authorities()
        for one in _service([replica.port for replica in replicas], address):
            cluster.apply(json.dumps(one), namespace=namespace)
        users = Users(cluster, namespace)
        cluster.wait(users.reached, what="the first call")
        users.start()
        assert "follows" in certs("rotate")

        def over() -> bool:
            found = authorities()
            return len(found) == 1 and found[0]["sha256"] != first["sha256"]

        cluster.wait(over, what="the end of the rotation", timeout=45)
        users.over.set()
        users.join(10)
        assert users.failures == []
        assert users.created > 50
        for replica in replicas:
            metrics = replica.fetch("/metrics")
            assert "gpu_webhook_certificate_errors_total 0" in metrics
            assert "gpu_webhook_certificate_trusted 1" in metrics
