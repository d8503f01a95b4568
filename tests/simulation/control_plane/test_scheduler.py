"""The stand-in scheduler: where pods go, and why they wait."""

import pytest

from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import EVENTS, NODES, PODS
from tessera.simulation.control_plane.scheduler import Scheduler
from tessera.simulation.control_plane.store import Store
from tests.build import node_document

GPU = "nvidia.com/gpu"


def cluster(*nodes):
    store = Store()
    for name, has, more in nodes:
        spec = {key: more[key] for key in ("taints", "unschedulable") if key in more}
        has = {"cpu": 8, "pods": 10, **has}
        store.create(NODES, node_document(name, has, labels=more.get("labels"), spec=spec))
    return store, Scheduler(store, Events(store))


def submit(store, name, requests=None, **spec):
    containers = [{"name": "main", "resources": {"requests": requests or {}}}]
    store.create(PODS, {"metadata": {"name": name}, "spec": {"containers": containers, **spec}, "status": {}})


def where(store, name):
    return store.get(PODS, name, "default").document["spec"].get("nodeName")


def told(store, name):
    (condition,) = store.get(PODS, name, "default").document["status"]["conditions"]
    return condition.get("message")


def test_fits_into_what_is_left():
    """Requests of pods that are there count; the pod that came last waits, and goes when there is room."""
    store, scheduler = cluster(("a", {GPU: "2"}, {}))
    for name in ("one", "two", "three"):
        submit(store, name, {GPU: 1})
    scheduler.schedule()
    assert [where(store, name) for name in ("one", "two", "three")] == ["a", "a", None]
    assert told(store, "three") == f"0/1 nodes are available: 1 Insufficient {GPU}."
    store.delete(PODS, "one", "default")
    scheduler.schedule()
    assert where(store, "three") == "a"
    reasons = [stored.document["reason"] for stored in store.list(EVENTS)]
    assert sorted(reasons) == ["FailedScheduling", "Scheduled", "Scheduled", "Scheduled"]


def test_the_emptiest_node():
    """Of the nodes with room, the one with the most idle CPUs."""
    store, scheduler = cluster(("a", {}, {}), ("b", {}, {}))
    for name in ("one", "two", "three"):
        submit(store, name, {"cpu": "1"})
    scheduler.schedule()
    assert [where(store, name) for name in ("one", "two", "three")] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("node", "pod", "reason"),
    [
        ({"unschedulable": True}, {}, "1 node(s) were unschedulable"),
        ({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, {}, "1 node(s) had untolerated taint {k: v}"),
        ({"taints": [{"key": "k", "value": "v", "effect": "PreferNoSchedule"}]}, {}, ""),
        ({"taints": [{"key": "k", "effect": "NoExecute"}]}, {"tolerations": [{"operator": "Exists"}]}, ""),
        ({"labels": {"z": "1"}}, {"nodeSelector": {"z": "1"}}, ""),
        ({"labels": {"z": "2"}}, {"nodeSelector": {"z": "1"}}, "1 node(s) didn't match Pod's node affinity/selector"),
        ({}, {"overhead": {"cpu": "9"}}, "1 Insufficient cpu"),
    ],
)  # fmt: skip
def test_reasons(node, pod, reason):
    """Why a node will not do, in the real scheduler's words."""
    store, scheduler = cluster(("a", {}, node))
    submit(store, "p", **pod)
    scheduler.schedule()
    if reason:
        assert told(store, "p") == f"0/1 nodes are available: {reason}."
    else:
        assert where(store, "p") == "a"


def test_reasons_are_counted():
    """Several nodes, several reasons: counted, and sorted as texts."""
    store, scheduler = cluster(
        ("a", {GPU: "1"}, {}), ("b", {GPU: "1"}, {}), ("c", {}, {"unschedulable": True})
    )
    submit(store, "p", {GPU: 2})
    scheduler.schedule()
    expected = f"0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient {GPU}."
    assert told(store, "p") == expected
    scheduler.schedule()
    (event,) = store.list(EVENTS)
    assert event.document["count"] == 1, "the same reason is told once"


def test_nothing_else_is_touched():
    """Pods of other schedulers, gated ones, and those that have ended are left alone."""
    store, scheduler = cluster(("a", {}, {}))
    submit(store, "other", schedulerName="mine")
    submit(store, "gated", schedulingGates=[{"name": "g"}])
    scheduler.schedule()
    assert [where(store, name) for name in ("other", "gated")] == [None, None]
