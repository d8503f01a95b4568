"""Pods made to keep the webhook busy, or to fill its memory: everything about them is bounded (fault 43)."""

import asyncio
import json
import sys
import tracemalloc
from collections.abc import Callable
from functools import cache, partial
from types import FrameType
from typing import Any

import pytest
from stress import hostile
from stress.hostile import CONFIG, CORPUS, WORKLOADS, asks, body, container, expression, required

from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.scheduling import Taint
from tessera.kube.view.files import FileView
from tessera.protocol.configuration import webhook as config
from tessera.webhook import process
from tessera.webhook.endpoint import Admission, Endpoint
from tests.build import MIG, amounts

# Lines of Python that one decision may execute: some 0.05 µs each, and 15 ms in all.
MOST_LINES = 300_000
NODES = 1000


@pytest.fixture(scope="module")
def cluster() -> Offers:
    return hostile.cluster(NODES)


@cache
def hostile_pod(name: str) -> bytes:
    """A review of the corpus; all of them are 35 MiB."""
    return CORPUS[name]()


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of Python a call executes: the same on a quiet and on a busy machine."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", CORPUS)
def test_fault_43_a_hostile_pod_costs_little(name):
    """Whatever a pod is made of, deciding about it is bounded work, and memory in proportion to its size.

    Also the first time, when nothing is known about the nodes' labels yet.
    """
    octets = hostile_pod(name)
    handler = hostile.endpoint(Admission(hostile.cluster(NODES), config.parse(CONFIG).policy))
    statuses: list[int] = []
    tracemalloc.start()
    try:
        assert lines_of(lambda: statuses.append(handler.handle(octets).status)) < MOST_LINES
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert statuses[0] in (200, 400)
    assert peak < 5 * len(octets) + 3 * 2**20


@pytest.mark.parametrize("name", CORPUS)
def test_fault_43_a_hostile_pod_costs_little_with_claims(name):
    """The same where requests become claims, and all that could stand for what is asked is looked at."""
    octets = hostile_pod(name)
    policy = config.parse("fallback: {dra: first-available}\n" + CONFIG).policy
    handler = hostile.endpoint(Admission(hostile.cluster(NODES, dra=True), policy))
    assert lines_of(lambda: handler.handle(octets)) < MOST_LINES


@pytest.mark.parametrize("name", WORKLOADS)
def test_fault_43_a_hostile_workload_costs_little(name, cluster):
    """A workload is at most as much work as ten pods."""
    octets = WORKLOADS[name]()
    handler = hostile.endpoint(Admission(cluster, config.parse(CONFIG).policy))
    tracemalloc.start()
    try:
        assert handler.handle(octets).status == 200
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(octets) + 8 * 2**20
    assert lines_of(lambda: handler.handle(octets)) < 10 * MOST_LINES


def at(count: int, spec: Callable[[int], dict[str, Any]]) -> str:
    """The only warning of the verdict on a pod of this size, without a node to compare it with."""
    response = json.loads(hostile.endpoint(Admission(Offers(), config.parse("fallback: {enabled: false}").policy)).handle(
        body(spec(count))).body)["response"]  # fmt: skip
    assert response["allowed"] is True
    (warning,) = [one for one in response.get("warnings", ()) if "looked at" in one] or [""]
    return str(warning)


def requesting(count: int) -> dict[str, Any]:
    """A container that requests so many resources."""
    return {"resources": {"requests": {f"a.b/r{number}": 1 for number in range(count)}}}


@pytest.mark.parametrize(
    ("most", "what", "spec"),
    [
        (200, "containers", lambda n: {"containers": [container(i) for i in range(n)]}),
        (200, "containers", lambda n: {"initContainers": [{}] * (n - 1), "containers": asks()}),
        (64, "different resources", lambda n: {"containers": [container(0, {f"a.b/r{i}": 1 for i in range(n)})]}),
        (
            1000,
            "requests and limits",
            lambda n: {"containers": [requesting(5)] * 199 + [requesting(n - 5 * 199)]},
        ),
        (200, "tolerations", lambda n: {"containers": asks(), "tolerations": [{"key": "a"}] * n}),
        (500, "terms of node affinity", lambda n: {"containers": asks(), "affinity": required(*[{}] * n)}),
        (
            5000,
            "values of node affinity",
            lambda n: {
                "containers": asks(),
                "affinity": required({"matchExpressions": [expression("a", "In", *["v"] * (n - 1))]}),
            },
        ),
        (16, "labels of nodes", lambda n: {"containers": asks(), "nodeSelector": {f"k{i}": "v" for i in range(n)}}),
    ],
)  # fmt: skip
def test_fault_43_limits(most, what, spec):
    """A pod at a limit is decided about; with one more of it, one sentence says so."""
    assert at(most, spec) == ""
    assert at(most + 1, spec) == (
        f"GPU requests were not looked at: the pod has {most + 1:,} {what}, and the webhook looks at no more than {most:,}"
    )


