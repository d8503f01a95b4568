"""Tessera's device plugin and NVIDIA's read the same cards, without a cluster."""

import json
from pathlib import Path

import pytest

from e2e.command import Running, tessera
from e2e.nvidia import Driver
from e2e.nvidia.listed import given
from e2e.nvidia.machine import Machine

pytestmark = pytest.mark.usefixtures("nvidia_programs")
Given = dict[str, dict[str, list[str]]]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "driver", "H200", cards=2)


def plugin(driver: Driver, machine: Machine, folder: Path, strategy: str) -> Running:
    """Tessera's, where it finds the machine's files."""
    config = folder / "devices.yaml"
    config.write_text(f"nvml: {{migStrategy: {strategy}}}\n")
    (folder / "k/device-plugins").mkdir(parents=True, exist_ok=True)
    options = (
        f"--config={config}",
        "--node-name=node-1",
        f"--kubelet-dir={folder / 'k'}",
        f"--cdi-dir={folder / 'cdi'}",
        f"--state-dir={folder / 'state'}",
        "--metrics-listen=127.0.0.1:0",
    )
    return Running(
        "device-plugin",
        *options,
        log=folder / "tessera.log",
        environment=driver.environment,
        inside=machine.seen_by,
    )


def ours(driver: Driver, machine: Machine, folder: Path, strategy: str) -> Given:
    """The resources of Tessera's plugin, their devices, and the device nodes of each."""
    with plugin(driver, machine, folder, strategy) as running:
        running.wait_for_log("CDI spec written")
    (spec,) = (folder / "cdi").glob("*.json")
    nodes = {
        one["name"]: sorted(node["path"] for node in one["containerEdits"]["deviceNodes"])
        for one in json.loads(spec.read_text())["devices"]
    }
    spec.unlink()
    listed = tessera(
        "device-plugin", f"--config={folder / 'devices.yaml'}", "--list", environment=driver.environment
    )
    found: Given = {}
    for resource, name, health in (line.split() for line in listed.stdout.splitlines()):
        assert health == "healthy"
        found.setdefault(resource, {})[name] = nodes[name]
    return found


@pytest.mark.parametrize(
    ("strategy", "cards"),
    [
        ("none", [["2g.35gb", "2g.35gb", "3g.71gb"], None]),
        ("mixed", [None, None]),
        ("mixed", [["2g.35gb", "2g.35gb", "3g.71gb"], None]),
        ("mixed", [["1g.18gb"] * 7, ["1g.35gb", "4g.71gb"]]),
        ("single", [["1g.18gb"] * 7, ["1g.18gb"] * 7]),
        ("single", [None, None]),
    ],
)
def test_as_nvidias_plugin(
    driver: Driver, tmp_path: Path, strategy: str, cards: list[list[str] | None]
) -> None:
    """Same resources, same devices by UUID, same device nodes and capabilities."""
    for number, profiles in enumerate(cards):
        if profiles is not None:
            driver.cut(number, *profiles)
    machine = Machine(tmp_path / "machine", driver)
    theirs = given(driver, machine, tmp_path, strategy=strategy)
    assert ours(driver, machine, tmp_path, strategy) == theirs
    assert theirs


def test_media_engines_are_named_as_by_gpu_feature_discovery(driver: Driver, tmp_path: Path) -> None:
    """Of NVIDIA's plugin 0.19 a slice with media engines is one without: the devices are the same, the resource is not."""
    driver.cut(0, *["1g.18gb"] * 6, "1g.18gb+me")
    driver.cut(1, "7g.141gb")
    machine = Machine(tmp_path / "machine", driver)
    theirs, found = given(driver, machine, tmp_path), ours(driver, machine, tmp_path, "mixed")
    with_media = found.pop("nvidia.com/mig-1g.18gb.me")
    assert len(with_media) == 1
    found["nvidia.com/mig-1g.18gb"] |= with_media
    assert found == theirs


def test_fault_51_an_xid_makes_its_slice_unhealthy_alone(driver: Driver, tmp_path: Path) -> None:
    """A critical error on one GPU instance concerns that slice, and no other."""
    driver.cut(0, "2g.35gb", "2g.35gb", "3g.71gb")
    with plugin(driver, Machine(tmp_path / "machine", driver), tmp_path, "mixed") as running:
        running.wait_for_log("CDI spec written")
        driver.xid(0, 79, driver.slices(0)[0].instance)
        running.wait_for_log("nvidia.com/mig-2g.35gb: 1 unhealthy: MIG-")
        assert "XID 79" in running.log.read_text()
        assert "3g.71gb: 1 unhealthy" not in running.log.read_text()
