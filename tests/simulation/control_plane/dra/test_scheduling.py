"""Claims in the stand-in scheduler: which node, which devices, and why a pod has to wait."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.dra.slices import DRIVER
from tessera.simulation.control_plane.kinds import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from tests.simulation.control_plane.dra.samples import Cluster, device, exactly, first

WAITS = "0/1 nodes are available: 1 cannot allocate all claims."


def test_falls_back_by_what_is_free():
    """One 2g, two 1g, four pods for 2g, else 1g: 2g, 1g, 1g, and one that waits; the first goes, and the last has the 2g."""
    cluster = Cluster(a="2g 1g 1g")
    cluster.template("two", first("gpu", "2g", "1g"))
    assert [cluster.pod(f"p{n}", template="two") for n in range(4)] == ["a", "a", "a", WAITS]
    assert cluster.given() == {
        "p0": [("gpu/2g", "2g-0")],
        "p1": [("gpu/1g", "1g-1")],
        "p2": [("gpu/1g", "1g-2")],
    }
    cluster.delete("p0")
    assert cluster.settle("p3") == "a"
    assert cluster.given()["p3"] == [("gpu/2g", "2g-0")]


def test_what_is_written():
    """An allocation as the real scheduler writes it, with the node it is for; and for whom it is reserved."""
    cluster = Cluster(a="2g")
    cluster.template("two", first("gpu", "2g"))
    cluster.pod("p", template="two")
    [claim] = cluster.claims()
    uid = cluster.store.get(PODS, "p", "default").document["metadata"]["uid"]
    assert claim["status"] == {
        "allocation": {
            "devices": {"results": [{"request": "gpu/2g", "driver": DRIVER, "pool": "a", "device": "2g-0"}]},
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
    }


def test_the_better_alternative_beats_the_emptier_node():
    """As with DynamicResources at weight 20; of equal alternatives the emptier node has the better."""
    cluster = Cluster(busy="2g 1g", idle="1g 1g")
    cluster.pod("load", requests={"cpu": "6"}, nodeSelector={})
    assert cluster.settle("load") == "busy"
    cluster.template("two", first("gpu", "2g", "1g"))
    assert [cluster.pod(f"p{n}", template="two") for n in range(2)] == ["busy", "idle"]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([exactly("gpu", "1g", count=2)], "a"),
        ([exactly("gpu", "1g", count=3)], WAITS),
        ([exactly("one", "2g"), first("two", "2g", "1g")], "a"),
        ([exactly("one", "2g"), exactly("two", "2g")], WAITS),
        ([exactly("gpu", "1g", selectors=[{"cel": {"expression": "device.driver == 'another'"}}])], WAITS),
        (
            [first("gpu", "2g", "9g")],
            "0/1 nodes are available: request gpu/9g: device class 9g does not exist.",
        ),
        (
            [exactly("gpu", "1g", allocationMode="All")],
            "0/1 nodes are available: request gpu: allocation mode All is not known here.",
        ),
        ([{"name": "gpu", "exactly": []}], "the pod cannot be read: spec.devices.requests[0].exactly: expected object | null, got array"),
    ],
)  # fmt: skip
def test_requests(requests, expected):
    """Which claims a node with one 2g and two 1g has devices for, and why the others do not fit."""
    cluster = Cluster(a="2g 1g 1g")
    cluster.claim("c", *requests)
    assert cluster.pod("p", claim="c") == expected


def test_an_expression_that_cannot_be_evaluated():
    """The pod waits everywhere, as with the real scheduler, and is told of it."""
    cluster = Cluster(a="1g")
    wrong = [{"cel": {"expression": "device.attributes['x.example'].missing == 'y'"}}]
    cluster.claim("c", exactly("gpu", "1g", selectors=wrong))
    assert "devices of gpu.tessera.dev: " in cluster.pod("p", claim="c")


def test_devices_that_are_no_devices():
    """A pool of which a slice is missing, a tainted device, and a pool with a counter that is nowhere give nothing."""
    cluster = Cluster(whole="1g")
    for name, more in (
        ("partial", {"total": 2}),
        ("tainted", {"taints": [{"key": "x", "effect": "NoSchedule"}]}),
        ("lost", {"consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": "1"}}}]}),
    ):
        cluster.add_node(name)
        total = more.pop("total", 1)
        cluster.add_slice(name, device("1g", 0, **more), total=total)
    cluster.template("one", exactly("gpu", "1g"))
    assert cluster.pod("p", template="one") == "whole"
    assert cluster.pod("q", template="one") == "0/4 nodes are available: 4 cannot allocate all claims."


def test_counters():
    """Places that overlap are not given out together: a card of four slices."""
    cluster = Cluster()
    cluster.add_node("a")

    def takes(count):
        return {"consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": str(count)}}}]}

    cluster.add_slice(
        "a", device("3g", 0, **takes(3)), device("2g", 0, **takes(2)), device("2g", 2, **takes(2)), total=2
    )
    counters = [{"name": "card", "counters": {"slices": {"value": "4"}}}]
    cluster.add_slice("a", name="counters", total=2, sharedCounters=counters)
    cluster.add_class("2g")
    cluster.add_class("3g")
    cluster.template("three", first("gpu", "3g", "2g"))
    cluster.template("two", exactly("gpu", "2g"))
    assert [cluster.pod("p", template="two"), cluster.pod("q", template="three")] == ["a", "a"]
    assert cluster.given() == {"p": [("gpu", "2g-0")], "q": [("gpu/2g", "2g-2")]}


def test_a_shared_claim():
    """Two pods with one claim go to the same node, and hold it until the last of them is gone."""
    cluster = Cluster(a="1g", b="1g")
    cluster.claim("c", exactly("gpu", "1g"))
    nodes = {cluster.pod(name, claim="c") for name in ("p", "q", "r")}
    assert len(nodes) == 1
    assert set(cluster.given()) == {"p", "q", "r"}
    cluster.delete("p")
    assert set(cluster.given()) == {"q", "r"}
    cluster.delete("q")
    cluster.delete("r")
    [claim] = cluster.claims()
    assert claim["status"] == {}


def test_a_claim_of_another_pod():
    """A claim that was made for a pod serves no other."""
    cluster = Cluster(a="1g 1g")
    cluster.template("one", exactly("gpu", "1g"))
    cluster.pod("p", template="one")
    [claim] = cluster.claims()
    name = claim["metadata"]["name"]
    told = cluster.pod("q", claim=name)
    assert told == f"0/1 nodes are available: ResourceClaim {name} was not created for the pod."


EXTENDED = "nvidia.com/mig-1g.10gb"


def test_extended_resources():
    """A class that serves one makes it a claim of the pod's own, where no device plugin has it; the claim goes with the pod."""
    cluster = Cluster(a="1g")
    document = cluster.store.get(DEVICE_CLASSES, "1g").document
    document["spec"]["extendedResourceName"] = EXTENDED
    cluster.store.update(DEVICE_CLASSES, "1g", document)
    assert cluster.pod("p", requests={EXTENDED: 1}) == "a"
    assert cluster.given() == {"p": [("container-0-request-0", "1g-0")]}
    [claim] = cluster.claims()
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert cluster.store.get(PODS, "p", "default").document["status"]["extendedResourceClaimStatus"] == {
        "resourceClaimName": claim["metadata"]["name"],
        "requestMappings": [
            {"containerName": "main", "resourceName": EXTENDED, "requestName": "container-0-request-0"}
        ],
    }
    assert cluster.pod("q", requests={EXTENDED: 1}) == WAITS
    cluster.add_node("plugin", **{EXTENDED: "1"})
    assert cluster.settle("q") == "plugin"
    assert cluster.pod("r", requests={EXTENDED: 1}) == (
        f"0/2 nodes are available: 1 Insufficient {EXTENDED}, 1 cannot allocate all claims."
    )
    cluster.delete("p")
    assert cluster.settle("r") == "a"


