"""Rollouts of layouts on a real API server: cordons, evictions and PodDisruptionBudgets; the nodes are objects with a stand-in cutter."""

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from e2e.bridge import NAMESPACE
from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.cluster.client import condition_of
from e2e.command import account_kubeconfig, tessera
from e2e.layouts import (
    BEFORE,
    LAYOUTS,
    NODES,
    Replicas,
    StandInCutter,
    add_gpu_node,
    add_running_pod,
    definitions,
    mig_layout,
    set_ready,
    start_controller,
)
from tessera.core.errors import InvalidInput
from tessera.protocol.mig.rollouts import RESULT, ROLLOUT, Owner, Phase, RolloutRecord, record_of, written

MIG = "nvidia.com/mig-"
HALF = MIG + "3g.71gb"
# `make e2e-soak` takes more of each
COUNT = int(os.environ.get("TESSERA_E2E_NODES", "8"))
LEADERS = int(os.environ.get("TESSERA_E2E_LEADERS", "3"))
SEED = int(os.environ.get("TESSERA_E2E_SEED", "29"))
AT_ONCE = 2 if COUNT < 10 else 3


def node_of(cluster: Client, name: str) -> Object:
    return cluster.api.get(f"{NODES}/{name}")


def cordoned(cluster: Client, name: str) -> bool:
    return bool(node_of(cluster, name)["spec"].get("unschedulable"))


def add_budget(cluster: Client, namespace: str, app: str) -> str:
    """A PodDisruptionBudget that allows no eviction of an app's only pod; its path."""
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    cluster.api.create(budgets, {"metadata": {"name": app}, "spec": spec})
    seen = lambda one: one and one.get("status", {}).get("currentHealthy") == 1  # noqa: E731
    cluster.wait_for(budgets, app, seen, what="the budget's status")
    return f"{budgets}/{app}"


@pytest.fixture
def pool(control_plane: Client, namespace: str) -> Iterator[str]:
    """Some nodes with two H200 each, cut into halves; they are named after their pool."""
    names = [f"{namespace}-{number:02}" for number in range(COUNT)]
    for name in names:
        add_gpu_node(control_plane, name, namespace)
    yield namespace
    for name in names:
        control_plane.remove_node(name)


def test_drained_as_far_as_budgets_allow(control_plane: Client, pool: str) -> None:
    """`mig apply --drain` evicts only pods that hold devices which go. A PodDisruptionBudget is respected: the node gets uncordoned as it
    was after its time, and named; without the budget the node is cut, and uncordoned."""
    cluster, node = control_plane, f"{pool}-00"
    add_running_pod(cluster, pool, "train", node)
    add_running_pod(cluster, pool, "other", node, "nvidia.com/gpu")
    budget = add_budget(cluster, pool, "train")
    options = ("--drain", "--yes", f"--kubeconfig={cluster.kubeconfig}")
    with StandInCutter(cluster, pool) as cutter:
        kept = tessera("mig", "apply", "1g.18gb=4", node, *options, "--drain-timeout=4s")
        assert kept.returncode == 1, kept.stdout + kept.stderr
        assert f"refused: pods still hold devices that would go: {pool}/train (1 × 3g.71gb)" in kept.stdout
        assert "not evicted: Cannot evict pod as it would violate the pod's disruption budget" in kept.stderr
        assert (cordoned(cluster, node), cutter.cuts.total()) == (False, 0)

        cluster.api.delete(budget)
        done = tessera("mig", "apply", "1g.18gb=4", node, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert cutter.cuts.total() == 1
    after = node_of(cluster, node)
    assert after["status"]["allocatable"][MIG + "1g.18gb"] == "8"
    assert {ROLLOUT, RESULT}.isdisjoint(after["metadata"]["annotations"])
    assert not after["spec"].get("unschedulable")
    left = [one["metadata"]["name"] for one in cluster.api.get(pods_path(pool))["items"]]
    assert left == ["other"]


def why(cluster: Client, name: str, *options: str, kubeconfig: Path | None = None) -> tuple[int, str]:
    """The exit code of `tessera why miglayout/NAME`, and what it says; of the text the first line."""
    config = f"--kubeconfig={kubeconfig or cluster.kubeconfig}"
    done = tessera("why", f"miglayout/{name}", config, f"--tessera-namespace={NAMESPACE}", *options)
    return done.returncode, (done.stdout if options else done.stdout.partition("\n")[0]) + done.stderr


def test_why_without_the_api(control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """A cluster that has no MigLayouts says so in one sentence, also to who could not read them."""
    account = account_kubeconfig(control_plane, namespace, tmp_path)
    sentence = "the cluster has no MigLayouts: the API tessera.dev/v1alpha1 is not installed; the chart brings it with its values controller.enabled and layouts.enabled"
    for config in (control_plane.kubeconfig, account):
        assert why(control_plane, "auto", kubeconfig=config) == (1, f"tessera: {sentence}\n")


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
        ({"nodeSelector": {"pool!": "a"}}, "the keys are those of labels, such as nvidia.com/gpu.product"),
        ({"nodeSelector": {"": "a"}}, "the keys are those of labels"),
        ({"nodeSelector": {"pool": "a b"}}, "the values are those of labels: letters, digits"),
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
        ({"rollout": {"timeout": "soon"}}, '"soon": a duration such as 90s, 10m or 1h30m'),
        ({"rollout": {"timeout": "0m0s"}}, "a node needs some time to show its layout: at least 1s"),
        ({"rollout": {"drainTimeout": "1m1h"}}, "a duration such as 90s, 10m or 1h30m"),
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
        ({"mode": "Auto", "autopilot": {"coolDown": "soon"}}, "a duration such as 90s, 10m or 1h30m"),
    ],
)
def test_what_the_api_server_can_see_is_refused(
    control_plane: Client, installed: Path, spec: Object, complaint: str
) -> None:
    """A MigLayout that cannot be right is refused when it is applied, with a sentence."""
    done = control_plane.try_kubectl("apply", "-f", "-", stdin=json.dumps(mig_layout("wrong", **spec)))
    assert done.returncode == 1
    assert complaint in done.stderr


