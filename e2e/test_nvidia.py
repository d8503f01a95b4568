"""A node of NVIDIA's operator: its mig-manager, device plugin and GPU Feature Discovery on a stand-in driver, and Tessera beside them."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import ClusterWithNode
from e2e.cluster.client import condition_of
from e2e.command import tessera
from e2e.layouts import LAYOUTS, kept, mig_layout
from e2e.nvidia import NVML, Driver
from e2e.nvidia.node import CONFIG, STATE, NvidiaNode
from e2e.recuts import auto
from e2e.test_device_plugin import pod
from e2e.webhook import Webhook, registered
from tessera.protocol.mig.rollouts import RESULT

MIG = "nvidia.com/mig-"
ONE, TWO, THREE = (MIG + profile for profile in ("1g.18gb", "2g.35gb", "3g.71gb"))


@pytest.fixture(scope="module")
def h200(
    nvidia_programs: None, cluster_with_node: ClusterWithNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NvidiaNode]:
    """Two H200, and the configurations that NVIDIA ships; the tests follow each other."""
    folder = tmp_path_factory.mktemp("h200")
    cluster_with_node.forget_devices()
    driver = Driver(folder / "driver", "H200", cards=2)
    with NvidiaNode(cluster_with_node, driver, folder, sync_delay=8) as node:
        yield node


def _visible(node: NvidiaNode, namespace: str, name: str) -> str:
    """The device that a running pod was given."""
    return node.cluster.kubectl(
        "exec", name, "-n", namespace, "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"
    ).strip()


def _show(node: NvidiaNode) -> str:
    done = tessera(
        "mig", "show", "--cluster", node.cluster.node_name, f"--kubeconfig={node.cluster.kubeconfig}"
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _uuids(driver: Driver, profile: str) -> set[str]:
    return {
        f"MIG-7e55e7a0-{card:04x}-5{piece.instance:03x}-8000-{piece.serial:012x}"
        for card in driver.cards
        for piece in driver.slices(card)
        if piece.profile == profile
    }


@pytest.mark.usefixtures("nvidia_programs")
def test_single(cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path) -> None:
    """Strategy single on A100, whose mode changes with a reset: every slice is a GPU, named by the product, and `mig show` knows it."""
    cluster = cluster_with_node
    driver = Driver(tmp_path / "driver", "A100-40GB", cards=2)
    for card in driver.cards:
        driver.needs_reset(card)
    cluster.forget_devices()
    with NvidiaNode(cluster, driver, tmp_path, strategy="single") as node:
        node.label(mig_config="all-1g.5gb")
        node.wait_for_state("success")
        node.wait_for_devices({"nvidia.com/gpu": 14})
        node.wait(
            lambda one: (
                one["metadata"]["labels"].get("nvidia.com/gpu.product") == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
            ),
            what="the product's label",
        )
        assert (node.labels["nvidia.com/gpu.count"], node.labels["nvidia.com/mig.strategy"]) == (
            "14",
            "single",
        )
        assert "cards 0-1  A100-40GB, 7×1g.5gb" in _show(node)
        cluster.apply(pod("one", "nvidia.com/gpu", 1), namespace=node_namespace)
        cluster.wait_for_pod_phase("one", "Running", namespace=node_namespace)
        assert _visible(node, node_namespace, "one") in _uuids(driver, "1g.5gb")


def test_a_label_cuts_the_cards(h200: NvidiaNode, node_namespace: str) -> None:
    """A pod waits for a slice that no card has; a label is written, mig-manager cuts the cards, NVIDIA's plugin offers them: it runs."""
    h200.wait_for_devices({"nvidia.com/gpu": 2})
    h200.label(mig_config="all-1g.18gb")
    h200.wait_for_state("success")
    h200.wait_for_devices({ONE: 14})
    h200.cluster.apply(pod("waits", THREE, 1), namespace=node_namespace)
    assert f"Insufficient {THREE}" in h200.cluster.wait_for_pod_unschedulable(
        "waits", namespace=node_namespace
    )

    h200.label(mig_config="all-balanced")
    h200.cluster.wait_for_pod_phase("waits", "Running", namespace=node_namespace)
    h200.wait_for_devices({ONE: 4, TWO: 2, THREE: 2})
    assert [sorted(h200.driver.layout(card)) for card in h200.driver.cards] == [
        ["1g.18gb", "1g.18gb", "2g.35gb", "3g.71gb"]
    ] * 2
    assert _visible(h200, node_namespace, "waits") in _uuids(h200.driver, "3g.71gb")


