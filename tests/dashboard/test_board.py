"""The board: what the page is told, and when."""

import json
from typing import Any

import pytest

from tessera.dashboard.board import Board
from tessera.dashboard.history import Admission, read_denial
from tessera.dashboard.observed import read_node
from tessera.kube.watch.table import Key
from tessera.protocol.kubernetes.dra import decode_claim, decode_class, decode_slice
from tessera.protocol.mig.operator import config_in
from tests.build import claim_document
from tests.dashboard.objects import MIG, by_operator, ids, node, pod
from tests.protocol.dra.samples import DRIVER, class_, device, raw, slice_

MEDIUM = "2g.20gb=2,3g.30gb=1"


class Clock:
    now = 1_000_000_000.0

    def __call__(self):
        return self.now


def board(**more):
    return Board("a test", clock=Clock(), **more)


def news(one):
    """The parts that changed, decoded, and the names of those that went."""
    changed, gone = one.changes()
    return {name: json.loads(part) for name, part in changed.items()}, gone


def test_only_what_changed():
    """At first everything, then parts that are different, then nothing."""
    one = board()
    first, gone = news(one)
    assert sorted(first) == [
        "about",
        "admissions",
        "demand",
        "layouts",
        "miglayouts",
        "pending",
        "rollouts",
        "totals",
    ]
    assert gone == []
    one.put_node(node("a", MEDIUM))
    one.put_node(node("b", MEDIUM))
    changed, _ = news(one)
    assert sorted(changed) == ["node/a", "node/b", "totals"]
    assert news(one) == ({}, [])
    one.put_node(node("a", MEDIUM))
    assert news(one) == ({}, []), "the same again is no news"
    one.remove_node("b")
    changed, gone = news(one)
    assert (sorted(changed), gone) == (["totals"], ["node/b"])
    assert sorted(one.parts()) == sorted({*first, "node/a"})


def test_looking_at_everything_takes_no_news_from_listeners():
    """All parts may be asked for at any time: what changed and what went is still told to the listeners."""
    one = board()
    news(one)
    one.put_node(node("a", MEDIUM))
    one.put_node(node("b", MEDIUM))
    assert "node/a" in one.parts()
    changed, gone = news(one)
    assert (sorted(changed), gone) == (["node/a", "node/b", "totals"], [])
    one.remove_node("a")
    assert "node/a" not in one.parts()
    changed, gone = news(one)
    assert (sorted(changed), gone) == (["totals"], ["node/a"])
    assert news(one) == ({}, [])


def test_capacity():
    """Allocatable, allocated, available, and what is asked for; on the node and in total."""
    one = board()
    one.put_node(node("n", MEDIUM))
    one.put_pod(pod("a", "n", p2g_20gb=1))
    one.put_pod(pod("b", p2g_20gb=2))
    parts, _ = news(one)
    two, three = parts["totals"]
    assert [two[key] for key in ("name", "allocatable", "allocated", "available", "asked", "lacking")] == [
        "2g.20gb", "2", "1", "1", "2", True,
    ]  # fmt: skip
    assert (three["allocated"], three["share"]) == ("0", 0.0)
    assert parts["node/n"]["resources"] == {"2g.20gb": [2, 1], "3g.30gb": [1, 0]}
    assert parts["node/n"]["used"] == pytest.approx(2 / 7), "by compute slices"