def test_kubectl_habits(control_plane: Client, installed: Path, namespace: str, tmp_path: Path) -> None:
    """`explain` describes each field; `diff`, server-side apply, `get`, `delete` and `tessera why` work as people expect, defaults are filled in."""
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
        "How many cards are re-cut within an hour at most. Default 20.",
    ):
        assert word in explained
    explained = " ".join(cluster.kubectl("explain", "miglayouts.status.updating").split())
    assert "whether somebody else had cordoned the node." in explained
    auto = json.dumps(mig_layout("auto", mode="Auto", layouts=None, autopilot={"maximum": {"7g.141gb": 0}}))
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=auto)
    defaults = {"dryRun": True, "keepWhole": 0, "recutsPerHour": 20, "coolDown": "10m"}
    assert cluster.api.get(f"{LAYOUTS}/auto")["spec"]["autopilot"] == {"maximum": {"7g.141gb": 0}, **defaults}
    code, said = why(cluster, "auto")
    assert (code, said.startswith("MigLayout auto is kept by nobody: tessera controller ")) == (0, True), said
    account = account_kubeconfig(cluster, namespace, tmp_path)
    code, said = why(cluster, "auto", kubeconfig=account)
    assert (code, said.startswith("tessera: MigLayout auto may not be read: miglayouts.tessera.dev")) == (
        1,
        True,
    )
    cluster.kubectl("delete", "miglayout", "auto")
    assert why(cluster, "auto") == (2, "tessera: there is no MigLayout auto; the cluster has none\n")
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