def test_fault_43_the_operator_chooses_the_verdict(cluster):
    """`server.onError` decides about a pod beyond the limits; a counter shows it."""
    handler = hostile.endpoint(Admission(cluster, config.parse("").policy))
    octets = hostile_pod("4,000 GPU containers, injected")
    assert json.loads(handler.handle(octets).body)["response"]["allowed"] is True
    handler.configure(config.parse("server: {onError: deny}"))
    response = json.loads(handler.handle(octets).body)["response"]
    assert response["allowed"] is False
    assert response["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": "GPU requests could not be looked at: the pod has 4,000 containers, and the webhook looks at no more than 200",
    }
    assert b"gpu_webhook_beyond_limits_total 2\n" in handler._metrics.text()


def answer_for_many_containers(text: str) -> dict[str, Any]:
    """Of 200 containers with three profiles, at nodes with room for them, and little for what injection adds."""
    offers = Offers(
        Node(f"n{number}", allocatable=amounts({"1g.10gb": 400, "1g.20gb": 400, "cpu": 1}))
        for number in range(3)
    )
    profiles = ("1g.5gb", "2g.20gb", "3g.40gb")
    containers = [container(n, {MIG + profiles[n % 3]: 2}) for n in range(200)]
    handler = hostile.endpoint(Admission(offers, config.parse(text).policy))
    answer = json.loads(handler.handle(body({"containers": containers}, hostile.V100)).body)
    return dict(answer["response"])


def test_fault_43_too_many_comparisons():
    """A pod whose injection must be computed container by container, for many choices, is given up after so many steps."""
    half = CONFIG.replace(
        "rdma/hca, coefficient: 1", "rdma/hca, coefficient: 0.5"
    )  # of which sums say nothing
    assert answer_for_many_containers(half)["warnings"] == [
        "GPU requests were not looked at: comparing the pod with the nodes takes more than 50,000 steps"
    ]


def test_fault_43_many_containers_of_several_profiles_are_decided():
    """What injection adds to 200 containers is known from sums, choice by choice: the pod gets what no rule asks too much for."""
    audit = answer_for_many_containers(CONFIG)["auditAnnotations"]
    assert audit["fallback"] == "1g.5gb->1g.20gb,2g.20gb->1g.20gb,3g.40gb->1g.20gb"


def test_tolerations_and_taints_are_matched_by_their_keys():
    """Hundreds of tolerations at nodes with hundreds of different taints: the pod is decided, by the one taint that it tolerates."""
    offers = Offers(
        Node(f"n{number}", taints=(Taint("dedicated", f"x{number}"),), allocatable=amounts({"1g.20gb": 1}))
        for number in range(300)
    )
    handler = hostile.endpoint(Admission(offers, config.parse("").policy))
    for last, allowed in (("x299", True), ("x300", False)):
        values = [*(f"v{n}" for n in range(199)), last]
        tolerations = [{"key": "dedicated", "operator": "Equal", "value": one} for one in values]
        octets = body({"containers": asks(), "tolerations": tolerations})
        assert lines_of(partial(handler.handle, octets)) < 10_000
        assert json.loads(handler.handle(octets).body)["response"]["allowed"] is allowed


def _answer(handler: Endpoint, octets: bytes, answers: list[bytes]) -> None:
    answers.append(handler.handle(octets).body)


@pytest.mark.parametrize("dra", [False, True])
def test_fault_43_no_pod_passes_undecided_where_nodes_differ(dra):
    """5,000 nodes, all different: what is within the limits of pods is decided, and takes no more work than where nodes are alike."""
    offers = hostile.prepared(hostile.different(5000, dra=dra))
    handler = hostile.endpoint(Admission(offers, config.parse(CONFIG).policy))
    eights = {f"eight({seed})": hostile.eight(seed) for seed in range(20)}
    for name, octets in ({name: hostile_pod(name) for name in CORPUS} | eights).items():
        answers: list[bytes] = []
        assert lines_of(partial(_answer, handler, octets, answers)) < MOST_LINES, name
        response = json.loads(answers[0]).get("response", {})
        assert not [one for one in response.get("warnings", []) if "takes more than" in one], name
        if "8 profiles" in name or "eight" in name:
            assert "too many" not in response.get("status", {}).get("message", ""), name


