"""The fault file: a person edits it, devices become unhealthy and recover."""

import asyncio
import logging
from pathlib import Path

import pytest

from tessera.node.sources.faults import FaultySource
from tests.node.running import ListSource, mock_devices, slices


def ill(source: FaultySource) -> dict[str, str]:
    return {device.id: device.problem for device in asyncio.run(source.devices()) if device.problem}


def test_lines_come_and_go(tmp_path: Path) -> None:
    """Each line makes a device unhealthy, without a restart; taking it out, or the file, heals."""
    path = tmp_path / "faults.yaml"
    source = FaultySource(ListSource(mock_devices()), path)
    assert ill(source) == {}
    path.write_text("device_3: unhealthy\ndevice_4: healthy\ndevice_5: XID 79, fell off the bus\ndevice_6:\n")
    assert ill(source) == {
        "device_3": f"marked unhealthy in {path}",
        "device_5": f"XID 79, fell off the bus (says {path})",
    }
    path.write_text("device_3: unhealthy\n")
    assert list(ill(source)) == ["device_3"]
    path.write_text("")
    assert ill(source) == {}
    path.write_text("device_1: unhealthy\n")
    assert list(ill(source)) == ["device_1"]
    path.unlink()
    assert ill(source) == {}


@pytest.mark.parametrize("name", ["device_1", "gpu-1", "card 1", "GPU1"])
def test_a_card_is_all_its_devices(tmp_path: Path, name: str) -> None:
    """A card's number stands for every device on the card."""
    path = tmp_path / "faults.yaml"
    path.write_text(f"{name}: unhealthy\n")
    devices = slices(2, [0, 2], card=0) + slices(2, [0, 2], card=1)
    assert list(ill(FaultySource(ListSource(devices), path))) == ["MIG-1-0-2", "MIG-1-2-2"]


def test_one_slice_alone(tmp_path: Path) -> None:
    """A slice is named by its UUID."""
    path = tmp_path / "faults.yaml"
    path.write_text("MIG-0-2-2: unhealthy\n")
    assert list(ill(FaultySource(ListSource(slices(2, [0, 2])), path))) == ["MIG-0-2-2"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("device_3: [", "faults.yaml:"),
        ("- device_3", "expected a map such as device_3: unhealthy"),
        ("device_3: 7", "device_3: expected healthy, unhealthy or a reason in words"),
    ],
)
def test_a_broken_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, complaint: str
) -> None:
    """What was marked before holds, and one line says what is wrong."""
    path = tmp_path / "faults.yaml"
    path.write_text("device_2: unhealthy\n")
    source = FaultySource(ListSource(mock_devices()), path)
    assert list(ill(source)) == ["device_2"]
    path.write_text(text)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert list(ill(source)) == ["device_2"]
    (record,) = caplog.records
    assert complaint in record.getMessage()
