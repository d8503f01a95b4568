"""The bridge: pods that ask for a profile as ever, and a scheduler that falls back by what is free."""

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import dra
from e2e.chart import Helm
from e2e.cluster import ApiError, Client, ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.cluster.client import condition_of
from e2e.command import Running, account_kubeconfig
from e2e.webhook import Webhook, registered
from tessera.core.admission.alternatives import own_expression

MIG = "nvidia.com/mig-"
RECORD = "gpu-webhook.k8s.io/fallback"
DRA = "gpu-webhook.k8s.io/dra"
FIRST_AVAILABLE = "fallback: {dra: first-available}"
NAMESPACE = "default"  # of the Lease, and of the controller's account
RIGHTS = {
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
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
    options = (f"--kubeconfig={config}", f"--namespace={NAMESPACE}", "--log-format=text")
    return Running("controller", *options, log=folder / "controller.log")


@contextmanager
def rights(cluster: Client, folder: Path) -> Iterator[None]:
    """The chart's account for the controller, with its roles and the policy that keeps it to one annotation."""
    values = {"webhook": {"enabled": False}, "controller": {"enabled": True}}
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


def one_of(cluster: ClusterWithNode, namespace: str, manifests: list[Object]) -> list[str]:
    """Those of these pods that get a node, as soon as any does."""
    dra.remove_pods(cluster, namespace)
    run(cluster, namespace, *manifests)
    return cluster.wait(lambda: bound(cluster, namespace) or None, what="one with a node")


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
        Webhook(cluster, folder / "webhook", f"--namespace={NAMESPACE}", config=config) as webhook,
        registered(cluster, webhook, failurePolicy="Fail"),
    ):
        work = Bridge(cluster, webhook, folder, start_controller(cluster, folder))
        try:
            work.controller.wait_for_log("leading as")
            cluster.wait(
                lambda: is_bridged(admitted(cluster, namespace)) or None, what="requests become claims"
            )
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


def run(cluster: Client, namespace: str, *pods: Object) -> None:
    """Create pods one after the other, each when the one before has its devices or waits for them."""
    for pod in pods:
        cluster.api.create(pods_path(namespace), pod)
        settled(cluster, namespace, pod["metadata"]["name"])


def settled(cluster: Client, namespace: str, name: str) -> None:
    """Wait until the scheduler has said something about a pod."""
    cluster.wait_for(
        pods_path(namespace), name, lambda one: bool(condition_of(one, "PodScheduled").get("status"))
        and (one["spec"].get("nodeName") is not None or "cannot allocate" in str(condition_of(one, "PodScheduled").get("message"))
             or "Insufficient" in str(condition_of(one, "PodScheduled").get("message"))),
    )  # fmt: skip


