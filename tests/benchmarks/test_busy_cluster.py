"""The cluster that the controller is measured on is a cluster that could be."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from benchmarks.corpus import busy, varied
from benchmarks.corpus.varied import PODS

from tessera.protocol.mig.nodes import IN_USE, decode_in_use

NODES = 60


@pytest.fixture(scope="module")
def documents():
    """The objects by kind."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for raw in busy.objects(NODES):
        document = msgspec.json.decode(raw)
        by_kind.setdefault(document["kind"], []).append(document)
    return by_kind


def test_pods(documents):
    """A node has twelve pods, where one in four waits instead; no two have the same name or UID."""
    pods = documents["Pod"]
    assert len(pods) == NODES * PODS
    assert sum("nodeName" not in pod["spec"] for pod in pods) == NODES // busy.WAITING
    assert len({(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods}) == len(pods)
    assert len({pod["metadata"]["uid"] for pod in pods}) == len(pods)


def test_no_node_gives_more_than_it_has(documents):
    """The pods of a node ask for no more of a resource than the node has."""
    asked: dict[str, Counter[str]] = {}
    for pod in documents["Pod"]:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        gpus = {name: int(amount) for name, amount in limits.items() if name.startswith("nvidia.com/")}
        asked.setdefault(pod["spec"].get("nodeName", ""), Counter()).update(gpus)
    for node in documents["Node"]:
        allocatable = node["status"]["allocatable"]
        for resource, number in asked[node["metadata"]["name"]].items():
            assert number <= int(allocatable[resource])


def test_a_device_is_held_once(documents):
    """No device of a node is of two claims, and all of them are in the node's ResourceSlice."""
    held = Counter(
        (result["pool"], result["device"])
        for claim in documents["ResourceClaim"]
        for result in claim["status"]["allocation"]["devices"]["results"]
    )
    offered = {
        (one["spec"]["nodeName"], device["name"])
        for one in documents["ResourceSlice"]
        for device in one["spec"]["devices"]
    }
    assert set(held) <= offered
    assert set(held.values()) == {1}


def test_every_claim_has_its_pod_and_template(documents):
    """The pod of a claim names a template that exists in its namespace."""
    pods = {pod["metadata"]["uid"]: pod for pod in documents["Pod"]}
    templates = {
        (one["metadata"]["namespace"], one["metadata"]["name"]) for one in documents["ResourceClaimTemplate"]
    }
    for claim in documents["ResourceClaim"]:
        pod = pods[claim["metadata"]["ownerReferences"][0]["uid"]]
        space = pod["metadata"]["namespace"]
        assert space == claim["metadata"]["namespace"]
        assert (space, pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]) in templates


def test_device_plugins_report_what_pods_hold(documents):
    """A node with Tessera's device plugin says of each held device whose it is, also after the pod was made again."""
    number = next(one for one in range(NODES) if busy.has_plugin(one) and busy.holdings(one)[0].devices)
    pods = {pod["metadata"]["uid"][:8]: pod for pod in documents["Pod"]}
    node = next(one for one in documents["Node"] if one["metadata"]["name"] == varied.node_name(number))
    published = decode_in_use(node["metadata"]["annotations"][IN_USE])
    assert published is not None
    holders = Counter(uid for card in published.values() for uid in card.values())
    for uid, amount in holders.items():
        limits = pods[uid]["spec"]["containers"][0]["resources"]["limits"]
        assert str(amount) in {limits[name] for name in limits if name.startswith("nvidia.com/")}
    again = decode_in_use(busy.report_of(number, {0: "abcdefgh-1"}))
    assert again is not None
    written = Counter(uid for card in again.values() for uid in card.values())
    assert written["abcdefgh"] == len(busy.holdings(number)[0].devices)
