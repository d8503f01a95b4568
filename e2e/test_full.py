"""Fallback by what is free (`fallback.when: full`) on a real control plane: thirty pods at once for eight slices of what they ask for.

The nodes are objects. The real scheduler binds pods to them, and nothing runs there: a pod that is bound has its slice.
"""

import contextlib
import datetime as dt
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.bridge import rights
from e2e.cluster import ApiError, Client, pods_path
from e2e.cluster.api import Object
from e2e.command import account_kubeconfig
from e2e.replicas import Replicas
from e2e.test_patience import MARK, ONE, SLICES, TWO, asks, pods, start, template, waits, workload
from e2e.webhook import Webhook, registered
from tessera.protocol import yaml

DEPLOYED = Path(__file__).parents[1] / "deploy" / "tessera.yaml"
NODES = [f"full-{number}" for number in range(4)]
EACH = {ONE: 5, TWO: 2}  # of a node: eight and twenty together
ALL = {resource: number * len(NODES) for resource, number in EACH.items()}
PODS = 30
WHEN, MIN_MEMORY = "gpu-webhook.k8s.io/fallback-when", "gpu-webhook.k8s.io/min-memory"
FULL = {"fallback": {"when": "full", "patience": "3s"}}


@dataclass
class World:
    """Three webhooks under `full` behind one address."""

    cluster: Client
    folder: Path
    webhooks: list[Webhook]
    address: Replicas

    def webhook(self, name: str, *options: str) -> Webhook:
        """One more of them; nobody is led there yet."""
        authority = self.webhooks[0].authority
        return Webhook(
            self.cluster,
            self.folder / name,
            *options,
            config=json.dumps(FULL),
            name=name,
            authority=authority,
        )


@pytest.fixture(scope="module")
def world(control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("full")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Webhook(control_plane, folder / "webhook", config=json.dumps(FULL)))
        found = World(control_plane, folder, [first], stack.enter_context(Replicas(first)))
        found.webhooks += [stack.enter_context(found.webhook(name)) for name in ("second", "third")]
        found.address.use(*found.webhooks)
        stack.enter_context(registered(control_plane, found.address, failurePolicy="Fail"))
        yield found


@pytest.fixture
def slices(control_plane: Client) -> Iterator[None]:
    """Eight slices of 2g and twenty of 1g, on four nodes."""
    for name in NODES:
        control_plane.add_node(name, allocatable=EACH)
    yield
    for name in NODES:
        control_plane.remove_node(name)


def asking(name: str, resource: str = TWO, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": template(resource, **spec)["spec"],
    }


def at_once(
    cluster: Client, path: str, bodies: Sequence[Object], after: Callable[[int], None] = lambda _: None
) -> list[str]:
    """Create all of them at the same moment; what the API server said no with. `after` is told how many there are, after each."""
    refused: list[str] = []
    together, done = threading.Barrier(len(bodies)), threading.Semaphore(0)

    def create(body: Object) -> None:
        cluster.api.text("/version")  # a connection is there
        together.wait(60)
        try:
            cluster.api.create(path, body)
        except ApiError as error:
            refused.append(str(error))
        done.release()

    with ThreadPoolExecutor(len(bodies)) as threads:
        results = [threads.submit(create, body) for body in bodies]
        for number in range(len(bodies)):
            assert done.acquire(timeout=60)
            after(number + 1)
    for one in results:
        one.result()
    return refused


def settled(cluster: Client, namespace: str, number: int = PODS) -> dict[tuple[str, bool], int]:
    """How many pods there are of each resource, bound or not, when the scheduler has judged all of them."""

    def judged() -> list[Object] | None:
        found = list(pods(cluster, namespace).values())
        every = len(found) == number and all(one["spec"].get("nodeName") or waits(one) for one in found)
        return found if every else None

    found = cluster.wait(judged, what=f"the scheduler's word on {number} pods")
    bound = Counter((one["spec"]["nodeName"], asks(one)) for one in found if one["spec"].get("nodeName"))
    assert all(held <= EACH[resource] for (_, resource), held in bound.items()), bound
    return Counter((asks(one), bool(one["spec"].get("nodeName"))) for one in found)