def test_the_scheduler_falls_back(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """One 2g, two 1g, four unchanged pods for 2g: 2g, 1g, 1g, Pending. The first goes, and the fourth has the 2g.

    With `never` one runs and three wait; with at least 20Gi likewise. Two containers with two profiles have one each.
    """
    cluster, namespace = cluster_with_node, node_namespace
    resource = f"{MIG}2g.20gb"
    if cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")["status"]["capacity"].get(resource, "0") != "0":
        cluster.restart_kubelet()  # it remembers a device plugin of an earlier test
    config = dra.simulated(tmp_path, 'layout: "2g.20gb=1,1g.10gb=2"')
    with dra.driver(cluster, namespace, tmp_path, config), bridge(cluster, namespace, tmp_path) as work:
        names = [f"p{n}" for n in range(4)]
        run(cluster, namespace, *(asks(name, "2g.20gb") for name in names))
        for name in names[:3]:
            cluster.wait_for_pod_phase(name, "Running", namespace=namespace)
        assert [dra.seen(cluster, namespace, name) for name in names[:3]] == [
            ["2g.20gb"],
            ["1g.10gb"],
            ["1g.10gb"],
        ]
        assert "cannot allocate all claims" in cluster.wait_for_pod_unschedulable("p3", namespace=namespace)

        def records() -> dict[str, str]:
            found = {
                one["metadata"]["name"]: one["metadata"]["annotations"] for one in pods_of(cluster, namespace)
            }
            return {name: annotations[RECORD] for name, annotations in found.items() if RECORD in annotations}

        expected = dict.fromkeys(["p1", "p2"], "2g.20gb->1g.10gb")
        cluster.wait(lambda: records() == expected or None, what="the record of what two of them got")

        def told() -> set[str]:
            events = cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
            return {one["involvedObject"]["name"] for one in events if one["reason"] == "GPUFallback"}

        cluster.wait(lambda: told() == {"p1", "p2"} or None, what="an event on both")
        assert work.webhook.metric('gpu_webhook_bridge_total{way="claim"}') >= 4

        cluster.kubectl("delete", "pod", "p0", "-n", namespace, "--grace-period=0", "--force")
        cluster.wait_for_pod_phase("p3", "Running", namespace=namespace)
        assert dra.seen(cluster, namespace, "p3") == ["2g.20gb"]
        assert records() == expected

        for annotation in (
            {"gpu-webhook.k8s.io/fallback-policy": "never"},
            {"gpu-webhook.k8s.io/min-memory": "20Gi"},
        ):
            [lucky] = one_of(
                cluster, namespace, [asks(name, "2g.20gb", annotations=annotation) for name in names]
            )
            cluster.wait_for_pod_phase(lucky, "Running", namespace=namespace)
            assert dra.seen(cluster, namespace, lucky) == ["2g.20gb"]
            assert bound(cluster, namespace) == [lucky]

        dra.remove_pods(cluster, namespace)
        run(cluster, namespace, asks("two", "2g.20gb", "1g.10gb"))
        cluster.wait_for_pod_phase("two", "Running", namespace=namespace)
        listed = [
            cluster.kubectl("exec", "two", "-c", container, "-n", namespace, "--", "nvidia-smi", "-L")
            for container in ("c0", "c1")
        ]
        slices = [[line for line in text.splitlines() if line.startswith("  MIG ")] for text in listed]
        got = given(cluster, namespace)["two"]  # request by request
        assert [[line.split()[1].replace(".", "-") for line in some] for some in slices] == [
            [one] for one in got
        ]
        assert slices[0] != slices[1], "each has a device of its own"


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


def test_a_hundred_pods_race(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """For ten slices of three kinds: no device has two claims, losers take their next choice, all get their turn."""
    cluster = control_plane
    kinds = {"3g.30gb": 2, "2g.20gb": 3, "1g.10gb": 5}
    with dra_node(cluster, "racing", **kinds), bridge(cluster, namespace, tmp_path):
        for number in range(100):
            cluster.api.create(pods_path(namespace), asks(f"p{number:03}", TYPES[number % 3]))
        seen: Counter[str] = Counter()
        while sum(seen.values()) < 100:
            placed = cluster.wait(
                lambda: (
                    found
                    if len(found := bound(cluster, namespace)) >= min(10, 100 - sum(seen.values()))
                    else None
                ),
                what="every slice taken",
            )
            devices = held(cluster, namespace)
            assert len(devices) == len(set(devices)) <= 10
            got = given(cluster, namespace)
            for name in placed:
                seen.update(got[name])
                cluster.api.delete(f"{pods_path(namespace)}/{name}", gracePeriodSeconds="0")
        assert sum(seen.values()) == 100
        assert set(seen) == {one.replace(".", "-") for one in kinds}, "every kind was of use"


def test_controllers_of_pods(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """A Deployment of five and a Job are bridged as their pods come; a namespace that opted out keeps its requests."""
    cluster = control_plane
    with dra_node(cluster, "owning", **{"2g.20gb": 2, "1g.10gb": 4}), bridge(cluster, namespace, tmp_path):
        spec = asks("x", "2g.20gb")["spec"]
        labels = {"app": "five"}
        template = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}}
        deployment = {
            "metadata": {"name": "five"},
            "spec": {"replicas": 5, "selector": {"matchLabels": labels}, "template": template},
        }
        cluster.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
        job = {"metadata": {"name": "one"}, "spec": {"template": {"spec": spec}}}
        cluster.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job)
        cluster.wait(lambda: len(bound(cluster, namespace)) == 6 or None, what="six pods with a node")
        got = Counter(one for some in given(cluster, namespace).values() for one in some)
        assert got == {"2g-20gb": 2, "1g-10gb": 4}
        templates = cluster.api.get(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaimtemplates")["items"]
        assert len(templates) == 1, "pods that ask the same share a template"

        with cluster.namespace("opted-out") as other:
            cluster.api.patch(
                f"/api/v1/namespaces/{other}", {"metadata": {"annotations": {DRA: "extended-resources"}}}
            )
            cluster.wait(lambda: not is_bridged(admitted(cluster, other)) or None, what="no claim there")
            cluster.api.create(pods_path(other), asks("p", "2g.20gb"))
            pod = cluster.api.get(f"{pods_path(other)}/p")
            assert pod["spec"]["containers"][0]["resources"]["limits"] == {f"{MIG}2g.20gb": "1"}


def test_quota(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """A claim is charged for each of its alternatives; without room for them the request stays; beyond it, it is refused."""
    cluster = control_plane
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    hard = {
        f"requests.{MIG}2g.20gb": "2",
        f"requests.{MIG}1g.10gb": "1",
        "tessera-any.deviceclass.resource.k8s.io/devices": "0",
    }
    with dra_node(cluster, "counted", **{"2g.20gb": 4, "1g.10gb": 4}), bridge(cluster, namespace, tmp_path):
        cluster.api.create(path, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})

        def used(two: str, one: str) -> None:
            expected = dict(zip(hard, (two, one, "0"), strict=True))
            cluster.wait_for(path, "gpus", lambda quota: quota.get("status", {}).get("used") == expected)

        used("0", "0")
        cluster.wait(
            lambda: "bridge-2g.20gb" in str((admitted(cluster, namespace) or {}).get("metadata")) or None,
            what="each type claimed by its own class",
        )
        run(cluster, namespace, asks("first", "2g.20gb"))
        used("1", "1")
        cluster.wait(
            lambda: not is_bridged(admitted(cluster, namespace)) or None, what="no room for alternatives"
        )
        run(cluster, namespace, asks("second", "2g.20gb"))
        used("2", "1")
        with pytest.raises(ApiError, match="exceeded quota"):
            cluster.api.create(pods_path(namespace), asks("third", "2g.20gb"))
        # The general class is no side door.
        aside = json.loads(dra.pod("aside", limits={"deviceclass.resource.kubernetes.io/tessera-any": 1}))
        cluster.api.create(pods_path(namespace), aside)
        cluster.wait_for_pod(
            "aside",
            lambda pod: "exceeded quota: gpus" in condition_of(pod, "PodScheduled").get("message", ""),
            namespace=namespace,
        )
        assert sorted(bound(cluster, namespace)) == ["first", "second"]


def test_faults(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """The controller is killed, a template is deleted by hand, a class changes under pods that wait: all get their device."""
    cluster = control_plane
    templates = f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaimtemplates"
    with (
        dra_node(cluster, "faulty", **{"2g.20gb": 1, "1g.10gb": 1}),
        bridge(cluster, namespace, tmp_path) as work,
    ):
        # Killed: a pod that came just before waits for its template, those that come later are left as they are.
        work.controller.process.send_signal(signal.SIGSTOP)
        cluster.api.create(pods_path(namespace), asks("before", "2g.20gb"))
        assert is_bridged(cluster.api.get(f"{pods_path(namespace)}/before"))
        work.controller.kill()
        cluster.wait(
            lambda: ((found := admitted(cluster, namespace)) is not None and not is_bridged(found)) or None,
            what="requests left as they are, since the Lease has run out",
        )
        assert cluster.api.get(templates)["items"] == []
        work.restart_controller()
        cluster.wait_for_pod_bound("before", namespace=namespace)
        cluster.wait(
            lambda: is_bridged(admitted(cluster, namespace)) or None, what="requests become claims again"
        )

        # Deleted by hand: there again for the pod that waits for it.
        [template] = cluster.api.get(templates)["items"]
        cluster.api.delete(f"{templates}/{template['metadata']['name']}")
        cluster.api.create(pods_path(namespace), asks("after", "2g.20gb"))
        cluster.wait_for_pod_bound("after", namespace=namespace)
        assert sorted(given(cluster, namespace).values()) == [["1g-10gb"], ["2g-20gb"]]

        # A class changes under a pod that waits: the claim says what it wants in its own words, and gets it.
        cluster.api.create(pods_path(namespace), asks("waiting", "2g.20gb"))
        cluster.wait_for_pod_unschedulable("waiting", namespace=namespace)
        nothing = {"selectors": [{"cel": {"expression": f"device.driver == '{dra.DRIVER}' && false"}}]}
        cluster.api.patch(f"{dra.CLASSES}/bridge-2g.20gb", {"spec": nothing})
        cluster.api.delete(f"{pods_path(namespace)}/after", gracePeriodSeconds="0")
        cluster.wait_for_pod_bound("waiting", namespace=namespace)
        assert given(cluster, namespace)["waiting"] == ["1g-10gb"]