def test_pending():
    """Pods without a node, with what they ask for and the scheduler's words; no more once they have one."""
    one = board()
    one.put_pod(pod("b", record="3g.30gb->2g.20gb", p2g_20gb=2))
    parts, _ = news(one)
    assert parts["pending"]["count"] == 1
    (row,) = parts["pending"]["longest"]
    assert row == {
        "namespace": "ml", "pod": "b", "owner": "b", "count": 1, "asks": "2g.20gb ×2", "record": "3g.30gb->2g.20gb",
        "why": "0/1 nodes are available.", "since": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    one.put_pod(pod("b", "n", p2g_20gb=2))
    assert news(one)[0]["pending"] == {"count": 0, "groups": 0, "longest": []}
    one.remove_pod(Key("ml", "b"))
    assert json.loads(one.parts()["totals"]) == []


def test_admissions_of_pods():
    """Where admissions are not reported, they are read from pods: by their record, once each."""
    one = board()
    one.put_pod(pod("a", record="3g.30gb->2g.20gb", p2g_20gb=1))
    one.put_pod(pod("a", "n", record="3g.30gb->2g.20gb", p2g_20gb=1))
    one.put_pod(pod("b", p2g_20gb=1))
    other: dict[str, Any] = {"example.com/x": 1}
    one.put_pod(pod("c", **other))
    parts, _ = news(one)
    assert [(row["pod"], row["decision"], row["record"], row["asks"]) for row in parts["admissions"]] == [
        ("b", "as asked", "", "2g.20gb ×1"),
        ("a", "fallback", "3g.30gb->2g.20gb", "2g.20gb ×1"),
    ]
    assert parts["admissions"][1]["reason"] == "no node that this pod could use offered 3g.30gb as asked"


TWO = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"


@pytest.mark.parametrize("told", [False, True])
def test_bridged_pods(told):
    """A pod with a claim waits for what it asked for first; what the scheduler gave it instead is told when it is known."""
    one = board(all_admissions=told)
    one.put_pod(pod("a", claim=TWO))
    parts, _ = news(one)
    assert [row["asks"] for row in parts["pending"]["longest"]] == [
        "2g.20gb ×1 (claim: 2g.20gb, else 1g.10gb)"
    ]
    assert [(row["name"], row["asked"]) for row in parts["totals"]] == [("2g.20gb", "1")]
    one.put_pod(pod("a", "n", claim=TWO))
    one.put_pod(pod("a", "n", claim=TWO, record="2g.20gb->1g.10gb"))
    parts, _ = news(one)
    assert parts["pending"]["count"] == 0
    got = ("fallback", "2g.20gb->1g.10gb", "1g.10gb ×1", "2g.20gb was not free where the scheduler placed it")
    asked = ("as asked", "", "2g.20gb ×1 (claim: 2g.20gb, else 1g.10gb)", "")
    rows = [
        tuple(row[key] for key in ("decision", "record", "asks", "reason")) for row in parts["admissions"]
    ]
    assert rows == ([got] if told else [got, asked])


def test_admissions_that_are_told():
    """Where every admission is reported, none is read from pods."""
    one = board(all_admissions=True)
    one.put_pod(pod("a", p2g_20gb=1))
    one.admitted(Admission("now", "ml", "x", "rejected", "", "nothing fits"))
    (row,) = news(one)[0]["admissions"]
    assert (row["pod"], row["decision"], row["reason"]) == ("x", "rejected", "nothing fits")


def test_denials():
    """A controller's event tells of pods that were never made; other events do not."""
    denied = (
        'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: asked for too much'
    )
    event = {
        "metadata": {"name": "e1", "namespace": "ml"},
        "involvedObject": {"kind": "ReplicaSet", "name": "web-1"},
        "message": denied,
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    found = read_denial(json.dumps(event).encode())
    denial = Admission(
        "2026-01-01T00:00:00Z", "ml", "ReplicaSet web-1", "rejected", reason="asked for too much"
    )
    assert found == ("e1", denial)
    assert read_denial(json.dumps({**event, "message": "exceeded quota"}).encode()) is None
    one = board()
    one.denied(*found)
    one.denied(*found)
    (row,) = news(one)[0]["admissions"]
    assert (row["pod"], row["decision"]) == ("ReplicaSet web-1", "rejected")


def test_unmet_demand_over_time():
    """What is asked for, got and missing by the profile asked for at first, with its history; each controller's rejection once."""
    clock = Clock()
    one = Board("a test", clock=clock)
    one.put_node(node("n", MEDIUM))
    one.put_pod(pod("a", "n", record="3g.30gb->2g.20gb", p2g_20gb=1))
    one.put_pod(pod("b", p2g_20gb=2))
    one.sample()
    said = "spec.template: asked for nvidia.com/mig-7g.80gb: 1, nvidia.com/gpu: 2, and no node that this pod can use offers it"
    for event in ("e1", "e1", "e2"):
        one.denied(event, Admission("2026-01-01T00:00:00Z", "ml", "ReplicaSet x", "rejected", reason=said))
    parts, _ = news(one)
    assert [(row["name"], row["asked"], row["got"], row["missing"], row["rejected"]) for row in parts["demand"]["rows"]] == [
        ("2g.20gb", 2, 0, 2, 0), ("3g.30gb", 1, 0, 1, 0), ("7g.80gb", 0, 0, 0, 2), ("other", 0, 0, 0, 4),
    ]  # fmt: skip
    at = int(clock.now)
    assert parts[f"demand/{MIG}3g.30gb"] == [[at, 1, 0, 1]]
    one.put_pod(pod("b", "n", p2g_20gb=2))
    clock.now += 60
    one.sample()
    assert news(one)[0][f"demand/{MIG}2g.20gb"] == [[at, 2, 0, 2], [at + 60, 2, 2, 0]]


def test_layout_changes():
    """What is asked for, what state it is in, and what became of the node's offers in the meantime."""
    clock = Clock()
    one = Board("a test", clock=clock)
    state, config = "nvidia.com/mig.config.state", "run.ai/mig.config"
    ones, twos, threes = (f"{MIG}{name}" for name in ("1g.10gb", "2g.20gb", "3g.30gb"))
    small: dict[str, Any] = {"cut": "1g.10gb=7", "annotations": {config: "1g.10gb=7"}}
    one.put_node(node("n", MEDIUM, labels={state: "success"}, annotations={config: "2g.20gb=2,\n3g.30gb=1"}))
    one.put_node(node("n", **{**small, "cut": MEDIUM}, labels={state: "success"}))
    one.put_node(node("n", **small, labels={state: "success"}, allocatable={twos: 2, threes: 0}))
    one.put_node(node("n", **small, labels={state: "pending"}, allocatable={twos: 2, threes: 0}))
    one.put_node(node("n", **small, labels={state: "pending"}, allocatable={twos: 0, threes: 0}))
    one.put_node(node("n", **small, labels={state: "pending"}, allocatable={ones: 7}))
    one.put_node(node("n", **small, labels={state: "success"}))
    clock.now += 60
    one.put_node(node("n", **small, labels={state: "success"}, allocatable={ones: 6}))
    rows = [(row["desired"], row["state"], row["offers"]) for row in news(one)[0]["layouts"]]
    assert rows == [
        ("", "", "1g.10gb 7 → 6"),
        ("1g.10gb=7", "success", "1g.10gb 0 → 7, 2g.20gb 2 → 0, 3g.30gb 1 → 0"),
    ]


def test_layout_changes_by_mig_manager():
    """A new label is what is desired, by the configuration's name; the rest is told as of any other layout."""
    one = board()
    ones, balanced = {"1g.10gb": 28}, {"1g.10gb": 8, "2g.20gb": 4, "3g.40gb": 4}
    one.put_node(by_operator("all-1g.10gb", ones, cards=4))
    one.put_node(by_operator("all-balanced", ones, cards=4))
    one.put_node(by_operator("all-balanced", {}, cards=4, **{"mig.config.state": "pending"}))
    one.put_node(by_operator("all-balanced", balanced, cards=4))
    (row,) = news(one)[0]["layouts"]
    assert (row["desired"], row["state"], row["offers"]) == (
        "all-balanced",
        "success",
        "1g.10gb 28 → 8, 2g.20gb 0 → 4, 3g.40gb 0 → 4",
    )


def test_a_layout_that_fails():
    """One entry: what was desired, that it failed and why, and what that left of the offers."""
    clock = Clock()
    one = Board("a test", clock=clock)
    state, reason = "nvidia.com/mig.config.state", "nvidia.com/mig.config.reason"
    ones = f"{MIG}1g.10gb"
    before: dict[str, Any] = {"labels": {state: "success"}, "annotations": {"run.ai/mig.config": "1g.10gb=7"}}
    wish = {"run.ai/mig.config": "2g.20gb=3"}
    one.put_node(node("n", allocatable={ones: 7}, **before))
    one.put_node(node("n", allocatable={ones: 7}, labels={state: "success"}, annotations=wish))
    clock.now += 300
    one.put_node(node("n", allocatable={ones: 7}, labels={state: "pending"}, annotations=wish))
    clock.now += 300
    one.put_node(node("n", allocatable={}, labels={state: "failed"}, annotations={**wish, reason: "busy"}))
    (row,) = news(one)[0]["layouts"]
    assert row == {
        "when": "2001-09-09T01:56:40Z", "node": "n", "desired": "2g.20gb=3", "state": "failed", "reason": "busy",
        "offers": "1g.10gb 7 → 0",
    }  # fmt: skip


def test_devices_that_come_back_are_no_news():
    """A plugin that restarts takes its devices away and brings them back: no entry is left of that."""
    one = board()
    for count in (7, 0, 7):
        one.put_node(node("n", allocatable={f"{MIG}1g.10gb": count}))
    assert news(one)[0]["layouts"] == []


def test_admissions_are_in_the_order_of_time():
    """However they become known, the latest comes first; the oldest are forgotten."""
    one = board(all_admissions=True)
    for second in (3, 1, 2):
        one.admitted(Admission(f"2026-01-01T00:00:0{second}Z", "ml", f"p{second}", "as asked"))
    assert [row["pod"] for row in news(one)[0]["admissions"]] == ["p3", "p2", "p1"]
    for minute in range(10, 60):
        for half in (0, 30):
            one.admitted(Admission(f"2026-01-01T00:{minute}:{half:02d}Z", "ml", "later", "as asked"))
    one.admitted(Admission("2025-01-01T00:00:00Z", "ml", "long ago", "as asked"))
    rows = news(one)[0]["admissions"]
    assert (len(rows), {row["pod"] for row in rows}) == (100, {"later"})


def test_history_is_kept_by_resource():
    """Each look adds a point where a number changed, and only those parts are sent."""
    clock = Clock()
    one = Board("a test", clock=clock)
    one.put_node(node("n", MEDIUM))
    one.sample()
    first, _ = news(one)
    at = int(clock.now)
    assert first[f"history/{MIG}2g.20gb"] == [[at, 2, 0, 0]]
    clock.now += 60
    one.put_pod(pod("a", "n", p2g_20gb=1))
    one.put_pod(pod("b", p2g_20gb=2))
    one.sample()
    changed, _ = news(one)
    assert changed[f"history/{MIG}2g.20gb"] == [[at, 2, 0, 0], [at + 60, 2, 1, 2]]
    assert f"history/{MIG}3g.30gb" not in changed
    clock.now += 60
    one.sample()
    assert news(one) == ({}, [])


def test_a_node():
    """Readiness, cordons, unhealthy devices and the layout's state are told with the tiles."""
    (device,) = ids(MEDIUM, "3g.30gb")
    one = board()
    one.put_node(
        node(
            "n",
            MEDIUM,
            allocatable={f"{MIG}2g.20gb": 1, f"{MIG}3g.30gb": 1},
            capacity={f"{MIG}2g.20gb": 2, f"{MIG}3g.30gb": 1, "cpu": 8},
            spec={"unschedulable": True},
            conditions=[{"type": "Ready", "status": "False"}],
            labels={"nvidia.com/mig.config.state": "failed"},
            annotations={"nvidia.com/mig.config.reason": "why"},
        )
    )
    one.put_pod(pod("a", "n", {f"{MIG}3g.30gb": [device]}))
    part = news(one)[0]["node/n"]
    assert part["trouble"] == ["not ready", "layout failed", "1 2g.20gb unhealthy or leaving"]
    assert (part["notes"], part["reason"], part["product"]) == (["cordoned"], "why", "Simulated H200-70GB")
    assert part["pods"] == ["ml/a"]
    (card,) = json.loads(one.mosaics(["n"])["n"])["cards"]
    assert [(tile["id"], tile["pod"]) for tile in card["tiles"] if tile["pod"]] == [(device, "ml/a")]


@pytest.mark.parametrize(
    ("labels", "pool"),
    [
        ({}, ""),
        ({"eks.amazonaws.com/nodegroup": "a"}, "a"),
        ({"pool": "b", "karpenter.sh/nodepool": "a"}, "a"),
    ],
)
def test_the_pool_of_a_node(labels, pool):
    """By the label of its cloud or tool, the first that it has."""
    one = board()
    one.put_node(node("n", MEDIUM, labels=labels))
    assert news(one)[0]["node/n"].get("pool", "") == pool


def test_a_layout_that_cannot_be_read():
    """It is trouble, with the reason."""
    one = board()
    one.put_node(node(allocatable={f"{MIG}2g.20gb": 1}, annotations={"run.ai/mig.config": "3g.30gb=9"}))
    part = news(one)[0]["node/n"]
    assert part["trouble"] == ["layout unreadable"]
    assert "3g.30gb" in part["reason"]


BALANCED = """\
version: v1
mig-configs:
  all-balanced:
  - devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
"""


def test_a_layout_of_nvidias_operator():
    """Where counts do not tell how the cards are cut, that is noted, with the reason; mig-manager's configurations tell it."""
    one = board()
    counts = {"1g.10gb": 8, "2g.20gb": 4, "3g.40gb": 4}
    one.put_node(by_operator("all-balanced", counts, cards=4))
    part = news(one)[0]["node/n"]
    assert (part.get("trouble"), part["notes"]) == (None, ["layout success", "layout not known"])
    assert part["reason"].startswith("there is more than one way to cut its cards")
    mosaic = json.loads(one.mosaics(["n"])["n"])
    assert (mosaic["cards"], mosaic["source"], len(mosaic["loose"])) == ([], "", 3)
    one.put_mig_manager(config_in(BALANCED, "test"))
    part = news(one)[0]["node/n"]
    assert (part["notes"], part.get("reason")) == (["layout success"], None)
    mosaic = json.loads(one.mosaics(["n"])["n"])
    assert [len([tile for tile in card["tiles"] if tile["what"]]) for card in mosaic["cards"]] == [4] * 4
    assert mosaic["source"] == "label nvidia.com/mig.config with mig-manager's ConfigMap"


def test_a_label_that_is_not_what_a_node_has():
    """What mig-manager is to make and what is there differ: that is trouble, and the cards are drawn as they are."""
    one = board()
    one.put_mig_manager(config_in(BALANCED, "test"))
    one.put_node(by_operator("all-balanced", {"1g.10gb": 56}))
    part = news(one)[0]["node/n"]
    assert part["trouble"] == ["layout differs from its label"]
    assert "all-balanced" in part["reason"]
    assert json.loads(one.mosaics(["n"])["n"])["source"] == "the node's capacity"


def test_trouble():
    """Silence of the API server is told once."""
    one = board()
    news(one)
    one.set_error("nodes: nothing heard")
    assert news(one)[0] == {"about": {"cluster": "a test", "trouble": "nodes: nothing heard"}}
    one.set_error("nodes: nothing heard")
    assert news(one) == ({}, [])


def test_device_seconds_of_a_converted_pod_are_what_its_claims_hold():
    """What a pod got by a claim is what the claim holds, though no annotation says so yet; what it asked for stays its request."""
    seconds = Clock()
    one = board(monotonic=seconds)
    one.dra.follow(one.dra_changed, lambda: None)
    one.set_error("")
    one.put_node(read_node(raw({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8"}}})))
    results = [{"driver": DRIVER, "pool": "n", "device": "x"}]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "a", "uid": "u"}],
    }
    classes, slices = (
        [decode_class(raw(class_("one", resource=MIG + "1g.10gb")))],
        [decode_slice(raw(slice_("s", device("x"), node="n")))],
    )
    one.dra.take(
        classes, slices, [decode_claim(raw({"metadata": {"name": "c", "namespace": "ml"}, "status": status}))]
    )
    one.put_pod(pod("a", "n", claim=TWO))
    one.sample()
    seconds.now += 10
    assert _device_seconds(one) == {
        ("2g.20gb", "asked"): 10,
        ("1g.10gb", "got"): 10,
        ("2g.20gb", "missing"): 10,
    }
    one.dra.take(classes, slices, [])
    one.sample()
    seconds.now += 5
    assert _device_seconds(one)["1g.10gb", "got"] == 10, "nothing is held by the claim any more"


def _device_seconds(one: Board) -> dict[tuple[str, str], float]:
    family = next(iter(one.metrics()))
    return {
        (labels["resource"].removeprefix(MIG), labels["kind"]): value
        for _, labels, value in family.samples
        if value
    }


def test_dra():
    """Devices of DRA and what claims hold of them are in the numbers; the node says where they come from."""
    one = board()
    one.dra.follow(one.dra_changed, lambda: None)
    for name in ("a", "b"):
        one.put_node(read_node(raw({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8"}}})))
    news(one)
    resource = MIG + "2g.20gb"
    classes = [decode_class(raw(class_("two", resource=resource)))]
    slices = [decode_slice(raw(slice_("s", device("x"), device("y"), node="a")))]
    results = [{"driver": DRIVER, "pool": "a", "device": "x"}]
    claim = claim_document("c", *results, namespace="")
    one.dra.take(classes, slices, [decode_claim(raw(claim))])
    changed, _ = news(one)
    assert sorted(changed) == ["node/a", "totals"]
    assert changed["node/a"]["resources"] == {"2g.20gb": [2, 1]}
    assert changed["node/a"]["notes"] == ["devices by DRA"]
    assert [(row["name"], row["allocatable"], row["available"]) for row in changed["totals"]] == [
        ("2g.20gb", "2", "1")
    ]
    tiles = json.loads(one.mosaics(["a"])["a"])["loose"][resource]
    assert [(tile["id"], tile["pod"]) for tile in tiles] == [("x", "claim /c"), ("", "")]
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    one.dra.take(classes, slices, [decode_claim(raw(claim))])
    assert sorted(news(one)[0]) == ["node/a"], "it is drawn anew when another holds the device"
    assert json.loads(one.mosaics(["a"])["a"])["loose"][resource][0]["pod"] == "/p"
    one.dra.take(classes, slices, [])
    changed, _ = news(one)
    assert changed["node/a"]["resources"] == {"2g.20gb": [2, 0]}
    one.dra.take([], [], [])
    changed, _ = news(one)
    assert "resources" not in changed["node/a"]


@pytest.mark.parametrize(
    ("labels", "served", "trouble"),
    [
        ({}, True, None),
        ({"tessera.dev/devices": "dra"}, False, None),
        ({"nvidia.com/mig.config.state": "success", f"{MIG}1g.10gb.count": "7"}, False, None),
        ({}, False, ["2 2g.20gb unhealthy or leaving"]),
    ],
    ids=["served by DRA", "the driver comes", "cut otherwise", "no plugin"],
)
def test_a_capacity_that_the_kubelet_only_remembers(labels, served, trouble):
    """A node that moved to DRA, or was cut otherwise, is in no trouble because its kubelet remembers the device plugin."""
    one = board()
    one.dra.follow(one.dra_changed, lambda: None)
    status = {"allocatable": {f"{MIG}2g.20gb": "0"}, "capacity": {f"{MIG}2g.20gb": "2"}}
    one.put_node(read_node(raw({"metadata": {"name": "a", "labels": labels}, "status": status})))
    if served:
        classes = [decode_class(raw(class_("two", resource=MIG + "2g.20gb")))]
        one.dra.take(classes, [decode_slice(raw(slice_("s", device("x"), node="a")))], [])
    assert news(one)[0]["node/a"].get("trouble") == trouble


def test_fault_48_invented_resources_fill_nothing():
    """A tenant's pods with thousands of resources that no node has: metrics, history and the tables stay small."""
    one = board()
    one.set_error("")
    one.put_node(node("a", MEDIUM))
    one.sample()
    for number in range(3):
        invented: dict[str, Any] = {f"example.com/{number}-{at}": 1 for at in range(1000)}
        one.put_pod(pod(f"flood-{number}", "", **invented))
    one.put_pod(pod("honest", p2g_20gb=1, p7g_80gb=1))
    one.sample()
    series = {
        labels["resource"]
        for family in one.metrics()
        for _, labels, _ in family.samples
        if "resource" in labels
    }
    assert series == {MIG + "2g.20gb", MIG + "7g.80gb"}, "what nodes have, and what real cards could have"
    parts = one.parts()
    assert len(json.loads(parts["totals"])) < 40
    assert sorted(name for name in parts if name.startswith("history/")) == [
        f"history/{MIG}2g.20gb",
        f"history/{MIG}3g.30gb",
    ]
    assert len(parts["pending"]) < 2000
    one.put_node(node("b", MEDIUM, allocatable={"example.com/0-0": "1"}))
    assert any(
        "example.com/0-0" in labels.values() for family in one.metrics() for _, labels, _ in family.samples
    )