def test_kubectl_habits_beside_a_controller(control_plane: Client, installed: Path, pool: str) -> None:
    """`wait`, `get`, `diff` and server-side apply by several managers work while the controller writes the status. Of two MigLayouts the newer says that the
    older keeps its nodes; a layout that fits no card is Invalid; after `delete` layouts stay as they are, and a node that waits for its pods is uncordoned."""
    cluster, names = control_plane, [f"{pool}-{number:02}" for number in range(COUNT)]
    older, newer = f"{pool}-older", f"{pool}-newer"

    def apply(name: str, *options: str, **spec: Any) -> str:
        document = {**mig_layout(name), "spec": spec}
        done = cluster.try_kubectl("apply", "--server-side", *options, "-f", "-", stdin=json.dumps(document))
        return done.stderr if done.returncode else ""

    def wait(condition: str, name: str) -> None:
        cluster.kubectl("wait", f"--for=condition={condition}", f"miglayout/{name}", "--timeout=120s")

    def told(condition: str, name: str) -> tuple[str, str]:
        found = condition_of(cluster.api.get(f"{LAYOUTS}/{name}"), condition)
        return found.get("reason", ""), found.get("message", "")

    def has(profile: str) -> list[str]:
        every = (node_of(cluster, name)["status"]["allocatable"] for name in names)
        return [str(one.get(MIG + profile, "0")) for one in every]

    four, rollout = [{"perCard": {"1g.18gb": 4}}], {"maxUnavailable": "100%"}
    spec = {"nodeSelector": {"pool": pool}, "layouts": four, "rollout": rollout}
    with StandInCutter(cluster, pool), start_controller(installed):
        assert apply(older, "--field-manager=gitops", **spec) == ""
        wait("Ready", older)
        row = cluster.kubectl("get", "miglayout", older, "--no-headers").split()
        assert row[:6] == [older, str(COUNT), str(COUNT), "0", "0", "True"]
        document = json.dumps({**mig_layout(older), "spec": spec})
        options = ("--server-side", "--field-manager=gitops", "-f", "-")
        assert cluster.try_kubectl("diff", *options, stdin=document).returncode == 0
        assert apply(older, "--field-manager=night", paused=True) == "", "one field, beside another manager"
        refused = apply(older, "--field-manager=night", rollout={"maxUnavailable": 1})
        assert 'conflict with "gitops": .spec.rollout.maxUnavailable' in refused
        assert cluster.api.get(f"{LAYOUTS}/{older}")["spec"]["rollout"]["maxUnavailable"] == "100%"

        assert apply(newer, **{**spec, "layouts": [{"perCard": {"2g.35gb": 3}}]}) == ""
        wait("Degraded", newer)
        reason, message = told("Degraded", newer)
        assert (reason, message.startswith(f"{names[0]}: MigLayout {older} keeps it, which is older")) == (
            "Conflict",
            True,
        )
        assert told("Ready", newer) == ("Incomplete", f"0 of {COUNT} nodes have the layout")
        assert why(cluster, older) == (0, f"MigLayout {older} is paused, no further node begins: {COUNT} of {COUNT} nodes have the layout")  # fmt: skip
        code, answer = why(cluster, newer, "-o", "json")
        found = json.loads(answer)
        assert (code, found["cause"], found["unseen"]) == (0, "conflict", {})
        assert [(one["state"], sorted(one["nodes"])) for one in found["nodes"]] == [("Conflict", names)]
        too_many = {"spec": {"layouts": [{"perCard": {"1g.18gb": 8}}], "paused": False}}
        cluster.kubectl("patch", "miglayout", older, "--type=merge", "-p", json.dumps(too_many))
        wait("Invalid", older)
        assert told("Invalid", older)[0] == "DoesNotFit"
        assert "1g.18gb" in told("Invalid", older)[1]
        described = cluster.kubectl("describe", "miglayout", older)
        assert "DoesNotFit" in described.partition("Events:")[2]
        assert has("1g.18gb") == ["8"] * COUNT

        cluster.kubectl("delete", "miglayout", older)
        wait("Ready", newer)
        assert has("2g.35gb") == ["6"] * COUNT
        add_running_pod(cluster, pool, "train", names[0], MIG + "2g.35gb")
        cluster.kubectl(
            "patch", "miglayout", newer, "--type=merge", "-p", json.dumps({"spec": {"layouts": four}})
        )
        cluster.wait(lambda: has("1g.18gb") == ["0"] + ["8"] * (COUNT - 1), what="the nodes without pods")
        assert cordoned(cluster, names[0])
        cluster.kubectl("delete", "miglayout", newer)
        cluster.wait(lambda: not cordoned(cluster, names[0]), what="the node uncordoned")
        assert has("2g.35gb") == ["6"] + ["0"] * (COUNT - 1)
        cluster.wait(lambda: not any(cordoned(cluster, name) for name in names), what="the others, too")


