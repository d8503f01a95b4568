"""Rollouts of layouts on a real API server: cordons, evictions and PodDisruptionBudgets; the nodes are objects with a stand-in cutter."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.bridge import NAMESPACE
from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.command import tessera
from e2e.layouts import (
    LAYOUTS,
    NODES,
    StandInCutter,
    add_gpu_node,
    definitions,
    mig_layout,
    start_controller,
)
from tessera.protocol.mig.rollouts import RESULT, ROLLOUT

MIG = "nvidia.com/mig-"
HALF = MIG + "3g.71gb"
# `make e2e-soak` takes more of each
COUNT = int(os.environ.get("TESSERA_E2E_NODES", "6"))
LEADERS = int(os.environ.get("TESSERA_E2E_LEADERS", "3"))
AT_ONCE = 2 if COUNT < 10 else 3
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/tessera-controller"


def node_of(cluster: Client, name: str) -> Object:
    return cluster.api.get(f"{NODES}/{name}")


def cordoned(cluster: Client, name: str) -> bool:
    return bool(node_of(cluster, name)["spec"].get("unschedulable"))


def add_running_pod(cluster: Client, namespace: str, name: str, node: str, resource: str = HALF) -> None:
    """A pod that counts as running: nobody runs it, and it is gone when it is deleted."""
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    body = {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    cluster.api.create(pods_path(namespace), body)
    ready = {"type": "Ready", "status": "True"}
    status = {"status": {"phase": "Running", "conditions": [ready]}}
    cluster.api.patch(f"{pods_path(namespace)}/{name}/status", status, kind="strategic")


@pytest.fixture
def pool(control_plane: Client, namespace: str) -> Iterator[str]:
    """Some nodes with two H200 each, cut into halves; they are named after their pool."""
    names = [f"{namespace}-{number}" for number in range(COUNT)]
    for name in names:
        add_gpu_node(control_plane, name, namespace)
    yield namespace
    for name in names:
        control_plane.remove_node(name)


def test_drained_as_far_as_budgets_allow(control_plane: Client, pool: str) -> None:
    """`mig apply --drain` evicts only pods that hold devices which go. A PodDisruptionBudget is respected: the node gets uncordoned as it
    was after its time, and named; without the budget the node is cut, and uncordoned."""
    cluster, node = control_plane, f"{pool}-0"
    add_running_pod(cluster, pool, "train", node)
    add_running_pod(cluster, pool, "other", node, "nvidia.com/gpu")
    budgets = f"/apis/policy/v1/namespaces/{pool}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}}
    cluster.api.create(budgets, {"metadata": {"name": "train"}, "spec": spec})
    seen = lambda one: one and one.get("status", {}).get("currentHealthy") == 1  # noqa: E731
    cluster.wait_for(budgets, "train", seen, what="the budget's status")
    options = ("--drain", "--yes", f"--kubeconfig={cluster.kubeconfig}")
    with StandInCutter(cluster, pool) as cutter:
        kept = tessera("mig", "apply", "1g.18gb=4", node, *options, "--drain-timeout=4s")
        assert kept.returncode == 1, kept.stdout + kept.stderr
        assert f"refused: pods still hold devices that would go: {pool}/train (1 × 3g.71gb)" in kept.stdout
        assert "not evicted: Cannot evict pod as it would violate the pod's disruption budget" in kept.stderr
        assert (cordoned(cluster, node), cutter.cuts.total()) == (False, 0)

        cluster.api.delete(f"{budgets}/train")
        done = tessera("mig", "apply", "1g.18gb=4", node, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert cutter.cuts.total() == 1
    after = node_of(cluster, node)
    assert after["status"]["allocatable"][MIG + "1g.18gb"] == "8"
    assert {ROLLOUT, RESULT}.isdisjoint(after["metadata"]["annotations"])
    assert not after["spec"].get("unschedulable")
    left = [one["metadata"]["name"] for one in cluster.api.get(pods_path(pool))["items"]]
    assert left == ["other"]


@pytest.fixture(scope="module")
def installed(control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the chart makes with `layouts.enabled`, and a kubeconfig of the controller's account in that folder."""
    folder = tmp_path_factory.mktemp("layouts")
    with definitions(control_plane, folder):
        yield folder


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"nodeSelector": {}}, "spec.nodeSelector in body should have at least 1 properties"),
        ({"layouts": []}, "spec.layouts in body should have at least 1 items"),
        ({"layouts": [{}]}, "give exactly one of perCard, document and configuration"),
        ({"layouts": [{"perCard": {"1g.18gb": 1}, "configuration": "x"}]}, "give exactly one of perCard"),
        ({"layouts": [{"perCard": {"big": 1}}]}, "the keys are MIG profiles such as 1g.18gb"),
        (
            {"layouts": [{"configuration": "x"}, {"product": "H200", "configuration": "y"}]},
            "it must be the last one",
        ),
        ({"rollout": {"maxUnavailable": 0}}, "a number of nodes such as 2, or a part of them such as 25%"),
        (
            {"rollout": {"maxUnavailable": "half"}},
            "a number of nodes such as 2, or a part of them such as 25%",
        ),
        ({"rollout": {"whenInUse": "Hope"}}, 'supported values: "Wait", "Drain", "Skip"'),
        ({"rollout": {"timeout": "soon"}}, "spec.rollout.timeout"),
        ({"mode": "Hope"}, 'supported values: "Fixed", "Auto"'),
        ({"layouts": None}, "mode Fixed needs layouts"),
        ({"mode": "Auto", "autopilot": {"minimum": {"big": 1}}}, "the keys are MIG profiles such as 1g.18gb"),
        (
            {"mode": "Auto", "autopilot": {"minimum": {"1g.18gb": 3}, "maximum": {"1g.18gb": 2}}},
            "the minimum of a profile is not more than its maximum",
        ),
        ({"mode": "Auto", "autopilot": {"minimum": {"1g.18gb": 0}}}, "should be greater than or equal to 1"),
        ({"mode": "Auto", "autopilot": {"keepWhole": -1}}, "spec.autopilot.keepWhole"),
        ({"mode": "Auto", "autopilot": {"recutsPerHour": 0}}, "spec.autopilot.recutsPerHour"),
        ({"mode": "Auto", "autopilot": {"coolDown": "soon"}}, "spec.autopilot.coolDown"),
    ],
)
def test_what_the_api_server_can_see_is_refused(
    control_plane: Client, installed: Path, spec: Object, complaint: str
) -> None:
    """A MigLayout that cannot be right is refused when it is applied, with a sentence."""
    done = control_plane.try_kubectl("apply", "-f", "-", stdin=json.dumps(mig_layout("wrong", **spec)))
    assert done.returncode == 1
    assert complaint in done.stderr


