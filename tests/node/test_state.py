"""What a restart remembers."""

import logging
from pathlib import Path

import pytest

from tessera.core.devices.device import Device
from tessera.node.state import DeviceState
from tests.node.running import mock_devices, slices

DEVICES: list[Device] = [*mock_devices(2), *slices(2, [0, 2])]


def test_devices_come_back_as_they_were(tmp_path: Path) -> None:
    """Everything but health is kept, leaving devices with their reason."""
    path = tmp_path / "state" / "devices.json"
    leaving = Device("x", resource="a.b/c", cdi_kind="a.b/c", leaving=True, problem="stays for ml/train")
    DeviceState(path).save([DEVICES[0].unhealthy("ill"), *DEVICES[1:], leaving])
    assert DeviceState(path).load() == (*DEVICES, leaving)


def test_health_alone_is_not_worth_a_write(tmp_path: Path) -> None:
    """A device that becomes unhealthy and recovers leaves the file alone."""
    path = tmp_path / "devices.json"
    state = DeviceState(path)
    state.save(DEVICES)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    state.save([device.unhealthy("ill") for device in DEVICES])
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b'[{"id": "", "resource": "a", "cdi_kind": "b"}]',
        b"\xff",
        b'[{"id": "\xff", "resource": "a", "cdi_kind": "b"}]',
    ],
)
def test_a_broken_file_is_not_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    """One line, and nothing that could be taken for "no devices"; the next save puts it right."""
    path = tmp_path / "devices.json"
    path.write_bytes(text)
    state = DeviceState(path)
    assert state.load() is None
    assert state.error.startswith(f"{path} cannot be read: ")
    assert caplog.messages == [state.error]
    assert state.save([])
    assert DeviceState(path).load() == ()


def test_a_file_that_is_not_there_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first start of all."""
    state = DeviceState(tmp_path / "devices.json")
    assert (state.load(), state.error, caplog.messages) == (None, "", [])


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and work goes on."""
    (tmp_path / "state").write_text("a file where the folder should be")
    state = DeviceState(tmp_path / "state" / "devices.json")
    with caplog.at_level(logging.WARNING):
        assert not state.save(DEVICES)
        assert not state.save(DEVICES[:1])
    assert len(caplog.records) == 1