@pytest.mark.timeout(300 + 30 * LEADERS, func_only=True)
def test_faults_37_38_39_a_rollout_whose_leaders_are_killed(
    control_plane: Client, installed: Path, pool: str
) -> None:
    """Eight nodes, two at a time (20 and three in the soak), with the chart's rights and policies, while leaders are killed, stopped and cut off at random.

    One node does not take the layout, and stops the rest until it is tried again; one dies and one is deleted in the middle; one is in use by a pod whose
    budget refuses its eviction at first. Seen by a watch: never more are cordoned than may be, none is left so, and each is cut once by each of its rollouts.
    """
    cluster, names = control_plane, [f"{pool}-{number:02}" for number in range(COUNT)]
    fails, plain, cordoned_before, in_use, *_, dies, goes = names
    chance = random.Random(SEED)
    cluster.kubectl("cordon", cordoned_before)
    add_running_pod(cluster, pool, "train", in_use)
    budget = add_budget(cluster, pool, "train")

    def layout() -> Object:
        return cluster.api.get(f"{LAYOUTS}/{pool}")

    def status() -> Object:
        found: Object = layout().get("status", {})
        return found

    def reason(name: str) -> str:
        return next((str(one["reason"]) for one in status()["nodes"] if one["name"] == name), "")

    with StandInCutter(cluster, pool) as cutter, Replicas(installed) as replicas:
        cutter.refuses = lambda node, text: "no room" if node == fails and text != BEFORE else ""
        cutter.takes = lambda node: 0.0 if node == fails else chance.uniform(0.5, 2.0)
        cutter.absent.add(dies)
        cutter.at_cut[dies] = lambda: set_ready(cluster, dies, "Unknown")
        cutter.at_cordon[goes] = lambda: cluster.remove_node(goes)

        def interrupt() -> None:
            if replicas.stops + replicas.cuts >= replicas.kills:
                replicas.kill(chance.uniform(0.0, 2.0))
            else:
                way = replicas.stop if replicas.stops == replicas.cuts else replicas.cut_off
                way(chance.uniform(0.0, 1.0), chance.uniform(0.0, 2.0))

        def interrupted_until(condition: Callable[[], object], what: str) -> None:
            """Kill, stop and cut off leaders until the condition holds, or enough were killed."""
            while not condition() and replicas.kills < LEADERS:
                interrupt()
            cluster.wait(lambda: bool(condition()), what=what)

        rollout = {"maxUnavailable": AT_ONCE, "whenInUse": "Drain", "drainTimeout": "10m", "timeout": "12s"}
        cluster.api.create(LAYOUTS, mig_layout(pool, pool, rollout=rollout))
        failed = lambda: condition_of(layout(), "Degraded").get("status") == "True"  # noqa: E731
        cluster.wait(failed, what="the failure")
        assert condition_of(layout(), "Degraded")["message"] == f"{fails}: no room; the old layout is back"
        cluster.wait(lambda: not status()["updating"], what="nothing under way")
        events = ("get", "events", "-n", "default", "-o", "custom-columns=R:.reason,N:.involvedObject.name")
        event = f"MIGRolloutFailed {fails}"  # Events are written behind the rollout: a kill may lose one
        cluster.wait(lambda: event in re.sub(" +", " ", cluster.kubectl(*events)), what="the Event")
        begun, was = dict(cutter.begun), status()["controller"]
        replicas.kill(0.0)
        cluster.wait(lambda: status()["controller"] != was, what="the next leader")
        ended = condition_of(layout(), "Progressing")
        assert (ended["reason"], ended["message"]) == ("Stopped", f"the rollout failed on {fails}")
        node = node_of(cluster, fails)
        assert (RESULT in node["metadata"]["annotations"], node["spec"].get("unschedulable")) == (True, None)
        assert cutter.begun == begun, "no further node begins"
        assert len(begun) < COUNT

        cutter.refuses = lambda node, text: ""
        cluster.kubectl("annotate", "node", fails, f"{RESULT}-")
        held_back = lambda: status()["current"] == COUNT - 3  # noqa: E731
        interrupted_until(held_back, "all but the node in use, the dead and the deleted one")
        refused = "train is not evicted: Cannot evict pod as it would violate the pod's disruption budget"
        cluster.wait(lambda: refused in reason(in_use), what="the budget's refusal")
        assert cluster.api.find(f"{pods_path(pool)}/train")
        cluster.wait(lambda: "the node is not ready" in reason(dies), what="the dead node given up")
        assert "NotReady: the layout is not applied after 12 s" in reason(dies)
        assert not cordoned(cluster, dies)
        cutter.absent.clear()
        cutter.at_cut.clear()
        set_ready(cluster, dies, "True")
        cutter.answer(dies)
        cluster.kubectl("annotate", "node", dies, f"{RESULT}-")
        cluster.api.delete(budget)
        cluster.kubectl("wait", "--for=condition=Ready", f"miglayout/{pool}", "--timeout=120s")
        cluster.wait(lambda: not status()["updating"], what="all slots given back")
        told = status()
        assert (told["desired"], told["current"], told["failed"]) == (COUNT - 1, COUNT - 1, 0)
        assert cluster.api.find(f"{pods_path(pool)}/train") is None, "it was evicted"
        (text,) = {text for _, text in cutter.cuts if text != BEFORE}
        expected = Counter({(name, text): 1 for name in names})
        expected += Counter({(name, one): 1 for name in (fails, dies) for one in (text, BEFORE)})
        cutter.cuts.pop((goes, text), None)
        del expected[goes, text]
        assert cutter.cuts == expected
        assert [cutter.begun[name] for name in names] == [1 + (name in (fails, dies)) for name in names]

        rest, number, rollouts = [name for name in names if name != goes], 0, cutter.begun.total()
        while replicas.kills < LEADERS:  # with other layouts, as long as there are leaders to kill
            number += 1
            cutter.cuts.clear()
            cutter.begun.clear()
            change = {"spec": {"layouts": [{"perCard": {"1g.18gb": 1 + number % 7}}]}}
            generation = cluster.api.patch(f"{LAYOUTS}/{pool}", change)["metadata"]["generation"]

            def ready(generation: int = generation) -> bool:
                one = condition_of(layout(), "Ready")
                return (one["status"], one["observedGeneration"]) == ("True", generation)

            interrupted_until(ready, "the next layout")
            assert sorted((name, cut) for (name, _), cut in cutter.cuts.items()) == [
                (name, 1) for name in rest
            ]
            assert cutter.begun == dict.fromkeys(rest, 1)
            rollouts += len(rest)
        said = f"{replicas.kills} leaders killed, {replicas.stops} stopped, {replicas.cuts} cut off; {rollouts} rollouts on {COUNT} nodes"
        print(f"{said}, {cutter.most_cordoned} cordoned at most; layouts: {1 + number}; seed {SEED}")
        assert cutter.most_cordoned == AT_ONCE
    for name in rest:
        node = node_of(cluster, name)
        assert bool(node["spec"].get("unschedulable")) == (name == cordoned_before), name
        assert {ROLLOUT, RESULT}.isdisjoint(node["metadata"]["annotations"]), name
    has = node_of(cluster, plain)["status"]["allocatable"]
    cluster.kubectl("delete", "miglayout", pool)
    assert node_of(cluster, plain)["status"]["allocatable"] == has, "layouts stay as they are"


