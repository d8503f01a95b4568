"""Layouts that follow demand, on a real API server and scheduler: nodes are objects with a stand-in cutter; and once on a real kubelet."""

import os
import random
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Client, ClusterWithNode, pods_path
from e2e.cluster.api import Object
from e2e.cluster.ports import free_port
from e2e.layouts import (
    LAYOUTS,
    NODES,
    Replicas,
    add_gpu_node,
    definitions,
    kept,
    mig_layout,
    start_controller,
)
from e2e.nvidia import Driver
from e2e.recuts import Recuts, add_waiting_pod, add_whole_node, auto
from e2e.test_device_plugin import MIG, annotate, pod, wait_allocatable
from e2e.test_real_cards import STORY, device_nodes, on_kubelet  # noqa: F401 # a fixture
from tessera.protocol.mig.nodes import decode_in_use
from tessera.rollout.config_map import MANAGER

HALF, ONE, SEVEN = (MIG + profile for profile in ("3g.71gb", "1g.18gb", "7g.141gb"))
# `make e2e-soak` takes more of each
COUNT = int(os.environ.get("TESSERA_E2E_NODES", "6"))
LEADERS = int(os.environ.get("TESSERA_E2E_LEADERS", "5"))
SEED = int(os.environ.get("TESSERA_E2E_SEED", "11"))
SOONEST = 1.0  # seconds between two looks
AT_ONCE = 2


@pytest.fixture(scope="module")
def installed(control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the chart makes with `layouts.enabled`, and a kubeconfig of the controller's account in that folder."""
    folder = tmp_path_factory.mktemp("autopilot")
    with definitions(control_plane, folder):
        yield folder


@pytest.fixture
def pool(control_plane: Client, namespace: str) -> Iterator[str]:
    """Nodes with two H200 each, of which all but two are cut into halves; they are named after their pool."""
    names = [f"{namespace}-{number:02}" for number in range(COUNT)]
    for name in names[:-2]:
        add_gpu_node(control_plane, name, namespace)
    for name in names[-2:]:
        add_whole_node(control_plane, name, namespace)
    yield namespace
    if control_plane.api.find(f"{LAYOUTS}/{namespace}"):
        control_plane.api.delete(f"{LAYOUTS}/{namespace}")
    for name in names:
        control_plane.remove_node(name)


class Auto:
    """The MigLayout of a pool, as it says what it does."""

    def __init__(self, cluster: Client, pool: str) -> None:
        self._cluster, self._pool = cluster, pool

    @property
    def said(self) -> Object:
        found: Object = self._cluster.api.get(f"{LAYOUTS}/{self._pool}").get("status", {})
        return {"updating": [], **found.get("autopilot", {}), **found}

    @property
    def results(self) -> Counter[str]:
        return Counter(str(row["result"]) for row in self.said.get("history", ()))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self.results["UnderWay"] or self.said["updating"])

    def spent(self) -> dict[str, dict[str, int]]:
        """What the status says of namespaces."""
        uses = "used", "unused", "undecided"
        rows = self.said.get("namespaces", ())
        return {row["namespace"]: {use: row[use] for use in uses if use in row} for row in rows}

    def events(self) -> set[str]:
        query = {"fieldSelector": f"involvedObject.kind=MigLayout,involvedObject.name={self._pool}"}
        return {str(one["reason"]) for one in self._cluster.api.get("/api/v1/events", **query)["items"]}

    def bound(self) -> Counter[str]:
        """Pods that have a node, by what they hold."""
        pods = self._cluster.api.get(pods_path(self._pool))["items"]
        return Counter(
            resource
            for one in pods
            if one["spec"].get("nodeName")
            for resource in one["spec"]["containers"][0]["resources"]["limits"]
        )


def written_by_us(node: Object) -> bool:
    return any(one["manager"] == MANAGER["fieldManager"] for one in node["metadata"]["managedFields"])


