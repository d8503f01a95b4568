"""The bridge: pods that ask for a profile as ever, and a scheduler that falls back by what is free."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from e2e import dra
from e2e.bridge import (
    DRA,
    MIG,
    NAMESPACE,
    RECORD,
    TYPES,
    admitted,
    asks,
    bound,
    bridge,
    dra_node,
    given,
    held,
    is_bridged,
    pods_of,
)
from e2e.cluster import ApiError, Client, ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.cluster.client import condition_of
from e2e.command import tessera
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, CLAIM, template_name
from tessera.core.requests.tickets import TICKET_ANNOTATION


def one_of(cluster: ClusterWithNode, namespace: str, manifests: list[Object]) -> list[str]:
    """Those of these pods that get a node, as soon as any does."""
    dra.remove_pods(cluster, namespace)
    run(cluster, namespace, *manifests)
    return cluster.wait(lambda: bound(cluster, namespace) or None, what="one with a node")


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


def tools_see(cluster: ClusterWithNode, namespace: str) -> None:
    """What the tools say of p0 on the 2g, p1 and p2 on 1g, and p3, which waits."""
    kubeconfig, node = f"--kubeconfig={cluster.kubeconfig}", cluster.node_name
    counted = tessera("capacity", "--pods", "-n", namespace, "-o", "csv", "--no-headers", kubeconfig)
    assert counted.stdout.splitlines() == [
        f"{namespace},p0,{node},{MIG}2g.20gb,1,holds",
        f"{namespace},p1,{node},{MIG}1g.10gb,1,holds",
        f"{namespace},p2,{node},{MIG}1g.10gb,1,holds",
        f"{namespace},p3,,{MIG}2g.20gb,1,waits",
    ], counted.stderr
    shown = tessera("mig", "show", "--cluster", node, kubeconfig)
    assert shown.stdout.count("in use") == 3, shown.stdout + shown.stderr
    why = tessera("why", "p3", "-n", namespace, kubeconfig)
    wanted = f"pod {namespace}/p3 waits: 1 × 2g.20gb, else 1 × 1g.10gb is taken on node {node} "
    assert why.stdout.startswith(wanted), why.stdout + why.stderr
    planned = tessera("mig", "plan", kubeconfig)
    assert "× 2g.20gb" in planned.stderr, planned.stdout + planned.stderr


def test_the_scheduler_falls_back(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """One 2g, two 1g, four unchanged pods for 2g: 2g, 1g, 1g, Pending. The first goes, and the fourth has the 2g.

    With `never` one runs and three wait; with at least 20Gi likewise. Two containers with two profiles have one each.
    """
    cluster, namespace = cluster_with_node, node_namespace
    cluster.forget_devices()
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
        tools_see(cluster, namespace)
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


def everyone_says_that_the_controller_is_gone(cluster: Client, namespace: str) -> None:
    """Of the pod `before`, which waits for its template: `why` and the doctor say since when; a new pod's author is warned."""
    kubeconfig, gone = f"--kubeconfig={cluster.kubeconfig}", "tessera controller has been unavailable for "
    lease = f"its Lease {NAMESPACE}/tessera-controller has not been renewed by "
    why = tessera("why", "before", "-n", namespace, "--tessera-namespace", NAMESPACE, kubeconfig)
    answer = why.stdout.partition("\n")[0]
    assert answer.startswith(
        f"pod {namespace}/before waits: its resource claim {CLAIM} is not there: {gone}"
    ), why
    assert lease in answer
    assert "tessera controller runs again" in why.stdout
    checked = tessera(
        "doctor", "--check=controller", "--tessera-namespace", NAMESPACE, "-o", "json", kubeconfig
    )
    first, *_ = json.loads(checked.stdout)[0]["findings"]
    assert (checked.returncode, first["severity"], first["text"].startswith(gone)) == (3, "problem", True), (
        first
    )
    asked = json.dumps(asks("late", "2g.20gb"))
    warned = cluster.try_kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=asked).stderr
    assert "Warning: GPU request is not a claim: tessera controller does not renew its Lease" in warned


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
        everyone_says_that_the_controller_is_gone(cluster, namespace)
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


def test_forged_by_hand(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """A user who may create pods, and no claims, writes the alternatives by hand: the pod gets no template, and an Event.

    Nor with the ticket of another pod: from another namespace, or for other alternatives. A pod of the webhook's gets its own.
    """
    cluster = control_plane
    templates = f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaimtemplates"
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {f"requests.{MIG}2g.20gb": "0"}}}
    with (
        dra_node(cluster, "guarded", **{"2g.20gb": 1, "1g.10gb": 1}),
        bridge(cluster, namespace, tmp_path) as work,
        cluster.namespace("elsewhere") as elsewhere,
    ):
        cluster.wait(lambda: is_bridged(admitted(cluster, elsewhere)) or None, what="bridged elsewhere, too")
        cluster.api.create(pods_path(elsewhere), asks("right", "2g.20gb"))
        cluster.wait_for_pod_bound("right", namespace=elsewhere)
        right = cluster.api.get(f"{pods_path(elsewhere)}/right")["metadata"]["annotations"]
        cluster.api.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
        texts = {
            "by-hand": ("1*1g.10gb=2g.20gb/tessera-any", {}),
            "admins-only": ("1*1g.10gb=1g.10gb/admins-only", {}),
            "copied": (right[ALTERNATIVES_ANNOTATION], {TICKET_ANNOTATION: right[TICKET_ANNOTATION]}),
            "other-text": ("1*2g.20gb=2g.20gb/tessera-any", {TICKET_ANNOTATION: right[TICKET_ANNOTATION]}),
        }
        for name, (text, ticket) in texts.items():
            cluster.api.create(pods_path(namespace), forged(name, text, ticket))

        def told() -> set[str]:
            events = cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
            return {
                event["involvedObject"]["name"]
                for event in events
                if event["reason"] == "GPUClaimTemplate"
                and "makes no ResourceClaimTemplate" in event["message"]
            }

        cluster.wait(lambda: told() == set(texts) or None, what="an Event for each forged pod")
        assert cluster.api.get(templates)["items"] == [], work.controller.log.read_text()
        assert bound(cluster, namespace) == []


def forged(name: str, text: str, annotations: Object) -> Object:
    """A pod as the webhook would leave it, written by hand."""
    body: Object = json.loads(dra.pod(name))
    first = body["spec"]["containers"][0]
    first["resources"] = {"claims": [{"name": CLAIM, "request": "gpu-0"}]}
    body["spec"]["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template_name(text)}]
    body["metadata"]["annotations"] = {ALTERNATIVES_ANNOTATION: text, **annotations}
    return body
