"""What the tests of the bridge share: webhook, controller and classes beside a cluster, nodes of DRA, pods as people write them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import dra
from e2e.chart import Helm
from e2e.cluster import ApiError, Client, pods_path
from e2e.cluster.api import Object
from e2e.command import Running, account_kubeconfig
from e2e.webhook import Webhook, registered
from tessera.core.requests.alternatives import own_expression

MIG = "nvidia.com/mig-"
RECORD = "gpu-webhook.k8s.io/fallback"
DRA = "gpu-webhook.k8s.io/dra"
FIRST_AVAILABLE = "fallback: {dra: first-available}"
NAMESPACE = "default"  # of the Lease, and of the controller's account
RIGHTS = {
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "CustomResourceDefinition": "customresourcedefinitions",
}
TYPES = ("1g.10gb", "2g.20gb", "3g.30gb")


@dataclass(slots=True)
class Bridge:
    """The webhook and the controller beside a cluster."""

    cluster: Client
    webhook: Webhook
    folder: Path
    controller: Running

    def restart_controller(self) -> None:
        """A new process; the last one's Lease may still hold."""
        self.controller = start_controller(self.cluster, self.folder)


def start_controller(cluster: Client, folder: Path) -> Running:
    """`tessera controller` with the rights that the chart gives it; its Lease is where the webhook looks."""
    config = folder / "kubeconfig-of-the-controller"
    options = (f"--kubeconfig={config}", f"--tessera-namespace={NAMESPACE}", "--log-format=text")
    return Running("controller", *options, log=folder / "controller.log")


@contextmanager
def rights(cluster: Client, folder: Path, **values: Any) -> Iterator[None]:
    """The chart's account for the controller, with its roles, its policies, and the Secret for the key of tickets; further values of the chart."""
    values = {"webhook": {"enabled": False}, "controller": {"enabled": True}, **values}
    made = []
    try:
        for one in Helm(folder).render(values, namespace=NAMESPACE):
            if one["kind"] in RIGHTS:
                version = one["apiVersion"]
                space = f"namespaces/{NAMESPACE}/" if "namespace" in one["metadata"] else ""
                path = f"/{'apis' if '/' in version else 'api'}/{version}/{space}{RIGHTS[one['kind']]}"
                cluster.api.create(path, one)
                made.append(f"{path}/{one['metadata']['name']}")
        account_kubeconfig(cluster, NAMESPACE, folder, "tessera-controller").rename(
            folder / "kubeconfig-of-the-controller"
        )
        yield
    finally:
        for path in made:
            cluster.api.delete(path)


@contextmanager
def classes(cluster: Client) -> Iterator[None]:
    """A class for each type with its extended resource name, and the general one; they go at the end."""
    made = []
    wanted = {f"bridge-{name}": (own_expression(MIG + name), MIG + name) for name in TYPES}
    wanted["tessera-any"] = (f"device.driver == '{dra.DRIVER}'", "")
    try:
        for name, (expression, extended) in wanted.items():
            spec: Object = {"selectors": [{"cel": {"expression": expression}}]}
            if extended:
                spec["extendedResourceName"] = extended
            with suppress(ApiError):  # the general one may be there
                cluster.api.create(dra.CLASSES, {"metadata": {"name": name}, "spec": spec})
                made.append(name)
        yield
    finally:
        for name in made:
            cluster.api.delete(f"{dra.CLASSES}/{name}")


@contextmanager
def bridge(cluster: Client, namespace: str, folder: Path, config: str = FIRST_AVAILABLE) -> Iterator[Bridge]:
    """Everything at work: a pod that asks for 2g.20gb becomes one with a claim."""
    with (
        classes(cluster),
        rights(cluster, folder),
        Webhook(cluster, folder / "webhook", f"--tessera-namespace={NAMESPACE}", config=config) as webhook,
        registered(cluster, webhook, failurePolicy="Fail"),
    ):
        work = Bridge(cluster, webhook, folder, start_controller(cluster, folder))
        try:
            work.controller.wait_for_log("leading as")
            cluster.wait(
                lambda: is_bridged(admitted(cluster, namespace)) or None, what="requests become claims"
            )
            with telling(cluster, namespace):
                yield work
        except BaseException:
            print(work.controller.log.read_text()[-4000:])  # pytest shows it with the failure
            raise
        finally:
            work.controller.stop()