# Pods that come and go, against a list of what is free: a pod takes the first of its types of which any node has one left.

TYPES = ("1g", "2g", "3g")
nodes = st.lists(st.lists(st.sampled_from(TYPES), max_size=3), min_size=1, max_size=3)
steps = st.lists(
    st.one_of(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True), st.integers(0, 8)),
    max_size=9,
)


@given(nodes, steps)
def test_pods_come_and_go(have, todo):
    """Each pod has the best type that is free when its turn comes, those that wait come first; no device has two claims."""
    cluster = Cluster(**{f"n{number}": " ".join(types) for number, types in enumerate(have)})
    for kind in TYPES:
        if not any(kind in types for types in have):
            cluster.add_class(kind)
    free = Counter(kind for types in have for kind in types)
    waiting: dict[str, list[str]] = {}
    placed: dict[str, str] = {}

    def settle():
        for name, wanted in list(waiting.items()):
            kind = next((one for one in wanted if free[one]), None)
            if kind is not None:
                free[kind] -= 1
                placed[name] = kind
                del waiting[name]

    for number, step in enumerate(todo):
        if isinstance(step, int):
            if step < len(placed):
                name = list(placed)[step]
                free[placed.pop(name)] += 1
                cluster.delete(name)
        else:
            name = f"p{number}"
            cluster.template(name, first("gpu", *step))
            cluster.pod(name, template=name)
            waiting[name] = step
        settle()
        cluster.settle()
        given_ = cluster.given()
        assert {name: request for name, [(request, _)] in given_.items()} == {
            name: f"gpu/{kind}" for name, kind in placed.items()
        }
        pods = {one.key[1]: one.document["spec"].get("nodeName") for one in cluster.store.list(PODS)}
        held = [(pods[name], device) for name, [(_, device)] in given_.items()]
        assert len(set(held)) == len(held)
        assert {name for name, node in pods.items() if node is None} == waiting.keys()
    assert len(cluster.store.list(RESOURCE_CLAIMS)) == len(placed) + len(waiting)