def decisions(webhooks: Sequence[Webhook], namespace: str) -> list[list[Object]]:
    """What each webhook said of the pods of a namespace, in its log."""
    return [
        [line for line in one.lines() if line.get("namespace") == namespace and "decision" in line]
        for one in webhooks
    ]


def decided(webhooks: Sequence[Webhook], namespace: str) -> list[Counter[str]]:
    """How many pods each webhook left as they are, changed and rejected."""
    return [Counter(str(line["decision"]) for line in each) for each in decisions(webhooks, namespace)]


def all_decided(cluster: Client, webhooks: Sequence[Webhook], namespace: str) -> list[Counter[str]]:
    """The same, when the logs have every pod: a webhook writes its log a moment after it has answered."""

    def logged() -> list[Counter[str]] | None:
        found = decided(webhooks, namespace)
        return found if sum(one.total() for one in found) >= PODS else None

    return cluster.wait(logged, what=f"{PODS} decisions in the logs")


def known_to_be_taken(webhooks: Sequence[Webhook], namespace: str) -> list[Object]:
    """Replacements by which a webhook gave more than all 1g, with its own and with those that others gave a second before."""
    given = [
        (dt.datetime.fromisoformat(line["time"]), number, line)
        for number, each in enumerate(decisions(webhooks, namespace))
        for line in each
        if line["decision"] == "patched"
    ]
    given.sort(key=lambda one: one[0])
    second = dt.timedelta(seconds=1)
    return [
        line
        for place, (at, number, line) in enumerate(given)
        if sum(other == number or before < at - second for before, other, _ in given[:place]) >= ALL[ONE]
    ]


def burst(annotations: dict[str, str] | None = None) -> list[Object]:
    """Thirty pods that ask for 2g; two of them take nothing smaller."""
    made = [asking(f"p{number}", annotations=annotations) for number in range(PODS)]
    for pod in made[:20:10]:
        pod["metadata"]["annotations"] = {**(annotations or {}), MIN_MEMORY: "20Gi"}
    return made


def smaller_for_a_minimum(cluster: Client, namespace: str) -> list[str]:
    """The pods with a minimum that got less."""
    return [
        one["metadata"]["name"]
        for one in pods(cluster, namespace).values()
        if MIN_MEMORY in one["metadata"]["annotations"] and asks(one) == ONE
    ]


def test_one_replica_gives_what_is_free(world: World, namespace: str, slices: None) -> None:
    """8 pods have the 2g that they asked for, 20 have a 1g, and 2 wait as they asked; none that has a minimum got less."""
    world.address.use(world.webhooks[0])
    assert at_once(world.cluster, pods_path(namespace), burst()) == []
    assert settled(world.cluster, namespace) == {(TWO, True): 8, (ONE, True): 20, (TWO, False): 2}
    assert smaller_for_a_minimum(world.cluster, namespace) == []
    each = all_decided(world.cluster, world.webhooks, namespace)
    assert each == [Counter(patched=20, unchanged=10), Counter(), Counter()]
    assert all(MARK in one["metadata"]["annotations"] for one in pods(world.cluster, namespace).values())


def test_three_replicas_give_nothing_that_they_know_is_taken(
    world: World, namespace: str, slices: None
) -> None:
    """Each knows the others' pods a moment later: some wait that could have had a 1g. None is rejected, and none waits for a 1g beside a free one."""
    world.address.use(*world.webhooks)
    assert at_once(world.cluster, pods_path(namespace), burst()) == []
    found = settled(world.cluster, namespace)
    each = all_decided(world.cluster, world.webhooks, namespace)
    print(found, each)
    replaced = found[ONE, True] + found[ONE, False]
    assert found[TWO, True] == ALL[TWO]
    assert found[ONE, True] == min(replaced, ALL[ONE])
    assert known_to_be_taken(world.webhooks, namespace) == []
    assert smaller_for_a_minimum(world.cluster, namespace) == []
    assert all(each), "each of them decided"
    assert sum(each, Counter()) == {"patched": replaced, "unchanged": PODS - replaced}