def test_faults_76_78_records_that_others_write_and_remove(
    control_plane: Client, installed: Path, pool: str
) -> None:
    """A record that is forged with a node's credentials, for a year, holds up its own node only. One that a
    person removes while the node is cordoned is written again: in the end every
    other node has its layout, and none is cordoned."""
    cluster, forged, removed, spoilt = control_plane, f"{pool}-00", f"{pool}-01", f"{pool}-02"
    rest = [f"{pool}-{number:02}" for number in range(1, COUNT)]
    for name in (removed, spoilt):
        add_running_pod(cluster, pool, f"on-{name}", name)
    now = time.time()
    record = RolloutRecord(Owner("other", "unknown"), Phase.WRITTEN, now, now + 3.2e7, 3.2e7, BEFORE, BEFORE)
    record = structs.replace(record, expected={"nvidia.com/gpu": 99})

    def annotate(name: str, text: str | None) -> None:
        cluster.api.patch(f"{NODES}/{name}", {"metadata": {"annotations": {ROLLOUT: text}}})

    def status() -> Object:
        found: Object = cluster.api.get(f"{LAYOUTS}/{pool}").get("status", {})
        return {"updating": None, "current": 0, **found}

    def recorded(name: str) -> RolloutRecord | None:
        try:
            return record_of(node_of(cluster, name)["metadata"]["annotations"])
        except InvalidInput:
            return None

    annotate(forged, written(record))
    rollout = {"maxUnavailable": 2, "drainTimeout": "10m", "timeout": "10m"}
    with StandInCutter(cluster, pool), start_controller(installed):
        cluster.api.create(LAYOUTS, mig_layout(pool, pool, rollout=rollout))
        slots = [{"name": name, "cordonedBefore": False} for name in (removed, spoilt)]
        cluster.wait(lambda: status()["updating"] == slots, what="the nodes in use, last")
        cluster.wait(lambda: all(recorded(name) for name in (removed, spoilt)), what="the cordons")
        bounded = recorded(forged)
        assert bounded is not None
        assert bounded.until <= bounded.since + 600.0, "by the MigLayout"
        (said,) = (one for one in status()["nodes"] if one["name"] == forged)
        assert said["reason"] == "MigLayout other is changing it; it has no slot"
        was = recorded(removed)
        annotate(removed, None)
        annotate(spoilt, "{")
        cluster.wait(lambda: recorded(removed) == was, what="the record that was removed")
        cluster.wait(lambda: recorded(spoilt), what="the record that was spoilt")
        assert [cordoned(cluster, name) for name in (removed, spoilt)] == [True, True]
        for name in (removed, spoilt):
            cluster.api.delete(f"{pods_path(pool)}/on-{name}")
        cluster.wait(lambda: status()["current"] == len(rest), what="all others")
        annotate(forged, None)
        cluster.kubectl("wait", "--for=condition=Ready", f"miglayout/{pool}", "--timeout=120s")
        cluster.wait(lambda: status()["updating"] == [], what="all slots given back")
    assert not any(cordoned(cluster, name) for name in [forged, *rest])
    cluster.kubectl("delete", "miglayout", pool)