def test_kubectl_habits(control_plane: Client, installed: Path) -> None:
    """`explain` describes each field; `diff`, server-side apply, `get` and `delete` work as people expect, defaults are filled in."""
    cluster = control_plane
    explained = cluster.kubectl("explain", "miglayouts.spec.rollout")
    for word in (
        "maxUnavailable",
        "How many nodes are cordoned at a time",
        "enum: Wait, Drain, Skip",
        "10 minutes later. Default 30m.",
    ):
        assert word in " ".join(explained.split())
    explained = " ".join(cluster.kubectl("explain", "miglayouts.spec.autopilot").split())
    for word in (
        "dryRun",
        "Change nothing.",
        "How many cards are cut anew within an hour at most. Default 20.",
    ):
        assert word in explained
    auto = json.dumps(mig_layout("auto", mode="Auto", layouts=None, autopilot={"maximum": {"7g.141gb": 0}}))
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=auto)
    defaults = {"dryRun": True, "keepWhole": 0, "recutsPerHour": 20, "coolDown": "10m"}
    assert cluster.api.get(f"{LAYOUTS}/auto")["spec"]["autopilot"] == {"maximum": {"7g.141gb": 0}, **defaults}
    cluster.kubectl("delete", "miglayout", "auto")
    document = json.dumps(mig_layout("habits", rollout={"maxUnavailable": "25%"}))
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=document)
    assert cluster.try_kubectl("diff", "--server-side", "-f", "-", stdin=document).returncode == 0
    found = cluster.api.get(f"{LAYOUTS}/habits")["spec"]
    assert found["rollout"] == {
        "maxUnavailable": "25%",
        "whenInUse": "Wait",
        "drainTimeout": "30m",
        "timeout": "10m",
    }
    other = json.dumps(mig_layout("habits", rollout={"maxUnavailable": 3}))
    differs = cluster.try_kubectl("diff", "--server-side", "-f", "-", stdin=other)
    assert (differs.returncode, "maxUnavailable: 3" in differs.stdout) == (1, True)
    listed = cluster.kubectl("get", "miglayouts")
    assert listed.split()[:7] == ["NAME", "DESIRED", "CURRENT", "UPDATING", "FAILED", "READY", "AGE"]
    cluster.kubectl("delete", "miglayout", "habits")
    assert cluster.api.find(f"{LAYOUTS}/habits") is None


