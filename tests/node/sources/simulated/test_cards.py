"""Simulated GPUs: what a layout makes, and what a container sees of it."""

import os
import subprocess
from pathlib import Path

import pytest

from tessera.core.devices.device import Assignment, Device
from tessera.core.mig.geometry import SIMULATED_H200_70GB
from tessera.core.mig.layout import NodeLayout, Strategy
from tessera.node.sources.simulated import CardDevices
from tessera.protocol.configuration.devices import SimulatedCards
from tessera.protocol.mig.documents import read_layout

CARDS = [SIMULATED_H200_70GB] * 4
MIXED = "2g.20gb=2,3g.30gb=1"


def devices_of(
    tmp_path: Path, wanted: str | NodeLayout = MIXED, strategy: Strategy = Strategy.MIXED
) -> list[Device]:
    layout = read_layout(wanted, CARDS) if isinstance(wanted, str) else wanted
    return list(maker(tmp_path, strategy).of(layout))


def maker(tmp_path: Path, strategy: Strategy = Strategy.MIXED) -> CardDevices:
    cards = SimulatedCards(
        tuple(CARDS), strategy, "", "NVIDIA_VISIBLE_DEVICES", "tessera.simulated/gpu", numa_nodes=2
    )
    return CardDevices(cards, "node-1", tmp_path)


def counted(devices: list[Device]) -> dict[str, int]:
    found: dict[str, int] = {}
    for device in devices:
        found[device.resource] = found.get(device.resource, 0) + 1
    return found


@pytest.mark.parametrize(
    ("layout", "strategy", "resources"),
    [
        (MIXED, Strategy.MIXED, {"nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.30gb": 4}),
        (MIXED, Strategy.NONE, {"nvidia.com/gpu": 4}),
        ("1g.10gb=7", Strategy.SINGLE, {"nvidia.com/gpu": 28}),
        ("1g.10gb=7", Strategy.MIXED, {"nvidia.com/mig-1g.10gb": 28}),
    ],
)
def test_layouts_become_devices(
    tmp_path: Path, layout: str, strategy: Strategy, resources: dict[str, int]
) -> None:
    """Four cards of 2×2g.20gb + 1×3g.30gb are eight and four devices; the strategy decides their names."""
    devices = devices_of(tmp_path, layout, strategy)
    assert counted(devices) == resources
    assert len({device.id for device in devices}) == len(devices)
    assert next(device.numa for device in devices if device.place and device.place.card.index == 3) == (1,)


def test_ids_outlive_a_restart_and_a_change_elsewhere(tmp_path: Path) -> None:
    """The same layout gives the same ids; a card that stays as it is keeps its devices."""
    first = devices_of(tmp_path)
    assert devices_of(tmp_path) == first
    changed = read_layout(
        "{version: v1, mig-configs: {selected: ["
        "{devices: [0], mig-enabled: true, mig-devices: [7g.70gb]},"
        "{devices: [1, 2, 3], mig-enabled: true, mig-devices: [2g.20gb, 2g.20gb, 3g.30gb]}]}}",
        CARDS,
    )
    then = devices_of(tmp_path, changed)
    kept = [device for device in first if device.place and device.place.card.index > 0]
    assert [device for device in then if device.place and device.place.card.index > 0] == kept


def test_the_tool_is_kept_in_place(tmp_path: Path) -> None:
    """Every device mounts nvidia-smi; it is there, executable, and comes back when it is removed or changed."""
    layout, cards = read_layout(MIXED, CARDS), maker(tmp_path / "tools")
    device = cards.of(layout)[0]
    (mount,) = device.edits.mounts
    tool = Path(mount.host_path)
    assert mount.container_path == "/usr/bin/nvidia-smi"
    assert tool.stat().st_mode & 0o777 == 0o755
    good = tool.read_bytes()
    for spoil in (tool.unlink, lambda: tool.write_text("#!/bin/sh\n")):
        spoil()
        cards.of(layout)
        assert tool.read_bytes() == good


def shells(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """Shell → how to run it and the PATH it has; busybox brings its own env and sort."""
    applets = tmp_path / "applets"
    applets.mkdir()
    for name in ("sh", "env", "sort", "printf"):
        (applets / name).symlink_to("/usr/bin/busybox")
    return {
        "busybox": ([str(applets / "sh")], str(applets)),
        "dash": (["/usr/bin/dash"], "/usr/bin:/bin"),
        "bash": (["/usr/bin/bash", "--posix"], "/usr/bin:/bin"),
    }


@pytest.mark.parametrize("shell", ["busybox", "dash", "bash"])
def test_nvidia_smi_lists_exactly_the_containers_devices(tmp_path: Path, shell: str) -> None:
    """`nvidia-smi -L` lists the devices that this container has: cards with their slices, and no others."""
    command, path = shells(tmp_path)[shell]
    if not Path(command[0]).exists():
        pytest.skip(f"no {shell} here")
    devices = devices_of(tmp_path)
    # one slice of card 1 and two of card 3, given by two resources
    mine = [
        next(d for d in devices if d.place and d.place.card.index == 1 and d.resource.endswith("3g.30gb")),
        *[d for d in devices if d.place and d.place.card.index == 3 and d.resource.endswith("2g.20gb")],
    ]
    gpus = [dict(device.edits.env).popitem()[1].split("|")[1] for device in mine]
    tool = mine[0].edits.mounts[0].host_path

    def smi(*arguments: str, devices: list[Device] = mine) -> subprocess.CompletedProcess[str]:
        environment = dict(Assignment(tuple(devices)).edits.env)
        return subprocess.run(
            [*command, tool, *arguments],
            env={"PATH": path, "OTHER": "x\nTESSERA", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    listed = smi("-L")
    assert listed.stderr == ""
    assert listed.stdout.splitlines() == [
        f"GPU 0: Simulated H200-70GB (UUID: {gpus[0]})",
        f"  MIG 3g.30gb         Device  0: (UUID: {mine[0].id})",
        f"GPU 1: Simulated H200-70GB (UUID: {gpus[1]})",
        f"  MIG 2g.20gb         Device  0: (UUID: {mine[1].id})",
        f"  MIG 2g.20gb         Device  1: (UUID: {mine[2].id})",
    ]
    table = smi().stdout.splitlines()
    assert len({len(line) for line in table}) == 1, "a straight table"
    assert [line.split() for line in table[5:8]] == [
        ["|", "0", "Simulated", "H200-70GB", "3g.30gb", "30720", "MiB", "|"],
        ["|", "1", "Simulated", "H200-70GB", "2g.20gb", "20480", "MiB", "|"],
        ["|", "1", "Simulated", "H200-70GB", "2g.20gb", "20480", "MiB", "|"],
    ]
    nothing = smi("-L", devices=[])
    assert (nothing.returncode, nothing.stdout) == (6, "No devices were found\n")
    assert smi("--query-gpu=name").returncode == 2
    assert smi("--help").returncode == 0


def test_a_whole_gpu_has_no_slices(tmp_path: Path) -> None:
    """A card that is not cut is one line."""
    layout = read_layout(
        "{version: v1, mig-configs: {selected: [{devices: all, mig-enabled: false}]}}", CARDS
    )
    device = devices_of(tmp_path, layout)[2]
    assert device.resource == "nvidia.com/gpu"
    done = subprocess.run(
        ["/bin/sh", device.edits.mounts[0].host_path, "-L"],
        env={"PATH": os.environ["PATH"], **dict(device.edits.env)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"GPU 0: Simulated H200-70GB (UUID: {device.id})\n"