def test_a_dry_run_and_then_in_earnest(control_plane: Client, installed: Path, pool: str) -> None:
    """By default a MigLayout says what it would cut, in its status, Events and metrics, and writes to no node. Without the dry run the card is cut, the
    pod gets its node, and the node is uncordoned. The chart's rights and policies are enough for both."""
    cluster, pilot, address = control_plane, Auto(control_plane, pool), f"127.0.0.1:{free_port()}"

    def metric(name: str) -> float:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)

    names = [f"{pool}-{number:02}" for number in range(COUNT)]
    cluster.api.create(LAYOUTS, auto(pool, pool))
    add_waiting_pod(cluster, pool, "waits", ONE)
    cluster.wait_for_pod_unschedulable("waits", namespace=pool)
    with Recuts(cluster, pool) as cutter, start_controller(installed, metrics=address, soonest=SOONEST):
        cluster.wait(lambda: bool(pilot.said.get("recuts")), what="the plan")
        (plan,) = pilot.said["recuts"]
        assert (plan["serves"][ONE.removeprefix(MIG)], plan["waits"]) == (1, "dry run")
        assert pilot.said["summary"].startswith("Dry run: 1 card would be re-cut for ")
        demand = {row["profile"]: row for row in pilot.said["demand"]}
        assert demand["1g.18gb"]["waiting"] == 1
        cluster.wait(lambda: "MIGRecutPlanned" in pilot.events(), what="the Event")
        assert metric('tessera_controller_autopilot_wanted{kind="waiting",profile="1g.18gb"}') == 1
        assert metric("tessera_controller_autopilot_proposed") == 1
        assert metric('tessera_controller_recuts_total{result="dryrun"}') == 1
        assert pilot.results == {"DryRun": 1}
        nodes = [cluster.api.get(f"{NODES}/{name}") for name in names]
        assert not any(map(written_by_us, nodes))
        assert (cutter.cards, cutter.most_cordoned) == ([], 0)

        cluster.kubectl(
            *("patch", "miglayout", pool, "--type=merge", "-p", '{"spec": {"autopilot": {"dryRun": false}}}')
        )
        cluster.wait_for_pod_bound("waits", namespace=pool)
        cluster.wait(lambda: bool(pilot.results["Done"]), what="the end in the history")
        cluster.wait(lambda: {"MIGRecutBegun", "MIGRecutDone"} <= pilot.events(), what="the Events")
        cluster.wait(lambda: not pilot.said["recuts"], what="nothing more to do")
        assert len(cutter.cards) == 1
        assert cutter.left_cordoned() == []
        assert metric('tessera_controller_recuts_total{result="done"}') == 1
        assert metric('tessera_controller_layout_rollouts_total{result="done"}') == 1


def test_limits_hold(control_plane: Client, installed: Path, pool: str) -> None:
    """More is wanted than the limits allow. Seen by a watch over the nodes: never fewer devices than the minimum, more than the maximum, fewer whole GPUs, more
    re-cuts an hour, one card twice, or more nodes cordoned than may be; what gets no room is said."""
    cluster, pilot = control_plane, Auto(control_plane, pool)
    halves = 4 * (COUNT - 2)
    limits = {"minimum": {"3g.71gb": halves - 3}, "maximum": {"7g.141gb": 2}, "keepWhole": 3}
    layout = auto(
        pool, pool, {"maxUnavailable": AT_ONCE}, dryRun=False, recutsPerHour=4, coolDown="1h", **limits
    )
    for number in range(5):
        add_waiting_pod(cluster, pool, f"large-{number}", SEVEN)
        add_waiting_pod(cluster, pool, f"small-{number}", ONE)
    with Recuts(cluster, pool) as cutter, start_controller(installed, soonest=SOONEST):
        cluster.api.create(LAYOUTS, layout)
        cluster.wait(lambda: bool(pilot.results["Done"]), what="the first re-cut")
        cluster.wait(lambda: pilot.is_idle and not pilot.said["recuts"], what="no more to do")
        cluster.wait(lambda: bool(pilot.said["refusals"]), what="what gets no room")
    print(pilot.said["summary"], pilot.results, pilot.bound())
    assert cutter.least[HALF] >= halves - 3
    assert cutter.most[SEVEN] <= 2
    assert cutter.least["nvidia.com/gpu"] >= 3
    assert len(cutter.cards) <= 4
    assert max(Counter((one.node, one.card) for one in cutter.cards).values()) == 1
    assert not any(one.held for one in cutter.cards)
    assert 1 <= cutter.most_cordoned <= AT_ONCE
    assert cutter.left_cordoned() == []
    assert pilot.bound()[SEVEN] + pilot.bound()[ONE] >= 1


def test_fault_73_pods_that_never_run_leave_others_their_re_cuts(
    control_plane: Client, installed: Path, pool: str
) -> None:
    """Pods that must be near a pod that there is not can never run: of three re-cuts an hour their namespace spends one, and another one's pod gets its own."""
    cluster, pilot = control_plane, Auto(control_plane, pool)
    term = {"labelSelector": {"matchLabels": {"there": "is-none"}}, "topologyKey": "kubernetes.io/hostname"}
    nowhere = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    layout = auto(pool, pool, {"maxUnavailable": AT_ONCE}, dryRun=False, recutsPerHour=3)
    with cluster.namespace() as greedy:
        for number in range(4):
            add_waiting_pod(cluster, greedy, f"phantom-{number}", SEVEN, pool, affinity=nowhere)
        with Recuts(cluster, pool) as cutter, start_controller(installed, soonest=SOONEST):
            cluster.api.create(LAYOUTS, layout)
            cluster.wait(lambda: pilot.results["Done"] == 1, what="the re-cut for nobody")
            add_waiting_pod(cluster, pool, "works", ONE)
            cluster.wait_for_pod_bound("works", namespace=pool)
            cluster.wait(lambda: pilot.spent().get(pool) == {"used": 1}, what="that it is known as used")
            assert pilot.spent()[greedy] in ({"undecided": 1}, {"unused": 1})
            assert len(cutter.cards) == 2
            assert cutter.left_cordoned() == []