def test_what_the_controller_may_write_to_nodes(control_plane: Client, installed: Path, pool: str) -> None:
    """Policies limit its right to patch nodes to what a rollout writes, while the node carries the rollout's record: cordons of nodes with GPUs,
    layouts, its own two annotations, and what mig-manager left paused."""
    node, without_gpus = f"{pool}-00", f"{pool}-without-gpus"
    cluster, config = control_plane, f"--kubeconfig={installed / 'kubeconfig-of-the-controller'}"
    cluster.kubectl("label", "node", node, "nvidia.com/gpu.deploy.device-plugin=paused-for-mig-change")
    plain_node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": without_gpus}}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(plain_node))

    def patched(patch: Object, name: str = node) -> str:
        done = cluster.try_kubectl(
            config, "patch", "node", name, "--type=merge", "--patch", json.dumps(patch)
        )
        return done.stderr if done.returncode else ""

    def metadata(**sections: Any) -> Object:
        return {"metadata": sections}

    begins, ends = metadata(annotations={ROLLOUT: "{}"}), metadata(annotations={ROLLOUT: None})
    cordons, uncordons = {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}
    outside = "only while the node carries tessera.dev/rollout"
    # a new policy takes a moment
    cluster.wait(lambda: patched(metadata(labels={"other": "x"})), what="the policy in force")
    for bad, complaint in (
        (cordons, "only a node with GPUs that carries tessera.dev/rollout"),
        (metadata(annotations={"run.ai/mig.config": "x"}), outside),
        (metadata(labels={"nvidia.com/mig.config": "all-disabled"}), outside),
        (metadata(labels={"nvidia.com/gpu.deploy.device-plugin": "true"}), outside),
    ):
        assert complaint in patched(bad), bad
    assert "only a node with GPUs" in patched({**begins, **cordons}, without_gpus)
    assert "only on a node with GPUs" in patched(begins, without_gpus)
    cluster.kubectl("cordon", without_gpus)
    assert "only a node with GPUs" in patched(uncordons, without_gpus)
    cluster.kubectl("annotate", "node", without_gpus, f"{ROLLOUT}={{}}")
    assert patched({**ends, **uncordons}, without_gpus) == "", "its cards were lost during the rollout"
    for good in (
        {**begins, **cordons},
        {**ends, **uncordons},
        begins,  # again, after a person has removed it
        {**cordons},
        ends,
        begins,
        {**ends, **uncordons},
        metadata(annotations={ROLLOUT: "{}", "run.ai/mig.config": "x"}),
        metadata(labels={"nvidia.com/mig.config": "x", "nvidia.com/mig.config.state": None}),
        metadata(labels={"nvidia.com/gpu.deploy.device-plugin": "true"}),
        metadata(annotations={ROLLOUT: None, RESULT: "{}"}),
        metadata(annotations={RESULT: None}),
        begins,
    ):
        assert patched(good) == "", good
    taint = {"key": "x", "effect": "NoSchedule"}
    annotations_complaint = "only run.ai/mig.config, tessera.dev/rollout and tessera.dev/rollout-result"
    for bad, complaint in (
        ({"spec": {"taints": [taint]}}, "only unschedulable"),
        ({"spec": {"providerID": "x"}}, "only unschedulable"),
        (metadata(annotations={"other": "x"}), annotations_complaint),
        (metadata(annotations={"tessera.dev/devices-in-use": "x"}), annotations_complaint),
        (metadata(labels={"pool": None}), "only nvidia.com/mig.config"),
        (metadata(labels={"pool": "other"}), "only nvidia.com/mig.config"),
        (metadata(labels={"nvidia.com/gpu.deploy.device-plugin": "false"}), "only nvidia.com/mig.config"),
        (metadata(finalizers=["example.com/x"]), "neither status, finalizers nor owners"),
    ):
        assert complaint in patched(bad), bad
    cluster.kubectl("delete", "node", without_gpus)