def test_the_layout_is_known(h200: NvidiaNode) -> None:
    """`mig show` draws the cards as they are, and says that it knows them from mig-manager's ConfigMap."""
    shown = _show(h200)
    assert "layout from label nvidia.com/mig.config with mig-manager's ConfigMap" in shown
    assert "H200, 2×1g.18gb + 1×2g.35gb + 1×3g.71gb" in shown


def test_labels_of_gpu_feature_discovery(h200: NvidiaNode) -> None:
    """What GPU Feature Discovery writes of a node that is cut: cards, their memory, and each kind of slice with its number."""
    h200.wait(lambda node: node["metadata"]["labels"].get(THREE + ".count") == "2", what="GFD's labels")
    labels = h200.labels
    own = {name.removeprefix("nvidia.com/"): value for name, value in labels.items()}
    expected = {"gpu.product": "NVIDIA-H200", "gpu.count": "2", "gpu.memory": "143771", "gpu.replicas": "0"}
    expected |= {"mig.strategy": "mixed", "mig.capable": "true", "mig.config.state": "success"}
    expected |= {"mig-1g.18gb.count": "4", "mig-2g.35gb.count": "2", "mig-3g.71gb.count": "2"}
    expected |= {"mig-3g.71gb.product": "NVIDIA-H200-MIG-3g.71gb", "mig-3g.71gb.memory": "71424"}
    expected |= {
        "mig-3g.71gb.slices.gi": "3",
        "mig-3g.71gb.multiprocessors": "60",
        "mig-3g.71gb.replicas": "1",
    }
    assert {name: own.get(name) for name in expected} == expected
    assert {name for name in own if name.endswith(".count")} == {
        name for name in expected if name.endswith(".count")
    }


def test_webhook_with_fallback(h200: NvidiaNode, node_namespace: str, tmp_path: Path) -> None:
    """Beside NVIDIA's programs the webhook gives a pod another slice that there is, the pod runs, and the doctor has nothing to say."""
    cluster = h200.cluster
    with Webhook(cluster, tmp_path / "webhook") as webhook, registered(cluster, webhook):
        cluster.apply(pod("falls", MIG + "1g.35gb", 1), namespace=node_namespace)
        cluster.wait_for_pod_phase("falls", "Running", namespace=node_namespace)
        made = cluster.get("pod", "falls", namespace=node_namespace)
        assert made["spec"]["containers"][0]["resources"]["limits"] == {ONE: "1"}
    checks = ("layouts", "silent", "offers", "refused", "pending")
    done = tessera("doctor", f"--kubeconfig={cluster.kubeconfig}", *(f"--check={name}" for name in checks))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_plan_and_apply(h200: NvidiaNode, node_namespace: str, tmp_path: Path) -> None:
    """Pods wait for slices that no configuration has together: `mig plan`, `mig apply --plan`, and they run; the other card is untouched.

    The new configuration reaches mig-manager's file late, so that the first label comes too early. Then a node in use is refused.
    """
    cluster, driver, kubeconfig = h200.cluster, h200.driver, f"--kubeconfig={h200.cluster.kubeconfig}"
    h200.label(mig_config="all-1g.18gb")
    h200.wait_for_state("success")
    h200.wait_for_devices({ONE: 14})
    other = driver.slices(1)
    asked = {"four": MIG + "4g.71gb", "three": THREE}
    for name, resource in asked.items():
        cluster.apply(pod(name, resource, 1), namespace=node_namespace)
        cluster.wait_for_pod_unschedulable(name, namespace=node_namespace)
    planned = tessera("mig", "plan", "--output=json", kubeconfig)
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["removed"], plan["added"]) == ({"1g.18gb": 7}, {"3g.71gb": 1, "4g.71gb": 1})
    (tmp_path / "plan.json").write_text(planned.stdout)
    applied = tessera("mig", "apply", f"--plan={tmp_path / 'plan.json'}", "--yes", kubeconfig, timeout=250)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert "tried again" in applied.stderr, "the file was late"
    for name in asked:
        cluster.wait_for_pod_phase(name, "Running", namespace=node_namespace)
    assert h200.devices == {ONE: 7, THREE: 1, MIG + "4g.71gb": 1}
    assert driver.slices(1) == other

    cut = driver.slices(0)
    refused = tessera("mig", "apply", "all-balanced", cluster.node_name, "--label", "--yes", kubeconfig)
    assert refused.returncode == 1
    assert f"refused: pods hold devices that would go: {node_namespace}/four (1 × 4g.71gb)" in refused.stdout
    assert h200.labels[CONFIG].startswith("tessera-")
    assert (driver.slices(0), driver.slices(1)) == (cut, other)