def test_the_work_of_a_decision_does_not_grow_with_nodes_that_differ():
    """An ordinary pod executes the same lines at 3,000 different nodes as at 300, but for a few."""
    lines = []
    for nodes in (300, 3000):
        handler = hostile.endpoint(Admission(hostile.different(nodes), config.parse("").policy))
        octets = body({"containers": [container(0, {MIG + "3g.30gb": "1", "cpu": "4", "memory": "16Gi"})]})
        lines.append(lines_of(partial(handler.handle, octets)))
    assert lines[1] < lines[0] + 50


def test_ordinary_pods_are_far_from_the_limits():
    """Selectors, affinity by host name and needs in between do not exhaust the work at 5,000 nodes."""
    admission = Admission(hostile.cluster(5000), config.parse("").policy)
    for spec in (
        {"containers": asks(), "nodeSelector": {"zone": "a"}},
        {
            "containers": asks(),
            "affinity": required({"matchExpressions": [expression(hostile.HOST, "NotIn", "n1", "n2")]}),
            "tolerations": [{"operator": "Exists"}],
        },
        {"containers": [container(0, {MIG + "2g.20gb": "1", "cpu": "62", "memory": "1Gi"})]},
    ):
        answer = json.loads(admission.answer(body(spec)))["response"]
        assert answer["auditAnnotations"] == {"fallback": "2g.20gb->1g.20gb"}


def test_fault_43_junk_profiles_take_no_series():
    """Profiles that no card has are counted together, so that those that exist keep series of their own."""
    admission = Admission(hostile.cluster(10), config.parse("").policy)
    handler = hostile.endpoint(admission)
    for profile in hostile.profiles(300):
        handler.handle(body({"containers": asks(profile)}))
    handler.handle(body({"containers": asks("2g.20gb")}))
    counted = [
        line
        for line in handler._metrics.text().decode().splitlines()
        if line.startswith("gpu_webhook_fallback_total{")
    ]
    assert 'gpu_webhook_fallback_total{from="2g.20gb",to="1g.20gb"} 1' in counted
    assert len(counted) < 30


def labelled(nodes, keys):
    """Nodes with labels that differ on each of them."""
    for number in range(nodes):
        yield Node(
            f"n{number}",
            {f"k{key}": f"v{number}-{key}" for key in range(keys)},
            allocatable=amounts({"1g.20gb": 1}),
        )


def test_fault_43_columns_of_labels_are_bounded_in_bytes(monkeypatch):
    """Pods that look at every label leave little behind, also when the cluster grows afterwards; labels that no node has, nothing."""
    monkeypatch.setattr("tessera.core.admission.view.labels._MOST_BYTES", 500_000)
    offers = Offers(labelled(300, 40))
    admission = Admission(offers, config.parse("").policy)
    for number in range(40):
        admission.answer(body({"containers": asks(), "nodeSelector": {f"k{number}": "v"}}))
    full = offers.label_bytes
    assert 250_000 < full <= 500_000
    for number in range(100):
        admission.answer(body({"containers": asks(), "nodeSelector": {f"{number}" * 100: "v"}}))
    assert offers.label_bytes == full
    for node in labelled(900, 40):
        offers.put(node)
    assert 0 < offers.label_bytes <= 500_000


@pytest.mark.parametrize("value", ["v{0}", "v{1}", "v{2}", "{0}"])
def test_columns_of_labels_are_as_large_as_they_say(value):
    """The bytes that columns report are those that they take, whether nodes share values or not, and whether they are numbers."""
    offers = Offers(
        Node(
            f"n{number}",
            {f"k{key}": value.format(number, number // 4, number % 500) for key in range(8)},
            allocatable=amounts({"1g.20gb": 1}),
        )
        for number in range(2000)
    )
    tracemalloc.start()
    for key in range(8):
        offers.for_pod(Pod(node_selector={f"k{key}": "v"}))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 * taken < offers.label_bytes < 1.4 * taken


def test_the_webhook_makes_label_columns_before_pods_ask(tmp_path, monkeypatch):
    """Once the view is complete, the process makes the columns of labels, so that no decision has to."""
    monkeypatch.setattr("gc.freeze", lambda: None)
    labels = {"zone": "a", "size": "7"}
    nodes = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": labels},
        "status": {"allocatable": {MIG + "1g.20gb": "1"}},
    }
    (tmp_path / "nodes.json").write_text(json.dumps(nodes))
    view = FileView([tmp_path / "nodes.json"])
    assert not view.offers.label_bytes
    asyncio.run(process._prepare_when_complete(view))
    assert view.offers._labels._columns.keys() == labels.keys()