@pytest.mark.timeout(300 + 30 * LEADERS, func_only=True)
def test_fault_63_the_autopilot_s_leaders_are_killed(
    control_plane: Client, installed: Path, pool: str
) -> None:
    """Leaders are killed, stopped and cut off at random while they cut cards anew: budget and cool-down hold over all of them, never more nodes are cordoned than
    may be, none is left so, and no device goes of which pods hold some."""
    cluster, pilot, chance = control_plane, Auto(control_plane, pool), random.Random(SEED)
    budget = LEADERS - 1  # a card for each of the largest pods, but the last
    layout = auto(pool, pool, {"maxUnavailable": AT_ONCE}, dryRun=False, recutsPerHour=budget, coolDown="1h")
    for number in range(3):
        add_waiting_pod(cluster, pool, f"holds-{number}", HALF)
        cluster.wait_for_pod_bound(f"holds-{number}", namespace=pool)
    with Recuts(cluster, pool) as cutter, Replicas(installed, SOONEST / 2) as replicas:
        cutter.takes = lambda node: chance.uniform(0.2, 1.5)
        cluster.api.create(LAYOUTS, layout)
        number = 0
        while replicas.kills + replicas.stops + replicas.cuts < LEADERS:
            for profile in (ONE, SEVEN):  # as long as there are leaders, something is wanted
                number += 1
                add_waiting_pod(cluster, pool, f"waits-{number}", profile)
            soon, then = chance.uniform(0.0, 2.0), chance.uniform(0.0, 2.0)
            match (replicas.kills + replicas.stops + replicas.cuts) % 3:
                case 0:
                    replicas.kill(soon)
                case 1:
                    replicas.stop(soon, then)
                case _:
                    replicas.cut_off(soon, then)
        cluster.wait(lambda: bool(cutter.cards), what="a card re-cut")
        cluster.api.patch(f"{LAYOUTS}/{pool}", {"spec": {"paused": True}})
        cluster.wait(lambda: pilot.is_idle, what="the end of what is under way")
    told = f"{replicas.kills} leaders killed, {replicas.stops} stopped, {replicas.cuts} cut off"
    print(f"{told}; {len(cutter.cards)} cards cut, budget {budget}, {pilot.results}, {pilot.bound()}")
    assert len(cutter.cards) <= budget
    assert max(Counter((one.node, one.card) for one in cutter.cards).values()) == 1
    assert not any(one.held for one in cutter.cards)
    assert cutter.most_cordoned <= AT_ONCE
    assert cutter.left_cordoned() == []
    assert pilot.bound()[HALF] == 3


def test_single_slices_on_a_real_kubelet(
    cluster_with_node: ClusterWithNode,
    node_namespace: str,
    tmp_path: Path,
    device_nodes: None,  # noqa: F811 # the fixture
) -> None:
    """Tessera's device plugin cuts a card whose slices are in part in use: an idle slice beside the pod goes, the pod keeps its own, and the one that waited
    runs with a new one."""
    cluster, driver = cluster_with_node, Driver(tmp_path / "driver", "H200")
    driver.cut(0)
    annotate(cluster, STORY)
    layout = mig_layout(
        "follows", mode="Auto", layouts=None, autopilot={"dryRun": False, "minimum": {"3g.71gb": 1}}
    )
    layout["spec"]["nodeSelector"] = {"kubernetes.io/hostname": cluster.node_name}
    try:
        with on_kubelet(cluster, driver, tmp_path):
            wait_allocatable(cluster, {MIG + "2g.35gb": "2", MIG + "3g.71gb": "1"})
            cluster.apply(pod("training", MIG + "2g.35gb", 1), namespace=node_namespace)
            cluster.wait_for_pod_phase("training", "Running", namespace=node_namespace)
            node = cluster.wait_for_node(cluster.node_name, in_use, what="which slice the pod has")
            (held,) = in_use(node)
            before = {one.start: one.serial for one in driver.slices(0)}
            cluster.apply(pod("waits", ONE, 1), namespace=node_namespace)
            cluster.wait_for_pod_unschedulable("waits", namespace=node_namespace)
            with kept(cluster, tmp_path, layout, soonest=SOONEST):
                cluster.wait_for_pod_phase("waits", "Running", namespace=node_namespace)
                pilot = Auto(cluster, "follows")
                cluster.wait(lambda: pilot.results == {"Done": 1}, what="the end in the history")
            after = {one.start: one.serial for one in driver.slices(0)}
            assert after[held] == before[held], "the pod's own slice was never touched"
            assert "3g.71gb" in driver.layout(0)
            found = cluster.get("pod", "training", namespace=node_namespace)
            assert found["status"]["phase"] == "Running"
            assert not cluster.api.get(f"{NODES}/{cluster.node_name}")["spec"].get("unschedulable")
    finally:
        annotate(cluster, None)
    wait_allocatable(cluster, {ONE: "0"})


def in_use(node: Object) -> list[int]:
    """Where the slices begin that pods hold of a node's first card."""
    text = node["metadata"].get("annotations", {}).get("tessera.dev/devices-in-use")
    published = decode_in_use(text) or {}
    return [int(place.partition("@")[2]) for place in published.get(0, {})]