def test_a_failing_layout_is_put_back(h200: NvidiaNode) -> None:
    """A card refuses in the middle of the cut: the node gets its old layout back, and plugin and GPU Feature Discovery with it, and is uncordoned."""
    cluster, driver, kubeconfig = h200.cluster, h200.driver, f"--kubeconfig={h200.cluster.kubeconfig}"
    devices, config = h200.devices, h200.labels[CONFIG]
    layouts = [sorted(driver.layout(card)) for card in driver.cards]
    driver.fail("nvmlDeviceCreateGpuInstance*", NVML.INSUFFICIENT_RESOURCES, card=1, nth=2, times=1000)

    def heal() -> None:
        h200.wait_for_state("failed", config="all-2g.35gb")
        driver.no_faults()

    healing = threading.Thread(target=heal)
    healing.start()
    options = ("--cordon", "--yes", kubeconfig)
    done = tessera("mig", "apply", "2g.35gb=3", cluster.node_name, *options, timeout=250)
    healing.join()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "put back: mig-manager reports failed" in done.stdout
    h200.wait_for_devices(devices)
    assert (h200.labels[CONFIG], h200.labels[STATE]) == (config, "success")
    assert [sorted(driver.layout(card)) for card in driver.cards] == layouts
    assert h200.labels["nvidia.com/gpu.deploy.device-plugin"] == "true"
    assert not cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")["spec"].get("unschedulable")