def asks(name: str, *profiles: str, annotations: Mapping[str, str] | None = None) -> Object:
    """A pod with a container for each profile, as people write it."""
    body: Object = json.loads(dra.pod(name, limits={MIG + profiles[0]: 1}))
    first = body["spec"]["containers"][0]
    body["spec"]["containers"] = [
        {**first, "name": f"c{number}", "resources": {"limits": {MIG + profile: 1}}}
        for number, profile in enumerate(profiles)
    ]
    body["metadata"]["annotations"] = dict(annotations or {})
    return body


def admitted(cluster: Client, namespace: str) -> Object | None:
    """A pod as the API server would store it now."""
    try:
        found: Object = cluster.api.create(pods_path(namespace), asks("probe", "2g.20gb"), dryRun="All")
    except ApiError:
        return None
    return found


def is_bridged(pod: Object | None) -> bool:
    return pod is not None and bool(pod["spec"].get("resourceClaims"))


def pods_of(cluster: Client, namespace: str) -> list[Object]:
    found: list[Object] = cluster.api.get(pods_path(namespace))["items"]
    return found


def given(cluster: Client, namespace: str) -> dict[str, list[str]]:
    """Which type each pod's claim got, by pod."""
    claims = cluster.api.get(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]
    found: dict[str, list[str]] = {}
    for claim in claims:
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        owner = claim["metadata"]["ownerReferences"][0]["name"]
        found[owner] = [one["request"].partition("/")[2] for one in results]
    return found


@contextmanager
def dra_node(cluster: Client, name: str, **counts: int) -> Iterator[None]:
    """A node that is an object, with devices in a ResourceSlice: pods are bound to it, and never run."""
    cluster.add_node(name)
    devices = [
        {
            "name": f"mig-{profile.replace('.', '-')}-{number}",
            "attributes": {"type": {"string": "mig"}, "profile": {"string": profile}},
        }
        for profile, count in counts.items()
        for number in range(count)
    ]
    pool = {"name": f"{name}/tessera", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": dra.DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    cluster.api.create(dra.SLICES, {"metadata": {"name": f"slice-of-{name}"}, "spec": spec})
    try:
        yield
    finally:
        cluster.api.delete(f"{dra.SLICES}/slice-of-{name}")
        cluster.remove_node(name)


def bound(cluster: Client, namespace: str) -> list[str]:
    return [one["metadata"]["name"] for one in pods_of(cluster, namespace) if one["spec"].get("nodeName")]


def held(cluster: Client, namespace: str) -> list[str]:
    """The devices that claims have."""
    claims = cluster.api.get(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]
    return [
        result["device"]
        for claim in claims
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]


def on_node(pod: Object, node: str) -> Object:
    """The same pod, for one node alone."""
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod


def limits_of(pod: Object) -> Any:
    return pod["spec"]["containers"][0]["resources"].get("limits")


@contextmanager
def telling(cluster: Client, namespace: str) -> Iterator[None]:
    """Print what became of a namespace's pods and claims when a test fails."""
    try:
        yield
    except BaseException:
        for pod in pods_of(cluster, namespace):
            told = {key: pod["status"].get(key) for key in ("phase", "reason", "message", "conditions")}
            print(pod["metadata"]["name"], pod["spec"].get("nodeName"), json.dumps(told))
        for claim in cluster.api.get(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]:
            print("claim", claim["metadata"]["name"], json.dumps(claim.get("status", {})))
        raise