def test_missing_lets_them_wait(world: World, namespace: str, slices: None) -> None:
    """With `missing`: 8 have what they asked for, and 22 wait beside twenty free slices of 1g."""
    world.address.use(*world.webhooks)
    assert at_once(world.cluster, pods_path(namespace), burst({WHEN: "missing"})) == []
    assert settled(world.cluster, namespace) == {(TWO, True): 8, (TWO, False): 22}


def test_with_patience_all_slices_are_used(world: World, namespace: str, slices: None) -> None:
    """Through three replicas some wait beside free slices. With the controller 28 are bound in the end, and nobody was touched who was bound."""
    cluster = world.cluster
    world.address.use(*world.webhooks)
    made = [asking(f"p{number}") for number in range(PODS)]
    for number, pod in enumerate(made):
        pod["metadata"]["labels"] = {"app": f"w{number}"}
    assert at_once(cluster, pods_path(namespace), made) == []
    sets = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
    labels = {"kubernetes.io/service-name": "gpu-webhook"}
    endpoints = [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}}]
    seen = {"metadata": {"name": "e2e", "labels": labels}, "addressType": "IPv4", "endpoints": endpoints}
    with contextlib.ExitStack() as stack:
        # before their pods, or they make them again
        stack.callback(cluster.api.delete, sets, propagationPolicy="Background")
        for number in range(PODS):  # each adopts a pod
            cluster.api.create(sets, workload(f"w{number}", 1))
        print(settled(cluster, namespace))
        before = {uid for uid, one in pods(cluster, namespace).items() if one["spec"].get("nodeName")}
        assert ALL[TWO] < len(before) < sum(ALL.values()), "there is something to do"
        stack.enter_context(rights(cluster, world.folder, config=FULL))
        cluster.api.create(SLICES, seen)
        stack.callback(cluster.api.delete, f"{SLICES}/e2e")
        stack.enter_context(start(world.folder, "controller", evictions=100))

        def bound() -> list[str] | None:
            found = [uid for uid, one in pods(cluster, namespace).items() if one["spec"].get("nodeName")]
            return found if len(found) == sum(ALL.values()) else None

        assert before <= set(cluster.wait(bound, what="28 bound pods", timeout=60))
        found = settled(cluster, namespace)
        assert (found[TWO, True], found[ONE, True]) == (ALL[TWO], ALL[ONE])