def test_what_mig_manager_leaves_paused(h200: NvidiaNode, node_namespace: str) -> None:
    """A process that is no pod holds a slice, so that mig-manager fails, and leaves the device plugin away. `mig apply` brings it back.

    With the process gone, `mig plan --apply` cuts the cards for a pod that waits.
    """
    cluster, driver, kubeconfig = h200.cluster, h200.driver, f"--kubeconfig={h200.cluster.kubeconfig}"
    h200.label(mig_config="all-1g.18gb")
    h200.wait_for_state("success", config="all-1g.18gb")
    h200.wait_for_devices({ONE: 14})
    for card in driver.cards:
        driver.use(card, driver.slices(card)[0].instance)
    done = tessera("mig", "apply", "3g.71gb=2", cluster.node_name, "--yes", kubeconfig, timeout=250)
    driver.no_faults()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "mig-manager has ended and left nvidia.com/gpu.deploy." in done.stderr
    assert "put back: mig-manager reports failed; its log says why; the old layout is back" in done.stdout
    assert h200.devices == {ONE: 14}

    h200.wait(lambda node: node["metadata"]["labels"].get(ONE + ".count") == "14", what="GFD's labels")
    cluster.apply(pod("waits", THREE, 1), namespace=node_namespace)
    cluster.wait_for_pod_unschedulable("waits", namespace=node_namespace)
    done = tessera("mig", "plan", "--apply", "--yes", kubeconfig, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.wait_for_pod_phase("waits", "Running", namespace=node_namespace)


def test_fault_52_a_mig_layout(h200: NvidiaNode, tmp_path: Path) -> None:
    """A MigLayout on a node that mig-manager cuts: the controller, with the chart's rights, adds a configuration to the ConfigMap, and writes the label again
    until mig-manager has it. A card refuses: the old configuration is back, the node is uncordoned; tried again, it has the devices."""
    cluster, driver = h200.cluster, h200.driver
    layout = mig_layout("real", layouts=[{"product": "H200", "perCard": {"1g.18gb": 1, "2g.35gb": 3}}])
    layout["spec"]["nodeSelector"] = {"kubernetes.io/hostname": cluster.node_name}
    before, devices = h200.labels[CONFIG], h200.devices
    driver.fail("nvmlDeviceCreateGpuInstance*", NVML.INSUFFICIENT_RESOURCES, card=1, nth=2, times=1000)

    def cordoned() -> bool:
        return bool(cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")["spec"].get("unschedulable"))

    def message(type_: str) -> str:
        return str(condition_of(cluster.api.get(f"{LAYOUTS}/real"), type_).get("message", ""))

    with kept(cluster, tmp_path, layout, migConfigMaps=[h200.config_map]) as condition:
        failed = "mig-manager reports failed; its log says why"
        cluster.wait(lambda: f"{failed}; waiting for the old" in message("Progressing"), what="the failure")
        driver.no_faults()
        cluster.wait(lambda: condition("Degraded") == "True", what="the end")
        assert message("Degraded").endswith(f"{failed}; the old layout is back")
        assert (h200.labels[CONFIG], cordoned()) == (before, False)
        h200.wait_for_devices(devices)
        cluster.kubectl("annotate", "node", cluster.node_name, f"{RESULT}-")
        cluster.wait(lambda: condition("Ready") == "True", 240.0, what="the layout on the node")
        assert h200.devices == {ONE: 2, TWO: 6}
        assert h200.labels[CONFIG].startswith("tessera-")
        assert not cordoned()


def test_a_layout_that_follows_demand(h200: NvidiaNode, node_namespace: str, tmp_path: Path) -> None:
    """A pod waits for a slice that no card has. A MigLayout in mode Auto has mig-manager cut one card, which is idle, and the pod runs; the other card is untouched."""
    cluster, driver = h200.cluster, h200.driver
    h200.label(mig_config="all-1g.18gb")
    h200.wait_for_state("success", config="all-1g.18gb")
    h200.wait_for_devices({ONE: 14})
    h200.wait(lambda node: node["metadata"]["labels"].get(ONE + ".count") == "14", what="GFD's labels")
    before = {card: driver.slices(card) for card in driver.cards}
    cluster.apply(pod("waits", THREE, 1), namespace=node_namespace)
    cluster.wait_for_pod_unschedulable("waits", namespace=node_namespace)
    layout = auto("follows", "none", dryRun=False)
    layout["spec"]["nodeSelector"] = {"kubernetes.io/hostname": cluster.node_name}

    def results() -> list[str]:
        status = cluster.api.get(f"{LAYOUTS}/follows").get("status", {})
        return [row["result"] for row in status.get("autopilot", {}).get("history", ())]

    with kept(cluster, tmp_path, layout, soonest=1.0, migConfigMaps=[h200.config_map]):
        cluster.wait_for_pod_phase("waits", "Running", namespace=node_namespace, timeout=240.0)
        cluster.wait(lambda: results() == ["Done"], what="the end in the history")
    assert [driver.slices(card) == before[card] for card in driver.cards].count(True) == 1
    assert _visible(h200, node_namespace, "waits") in _uuids(driver, "3g.71gb")
    assert h200.labels[CONFIG].startswith("tessera-")
    assert not cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")["spec"].get("unschedulable")
