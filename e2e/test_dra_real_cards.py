"""The DRA driver on the cards of a stand-in for NVIDIA's driver, with a real kubelet: as they are, and cut as claims ask for it."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import dra
from e2e.cluster import ClusterWithNode, pods_path
from e2e.command import Running, tessera
from e2e.nvidia import NVML, Driver
from e2e.test_device_plugin import logged
from e2e.test_real_cards import device_nodes  # noqa: F401 # a fixture
from tessera.core.mig.geometry import product_named
from tessera.core.mig.placement import every_place

SCRIPT = "env; exec sleep 1000"
DYNAMIC = "nvml: {migStrategy: mixed, cut: true, partitioning: dynamic}\n"


def seen(cluster: ClusterWithNode, namespace: str, pod: str) -> str:
    """The device that a pod's container has."""
    found = re.search(r"NVIDIA_VISIBLE_DEVICES=(\S+)", logged(cluster, namespace, pod))
    return found[1] if found else ""


def uuids(driver: Driver, config: Path) -> dict[str, str]:
    """The slices that are there, as the device plugin lists them: UUID → resource."""
    listed = tessera("device-plugin", f"--config={config}", "--list", environment=driver.environment)
    return {row[1]: row[0] for row in map(str.split, listed.stdout.splitlines())}


@pytest.mark.usefixtures("device_nodes")
def test_the_devices_of_the_plugin_by_claim(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """The same devices and UUIDs as the device plugin has; a pod gets its slice, and a lost card is tainted and no other."""
    cluster, namespace, driver = (
        cluster_with_node,
        node_namespace,
        Driver(tmp_path / "driver", "H200", cards=2),
    )
    driver.cut(0, "2g.35gb@0", "3g.71gb@4")
    config = tmp_path / "devices.yaml"
    config.write_text("nvml: {migStrategy: mixed}\n")
    with dra.driver(cluster, namespace, tmp_path, config, environment=driver.environment) as running:
        offered = dra.devices(cluster)
        assert [*offered] == ["gpu-0-mig-2g-35gb-0", "gpu-0-mig-3g-71gb-4", "gpu-1"]
        said = {
            one["attributes"]["uuid"]["string"]: one["attributes"]["resource"]["string"]
            for one in offered.values()
        }
        assert said == uuids(driver, config)
        dra.template(cluster, namespace, "two", "2g.35gb")
        dra.run(cluster, namespace, [dra.pod("train", template="two", script=SCRIPT)])
        mine = offered["gpu-0-mig-2g-35gb-0"]["attributes"]["uuid"]["string"]
        assert seen(cluster, namespace, "train") == mine
        driver.lose(1)
        running.until(lambda: "taints" in dra.devices(cluster)["gpu-1"], what="a taint", timeout=30)
        assert "does not answer: GPU is lost" in running.log.read_text()
        assert "taints" not in dra.devices(cluster)["gpu-0-mig-3g-71gb-4"]


def cut(driver: Driver, *profiles: str) -> Callable[[], bool]:
    return lambda: driver.layout(0) == [*profiles]


@pytest.mark.usefixtures("device_nodes")
def test_slices_of_real_cards_are_cut_on_demand(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """Claim, slice, pod with its UUID, and no slice when it ends; a driver that is killed at a call of NVML, or between, goes on from there."""
    cluster, namespace, driver = cluster_with_node, node_namespace, Driver(tmp_path / "driver", "H200")
    driver.cut(0, "1g.18gb@0")  # somebody else's, and not in use
    config, reading = tmp_path / "devices.yaml", tmp_path / "reading.yaml"
    config.write_text(DYNAMIC)
    reading.write_text("nvml: {migStrategy: mixed}\n")
    dra.template(cluster, namespace, "three", "3g.71gb")
    dra.template(cluster, namespace, "two", "2g.35gb")

    def start(name: str) -> Running:
        started = dra.start(cluster, tmp_path, config, name=name, environment=driver.environment)
        started.wait_for_log("registered with the kubelet")
        return started

    with start("first") as running:
        running.until(lambda: dra.slices(cluster), what="ResourceSlices")
        assert len(dra.devices(cluster)) == len([*every_place(product_named("H200"))])
        running.until(cut(driver), what="nothing on the card")
        dra.run(cluster, namespace, [dra.pod("train", template="three", script=SCRIPT)])
        held = driver.slices(0)
        assert [one.profile for one in held] == ["3g.71gb"]
        assert uuids(driver, reading) == {seen(cluster, namespace, "train"): "nvidia.com/mig-3g.71gb"}
        driver.kill("nvmlGpuInstanceCreateComputeInstance", after=True)
        cluster.apply(dra.pod("next", template="two", script=SCRIPT), namespace=namespace)
        assert running.process.wait(60) == -signal.SIGKILL
        running.kill()
    driver.fail(
        "nvmlComputeInstanceDestroy", NVML.IN_USE, times=2
    )  # a program that lets go some seconds later
    with dra.driver(cluster, namespace, tmp_path, config, environment=driver.environment) as running:
        cluster.wait_for_pod_phase("next", "Running", namespace=namespace)
        assert "In use by another client" in running.log.read_text()
        assert {one.profile for one in driver.slices(0)} == {"2g.35gb", "3g.71gb"}
        assert held[0] in driver.slices(0)
        there = uuids(driver, reading)
        assert there[seen(cluster, namespace, "next")] == "nvidia.com/mig-2g.35gb"
        cluster.kubectl("delete", "pod", "train", "-n", namespace)
        cluster.wait_gone(pods_path(namespace), "train")
        running.until(cut(driver, "2g.35gb"), what="the slice of the pod that ended gone", timeout=30)
        cluster.kubectl("delete", "pod", "next", "-n", namespace)
        running.until(cut(driver), what="no slice", timeout=30)
    assert not [*(tmp_path / "state/cut").glob("*.json")]
