"""Listed devices: as healthy as their files."""

import os
from pathlib import Path

from tessera.core.devices.device import Device, DeviceNode, Edits, Mount
from tessera.node.sources.static import StaticSource

DEVICE = Device(
    "device_0",
    resource="device.example.com/gpu",
    cdi_kind="device.example.com/gpu",
    edits=Edits(
        nodes=(DeviceNode("/dev/mock/device_0", "/dev/mock/device_0"),),
        mounts=(Mount("/mock/lib/device_0.so", "/mock/lib/device_0.so"),),
    ),
)


def test_health_follows_the_host(tmp_path: Path) -> None:
    """A missing file, or one that is no device node, is named; when all is there the device is healthy."""
    source = StaticSource([DEVICE], host_root=tmp_path)

    def problem() -> str:
        (device,) = source.devices()
        return device.problem

    assert problem() == "/dev/mock/device_0 is not on the host"
    (tmp_path / "dev" / "mock").mkdir(parents=True)
    (tmp_path / "dev" / "mock" / "device_0").touch()
    assert problem() == "/dev/mock/device_0 is no device node (mknod makes one)"
    (tmp_path / "dev" / "mock" / "device_0").unlink()
    os.mkfifo(tmp_path / "dev" / "mock" / "device_0")  # which needs no privilege, and CDI takes for a device
    assert problem() == "/mock/lib/device_0.so is not on the host"
    (tmp_path / "mock" / "lib").mkdir(parents=True)
    (tmp_path / "mock" / "lib" / "device_0.so").touch()
    assert problem() == ""
    (tmp_path / "mock" / "lib" / "device_0.so").unlink()
    assert problem() == "/mock/lib/device_0.so is not on the host"


def test_the_host_is_where_we_are_unless_said_otherwise() -> None:
    """Without a host root, paths are looked up as they stand."""
    null = Device(
        "null", resource="r.io/x", cdi_kind="r.io/x", edits=Edits(nodes=(DeviceNode("/dev/n", "/dev/null"),))
    )
    (device,) = StaticSource([null]).devices()
    assert device.healthy