def test_fault_37_a_rollout_whose_leaders_are_killed(
    control_plane: Client, installed: Path, pool: str, tmp_path: Path
) -> None:
    """Six nodes, two at a time (20 and three in the soak), with the chart's rights and policies: one fails, gets its old layout back, and stops the rest. With another
    layout all get it, while leaders are killed and one is stopped for a while: never more than two are cordoned, each is cut once, none is left cordoned."""
    cluster, names = control_plane, [f"{pool}-{number}" for number in range(COUNT)]
    cluster.kubectl("cordon", names[5])
    add_running_pod(cluster, pool, "train", names[4])

    def status() -> Object:
        found: Object = cluster.api.get(f"{LAYOUTS}/{pool}").get("status", {})
        return found

    def condition(type_: str) -> Object:
        return next((one for one in status().get("conditions", ()) if one["type"] == type_), {})

    with StandInCutter(cluster, pool) as cutter:
        cutter.refuses = lambda node, text: "no room" if node == names[1] and "1g.18gb" in text else ""
        rollout = {"maxUnavailable": AT_ONCE, "whenInUse": "Drain", "drainTimeout": "2m", "timeout": "2m"}
        paused = controller = start_controller(installed, 0)
        try:
            cluster.api.create(LAYOUTS, mig_layout(pool, pool, rollout=rollout))
            cluster.wait(lambda: condition("Degraded").get("status") == "True", what="the failure")
            assert condition("Degraded")["message"] == f"{names[1]}: no room; the old layout is back"
            cluster.wait(lambda: not status()["updating"], what="nothing under way")
            failed = node_of(cluster, names[1])
            assert (RESULT in failed["metadata"]["annotations"], failed["spec"].get("unschedulable")) == (
                True,
                None,
            )
            assert cutter.cuts[names[1], str(failed["metadata"]["annotations"]["run.ai/mig.config"])] == 1
            events = cluster.kubectl(
                "get", "events", "-n", "default", "-o", "custom-columns=R:.reason,N:.involvedObject.name"
            )
            assert f"MIGRolloutFailed   {names[1]}" in events

            cutter.cuts.clear()
            change = {"spec": {"layouts": [{"perCard": {"2g.35gb": 3}}]}}
            cluster.api.patch(f"{LAYOUTS}/{pool}", change)
            for number in range(1, LEADERS + 1):
                controller.wait_for_log("leading as")
                before = cutter.steps
                if cutter.cuts.total() == COUNT:
                    break
                cluster.wait(lambda before=before: cutter.steps > before, what="another step of a node")  # type: ignore[misc]
                if number == 2:
                    controller.process.send_signal(signal.SIGSTOP)  # it believes to lead when it goes on
                    paused = controller
                else:
                    controller.kill()
                cluster.api.delete(LEASE)  # or it would hold for 15 seconds
                controller = start_controller(installed, number)
            cluster.wait(lambda: condition("Ready").get("status") == "True", what="all nodes ready")
            cluster.wait(lambda: not status()["updating"], what="all slots given back")
            paused.process.send_signal(signal.SIGCONT)
            paused.wait_for_log("not leading any more")
            assert (status()["desired"], status()["current"], status()["failed"]) == (COUNT, COUNT, 0)
        finally:
            controller.stop()
            paused.kill()
        assert cutter.most_cordoned <= AT_ONCE
        assert sorted(cutter.cuts.values()) == [1] * COUNT
    left = [name for name in names if node_of(cluster, name)["spec"].get("unschedulable")]
    assert left == [names[5]], "which was cordoned before"
    assert cluster.api.find(f"{pods_path(pool)}/train") is None, "it was evicted"
    cluster.kubectl("delete", "miglayout", pool)
    assert node_of(cluster, names[0])["status"]["allocatable"][MIG + "2g.35gb"] == "6", (
        "layouts stay as they are"
    )


def test_what_the_controller_may_write_to_nodes(control_plane: Client, installed: Path, pool: str) -> None:
    """A policy limits its right to patch nodes to cordons, its annotations, layouts, and what mig-manager left paused."""
    node = f"{pool}-0"
    cluster, config = control_plane, f"--kubeconfig={installed / 'kubeconfig-of-the-controller'}"
    cluster.kubectl("label", "node", node, "nvidia.com/gpu.deploy.device-plugin=paused-for-mig-change")

    def patched(patch: Object) -> str:
        done = cluster.try_kubectl(
            config, "patch", "node", node, "--type=merge", "--patch", json.dumps(patch)
        )
        return done.stderr if done.returncode else ""

    def metadata(**sections: Any) -> Object:
        return {"metadata": sections}

    # a new policy takes a moment
    cluster.wait(lambda: patched(metadata(labels={"other": "x"})), what="the policy in force")
    for good in (
        {"spec": {"unschedulable": True}},
        {"spec": {"unschedulable": None}},
        metadata(annotations={ROLLOUT: "{}", "run.ai/mig.config": "x"}),
        metadata(annotations={ROLLOUT: None}),
        metadata(labels={"nvidia.com/mig.config": "x", "nvidia.com/mig.config.state": None}),
        metadata(labels={"nvidia.com/gpu.deploy.device-plugin": "true"}),
    ):
        assert patched(good) == "", good
    taint = {"key": "x", "effect": "NoSchedule"}
    for bad, complaint in (
        ({"spec": {"taints": [taint]}}, "only unschedulable"),
        ({"spec": {"providerID": "x"}}, "only unschedulable"),
        (metadata(annotations={"other": "x"}), "only run.ai/mig.config and tessera.dev/"),
        (metadata(labels={"pool": None}), "only nvidia.com/mig.config"),
        (metadata(labels={"pool": "other"}), "only nvidia.com/mig.config"),
        (metadata(labels={"nvidia.com/gpu.deploy.device-plugin": "false"}), "only nvidia.com/mig.config"),
        (metadata(finalizers=["example.com/x"]), "neither status, finalizers nor owners"),
    ):
        assert complaint in patched(bad), bad