def test_what_the_controller_may_write_to_pods(control_plane: Client, installed: Path, pool: str) -> None:
    """A policy limits its right to patch pods to the annotation that says what a claim got: no label, no
    image, no owner, no other annotation."""
    cluster, config = control_plane, f"--kubeconfig={installed / 'kubeconfig-of-the-controller'}"
    add_running_pod(cluster, pool, "train", f"{pool}-00")

    def patched(patch: Object) -> str:
        done = cluster.try_kubectl(
            config, "patch", "pod", "train", "-n", pool, "--dry-run=server", "--patch", json.dumps(patch)
        )
        return done.stderr if done.returncode else ""

    labels = {"metadata": {"labels": {"app": "other"}}}
    cluster.wait(lambda: patched(labels), what="the policy in force")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "gone"}  # would delete the pod
    other_annotations = {"gpu-webhook.k8s.io/fallback-policy": "never"}
    for bad, complaint in (
        (labels, "only annotations of a pod"),
        ({"spec": {"containers": [{"name": "main", "image": "evil"}]}}, "only annotations of a pod"),
        ({"metadata": {"ownerReferences": [owner]}}, "only annotations of a pod"),
        ({"metadata": {"finalizers": ["example.com/stay"]}}, "only annotations of a pod"),
        ({"metadata": {"annotations": other_annotations}}, "only the annotation gpu-webhook.k8s.io/fallback"),
    ):
        assert complaint in patched(bad), bad
    assert patched({"metadata": {"annotations": {"gpu-webhook.k8s.io/fallback": "x"}}}) == ""


def test_which_pods_the_controller_may_evict(control_plane: Client, installed: Path, pool: str) -> None:
    """A policy limits its right to evict: to the pod that it has seen, and to namespaces whose pods the webhook sees."""
    cluster, config = control_plane, f"--kubeconfig={installed / 'kubeconfig-of-the-controller'}"
    for namespace in (pool, "kube-system"):
        add_running_pod(cluster, namespace, "train", f"{pool}-00")

    def evicted(namespace: str, **options: Any) -> str:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "train", "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/train/eviction"
        document = json.dumps({**body, "deleteOptions": {"dryRun": ["All"], **options}})
        done = cluster.try_kubectl(config, "create", "--raw", path, "-f", "-", stdin=document)
        return done.stderr if done.returncode else ""

    def precondition(namespace: str) -> Object:
        return {"uid": cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/train")["metadata"]["uid"]}

    cluster.wait(lambda: evicted(pool), what="the policy in force")
    assert "it names the pod's uid" in evicted(pool)
    assert evicted(pool, preconditions=precondition(pool)) == ""
    assert "evicts no pods in kube-system" in evicted(
        "kube-system", preconditions=precondition("kube-system")
    )
    cluster.kubectl("delete", "pod", "train", "-n", "kube-system", "--grace-period=0", "--force")