def test_a_quota_holds(world: World, namespace: str, slices: None) -> None:
    """Of a namespace that may have five 1g, five pods get one at most. None is rejected for want of quota: the others wait as they asked."""
    quota = {"hard": {f"requests.{ONE}": 5, f"requests.{TWO}": PODS}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    world.cluster.api.create(path, {"metadata": {"name": "q"}, "spec": quota})
    world.cluster.wait_for(path, "q", lambda one: one["status"].get("used"))
    world.address.use(world.webhooks[0])
    assert at_once(world.cluster, pods_path(namespace), burst()) == []
    found = settled(world.cluster, namespace)
    assert found[TWO, True] == ALL[TWO]
    assert 1 <= found[ONE, True] <= 5
    assert found[ONE, False] == 0


def test_a_replica_is_replaced_in_the_middle(world: World, namespace: str, slices: None) -> None:
    """Ten pods while one of three goes; none is rejected. Its successor knows at once what they took: it gives the rest, to the last slice."""
    cluster, address = world.cluster, world.address
    path = pods_path(namespace)
    with world.webhook("leaves", "--shutdown-delay=1s") as leaves:
        address.use(leaves, *world.webhooks[1:])

        def go(number: int) -> None:
            if number == 5:
                address.lead_to(*world.webhooks[1:])
                leaves.process.terminate()

        assert at_once(cluster, path, [asking(f"p{number}") for number in range(15)], go) == []
        assert leaves.stop() == 0
    before = settled(cluster, namespace, 15)
    with world.webhook("comes") as comes:
        address.use(comes)
        assert at_once(cluster, path, [asking(f"q{number}") for number in range(15)]) == []
    address.use(*world.webhooks)
    found = settled(cluster, namespace)
    as_asked = before[TWO, True] + before[TWO, False]
    assert before[ONE, False] == found[ONE, False] == 0
    assert found[ONE, True] == min(ALL[ONE], before[ONE, True] + 15 - max(0, ALL[TWO] - as_asked))


@pytest.fixture
def small(control_plane: Client, world: World, namespace: str) -> Iterator[None]:
    """One node, whose 2g is taken and whose 1g is free; one webhook."""
    world.address.use(world.webhooks[0])
    control_plane.add_node("small", allocatable={ONE: 1, TWO: 1})
    control_plane.api.create(pods_path(namespace), asking("holds"))
    control_plane.wait_for_pod_bound("holds", namespace=namespace)
    control_plane.wait(lambda: would_get(control_plane, namespace) == ONE, what="the webhook seeing it")
    yield
    control_plane.remove_node("small")


def would_get(cluster: Client, namespace: str, annotations: dict[str, str] | None = None, **spec: Any) -> str:
    """What a pod that asks for 2g would get now: a dry run."""
    path = pods_path(namespace)
    return asks(cluster.api.create(path, asking("probe", annotations=annotations, **spec), dryRun="All"))


def test_dry_runs_and_observed_pods_keep_nothing(world: World, namespace: str, small: None) -> None:
    """Neither takes the one 1g that is free from the pod that is created after them."""
    cluster = world.cluster
    assert [would_get(cluster, namespace) for _ in range(5)] == [ONE] * 5
    with cluster.namespace(labels={"gpu-webhook": "observe"}) as watched:
        for number in range(3):
            made = cluster.api.create(pods_path(watched), asking(f"o{number}"))
            assert (asks(made), made["metadata"].get("annotations")) == (TWO, None)
        wanted = [Counter({"would be patched": 3})]
        cluster.wait(lambda: decided(world.webhooks[:1], watched) == wanted, what=f"{wanted} in the log")
        created = cluster.api.create(pods_path(namespace), asking("created"))
        assert asks(created) == ONE
        assert would_get(cluster, namespace) == TWO, "the last one is gone"
        cluster.wait_for_pod_bound("created", namespace=namespace)


def test_for_whom_what_is_free_does_not_matter(world: World, namespace: str, small: None) -> None:
    """Pods with gates, with a priority and with a minimum stay as they ask beside a free 1g; so do all while its node is cordoned."""
    cluster, node = world.cluster, "/api/v1/nodes/small"
    before = world.webhooks[0].metrics()
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    cluster.api.create(classes, {"metadata": {"name": "full-high"}, "value": 1000})
    try:
        ways = {
            "gated": would_get(cluster, namespace, schedulingGates=[{"name": "example.com/gate"}]),
            "priority": would_get(cluster, namespace, priorityClassName="full-high"),
            "minimum": would_get(cluster, namespace, {MIN_MEMORY: "20Gi"}),
            "missing": would_get(cluster, namespace, {WHEN: "missing"}),
            "none": would_get(cluster, namespace),
        }
    finally:
        cluster.api.delete(f"{classes}/full-high")
    assert ways == {**dict.fromkeys(ways, TWO), "none": ONE}
    after = world.webhooks[0].metrics()
    for way, number in {"gated": 1, "priority": 1, "full": 2}.items():
        assert counted(after, way) - counted(before, way) == number, way
    cluster.api.patch(node, {"spec": {"unschedulable": True}})
    cluster.wait(lambda: would_get(cluster, namespace) == TWO, what="nothing free on a cordoned node")
    cluster.api.patch(node, {"spec": {"unschedulable": None}})
    cluster.wait(lambda: would_get(cluster, namespace) == ONE, what="its 1g free again")


def counted(metrics: list[str], way: str) -> float:
    start = f'gpu_webhook_fallback_full_total{{way="{way}"}} '
    return sum(float(line.removeprefix(start)) for line in metrics if line.startswith(start))


def test_without_the_right_to_read_pods(world: World, namespace: str, small: None) -> None:
    """With the rights of the deployed manifest, which has none on pods: ready, as `missing`, and both metrics say so."""
    cluster = world.cluster
    documents = yaml.load_all(DEPLOYED.read_bytes(), str(DEPLOYED))
    rules = next(
        one["rules"]
        for one in documents
        if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "gpu-webhook")
    )
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterrole"
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "full-less"}
    name = {"metadata": {"name": "full-less"}}
    cluster.api.create(f"{roles}s", {**name, "rules": rules})
    cluster.api.create(f"{roles}bindings", {**name, "roleRef": reference, "subjects": [subject]})
    try:
        account = account_kubeconfig(cluster, namespace, world.folder)
        with world.webhook("less", f"--kubeconfig={account}") as less:
            world.address.use(less)
            assert would_get(cluster, namespace) == TWO
            assert less.ready()
            metrics = less.metrics()
            assert "gpu_webhook_free_view_known 0" in metrics
            assert counted(metrics, "no_view") == 1
            world.address.use(*world.webhooks)
    finally:
        cluster.api.delete(f"{roles}bindings/full-less")
        cluster.api.delete(f"{roles}s/full-less")


