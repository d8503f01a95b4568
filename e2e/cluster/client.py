"""What tests do with a cluster, started here or not: kubectl, objects, nodes that are only objects, and waiting."""

import contextlib
import json
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from e2e.cluster.api import Api, Object
from e2e.cluster.errors import ClusterError
from e2e.cluster.processes import until

T = TypeVar("T")

#: Seconds that waits and commands may take, unless told otherwise: most take one or two, but a machine may be busy.
PATIENCE = 120.0

_NODES = "/api/v1/nodes"
#: What an extra node has unless it is told otherwise: never the reason why a pod does not fit.
_PLENTY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "250"}


class KubectlError(ClusterError):
    """kubectl said no: its exit status, and what it printed."""

    def __init__(self, arguments: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        self.returncode, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        super().__init__(
            f"kubectl {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}{done.stdout}"
        )


def pods_path(namespace: str) -> str:
    """The collection of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


class Client:
    """A cluster seen through its API."""

    def __init__(self, kubeconfig: Path, kubectl: Path, kubectl_cache: Path, api: Api) -> None:
        self.kubeconfig = kubeconfig
        self.api = api
        self._kubectl = kubectl
        self._kubectl_cache = kubectl_cache

    # kubectl

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = PATIENCE) -> str:
        """Run kubectl and return what it prints; an exit status other than 0 raises `KubectlError`."""
        done = self.try_kubectl(*arguments, stdin=stdin, timeout=timeout)
        if done.returncode:
            raise KubectlError(arguments, done)
        return done.stdout

    def try_kubectl(
        self, *arguments: str, stdin: str | None = None, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return all of it: exit status, stdout, and stderr, where it prints warnings."""
        return subprocess.run(
            self._line(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _line(self, *arguments: str) -> list[str]:
        return [
            str(self._kubectl),
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self._kubectl_cache}",
            *arguments,
        ]

    @contextlib.contextmanager
    def forwarded(self, target: str, port: int, *, namespace: str) -> Iterator[int]:
        """`kubectl port-forward` to a port of a pod or a Service: the port of this machine that leads there."""
        line = self._line(
            "port-forward", f"--namespace={namespace}", "--address=127.0.0.1", target, f":{port}"
        )
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()  # Forwarding from 127.0.0.1:34567 -> 8765
                if (found := re.search(r"127\.0\.0\.1:(\d+) ", said)) is None:
                    raise ClusterError(f"kubectl port-forward {target}: {said}{process.stdout.read()}")
                yield int(found[1])
            finally:
                process.terminate()

    def apply(self, manifest: str, *, namespace: str | None = None) -> str:
        """`kubectl apply -f -`; without a namespace, objects go where they say, else into `default`."""
        return self.kubectl("apply", "--filename=-", *_in(namespace), stdin=manifest)

    def get(self, *arguments: str, namespace: str | None = None) -> Object:
        """`kubectl get … -o json`, decoded."""
        answer: Object = json.loads(self.kubectl("get", "--output=json", *_in(namespace), *arguments))
        return answer

    # objects

    @contextlib.contextmanager
    def namespace(self, prefix: str = "test", *, labels: Mapping[str, str] | None = None) -> Iterator[str]:
        """A fresh namespace whose pods can be created at once, and that goes with everything in it."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        body = {"metadata": {"name": name, "labels": dict(labels or {})}}
        self.api.create("/api/v1/namespaces", body)
        try:
            self.wait_for_service_account(namespace=name)
            yield name
        finally:
            # A node that is only an object never confirms that a pod has ended: do not wait for it.
            self.api.delete(pods_path(name), gracePeriodSeconds="0")
            self.api.delete(f"/api/v1/namespaces/{name}")

    def add_node(
        self,
        name: str,
        *,
        allocatable: Mapping[str, str | int] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> Object:
        """A node that is only an object: ready, with these resources; the scheduler binds pods to it."""
        resources = {**_PLENTY, **{key: str(value) for key, value in (allocatable or {}).items()}}
        all_labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
        metadata = {"name": name, "labels": all_labels, "annotations": dict(annotations or {})}
        body = {"metadata": metadata, "spec": {"taints": [dict(taint) for taint in taints]}}
        self.api.create(_NODES, body)
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Simulated",
            "message": "an object without a kubelet",
        }
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        self.api.patch(f"{_NODES}/{name}/status", {"status": status}, kind="strategic")
        return self.wait_for_node(name, schedulable, what=f"node {name} without the not-ready taint")

    def set_allocatable(self, node: str, resources: Mapping[str, str | int | None]) -> None:
        """Change some of a node's resources (None removes one), as its device plugin and kubelet would."""
        values = {key: None if value is None else str(value) for key, value in resources.items()}
        self.api.patch(f"{_NODES}/{node}/status", {"status": {"capacity": values, "allocatable": values}})

    def remove_node(self, name: str) -> None:
        """Delete a node; its pods go with it, sooner or later."""
        self.api.delete(f"{_NODES}/{name}")

    # waiting

    def wait(
        self, condition: Callable[[], T | None], timeout: float = PATIENCE, *, what: str = "the condition"
    ) -> T:
        """Ask until the answer is neither None nor False. For what cannot be watched; else use `wait_for`."""
        return until(condition, timeout=timeout, what=what)

    def wait_for(
        self,
        collection: str,
        name: str,
        condition: Callable[[Object], object],
        timeout: float = PATIENCE,
        *,
        what: str = "",
    ) -> Object:
        """Watch one object of a collection (an API path) until it is there and the condition holds."""
        found = self.api.wait_for(
            collection,
            name,
            lambda seen: seen is not None and condition(seen),
            timeout=timeout,
            what=what or f"{collection}/{name} as wanted",
        )
        assert found is not None
        return found

    def wait_gone(self, collection: str, name: str, timeout: float = PATIENCE) -> None:
        """Watch until there is no such object."""
        self.api.wait_for(
            collection, name, lambda seen: seen is None, timeout=timeout, what=f"{collection}/{name} gone"
        )

    def wait_for_node(
        self, name: str, condition: Callable[[Object], object], timeout: float = PATIENCE, *, what: str = ""
    ) -> Object:
        """Watch a node until the condition holds."""
        return self.wait_for(_NODES, name, condition, timeout, what=what or f"node {name} as wanted")

    def wait_for_pod(
        self,
        name: str,
        condition: Callable[[Object], object],
        timeout: float = PATIENCE,
        *,
        namespace: str = "default",
        what: str = "",
    ) -> Object:
        """Watch a pod until the condition holds."""
        return self.wait_for(
            pods_path(namespace), name, condition, timeout, what=what or f"pod {name} as wanted"
        )

    def wait_for_pod_phase(
        self, name: str, *phases: str, namespace: str = "default", timeout: float = PATIENCE
    ) -> Object:
        """Watch a pod until it is in one of the phases."""
        return self.wait_for_pod(
            name,
            lambda pod: pod["status"].get("phase") in phases,
            timeout,
            namespace=namespace,
            what=f"pod {name} {' or '.join(phases)}",
        )

    def wait_for_pod_bound(self, name: str, *, namespace: str = "default", timeout: float = PATIENCE) -> str:
        """Watch a pod until the scheduler has bound it; the node's name."""
        pod = self.wait_for_pod(
            name,
            lambda pod: pod["spec"].get("nodeName"),
            timeout,
            namespace=namespace,
            what=f"pod {name} bound",
        )
        return str(pod["spec"]["nodeName"])

    def wait_for_pod_unschedulable(
        self, name: str, *, namespace: str = "default", timeout: float = PATIENCE
    ) -> str:
        """Watch a pod until the scheduler has given its reason for not binding it; the reason."""
        pod = self.wait_for_pod(
            name, unschedulable_message, timeout, namespace=namespace, what=f"pod {name} unschedulable"
        )
        return unschedulable_message(pod) or ""

    def wait_for_service_account(self, *, namespace: str = "default", timeout: float = PATIENCE) -> None:
        """Watch until pods can be created in a namespace: its default account and the authority's certificate are there."""
        for kind, name in (("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")):
            self.wait_for(f"/api/v1/namespaces/{namespace}/{kind}", name, lambda _: True, timeout)

    # metrics

    def metrics(self) -> str:
        """The API server's metrics, as it prints them."""
        return self.api.text("/metrics")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the API server's samples of that name that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        return sum(
            sample.value
            for family in text_string_to_metric_families(self.metrics())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def _in(namespace: str | None) -> list[str]:
    return [] if namespace is None else [f"--namespace={namespace}"]


def condition_of(item: Object, kind: str) -> Object:
    """A condition of a node or a pod, empty where there is none."""
    conditions: list[Any] = item.get("status", {}).get("conditions") or []
    found: Object = next((condition for condition in conditions if condition["type"] == kind), {})
    return found


def schedulable(node: Object) -> bool:
    """Whether a node is ready, and no taint says that it is not."""
    taints: list[Any] = node["spec"].get("taints") or []
    return condition_of(node, "Ready").get("status") == "True" and not any(
        taint["key"].startswith("node.kubernetes.io/") for taint in taints
    )


def unschedulable_message(pod: Object) -> str | None:
    """Why the scheduler does not bind a pod, if it has said so."""
    scheduled = condition_of(pod, "PodScheduled")
    return scheduled.get("message") if scheduled.get("reason") == "Unschedulable" else None