NEAR_NOBODY = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "nobody"}}}
        ]
    }
}


def test_faults_85_86_pods_that_wait_for_something_else(world: World, namespace: str) -> None:
    """Pods with a claim that does not exist, of which the scheduler says nothing, and pods with an affinity to nothing: half a minute later all 2g are free for others."""
    cluster = world.cluster
    world.address.use(world.webhooks[0])
    cluster.add_node("held", allocatable={ONE: 10, TWO: 2})
    try:
        with cluster.namespace() as bad:
            path = pods_path(bad)
            claims = [{"name": "x", "resourceClaimName": "none"}]
            for number in range(3):
                cluster.api.create(path, asking(f"claim-{number}", resourceClaims=claims))
            for number in range(3):
                cluster.api.create(path, asking(f"near-{number}", affinity=NEAR_NOBODY))
            cluster.wait(lambda: would_get(cluster, namespace) == ONE, what="the pods hold both 2g")
            found = pods(cluster, bad).values()
            silent = [one for one in found if one["metadata"]["name"].startswith("claim-")]
            assert [one["status"].get("conditions") for one in silent] == [None] * 3
            made = max(dt.datetime.fromisoformat(one["metadata"]["creationTimestamp"]) for one in silent)
            second = dt.timedelta(seconds=1)  # pods are made at whole seconds
            cluster.wait(lambda: dt.datetime.now(dt.UTC) > made + second, what="a later second")
            cluster.api.create(pods_path(namespace), asking("later", ONE))
            cluster.wait_for_pod_bound("later", namespace=namespace)
            cluster.wait(
                lambda: would_get(cluster, namespace) == TWO, what="both 2g free for others", timeout=90
            )
            wanted = [("in_reach", 3.0), ("silent", 3.0)]
            cluster.wait(
                lambda: [*blocked(world.webhooks[0])] == wanted, what="all of them counted", timeout=60
            )
            for name in ("one", "two"):
                assert asks(cluster.api.create(pods_path(namespace), asking(name))) == TWO
                cluster.wait_for_pod_bound(name, namespace=namespace)
    finally:
        cluster.remove_node("held")


def blocked(webhook: Webhook) -> Iterator[tuple[str, float]]:
    """How many pods wait for something else, by why."""
    name = "gpu_webhook_free_view_blocked_pods"
    for reason in ("in_reach", "silent"):
        for line in webhook.metrics():
            if line.startswith(f'{name}{{reason="{reason}"}} '):
                yield reason, float(line.rpartition(" ")[2])
