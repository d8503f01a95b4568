"""What NVIDIA's device plugin and GPU Feature Discovery say of a driver's cards, without a cluster."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from e2e.cluster import program
from e2e.cluster.processes import until
from e2e.nvidia.driver import Driver
from e2e.nvidia.machine import Machine
from tessera.protocol.kubelet import v1beta1_pb2 as messages

_SERVED: Final = re.compile(r"Starting to serve '([^']+)'")


def discovered(driver: Driver, machine: Machine, folder: Path, *, strategy: str = "mixed") -> dict[str, str]:
    """The labels that GPU Feature Discovery writes."""
    features = folder / "features"
    command = (
        program("gpu-feature-discovery"),
        "--oneshot",
        "--use-node-feature-api=false",
        "--no-timestamp",
        "--machine-type-file=/nonexistent",
        f"--mig-strategy={strategy}",
        f"--output-file={features}",
    )
    done = subprocess.run(
        machine.seen_by(*command), env=driver.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(line.split("=", 1) for line in features.read_text().splitlines() if "=" in line)


def offered(driver: Driver, machine: Machine, folder: Path, *, strategy: str = "mixed") -> dict[str, int]:
    """The resources that the device plugin offers, and how many devices of each are healthy.

    The plugin serves one after the other and does not say which is the last; when it ends it has served all. So a first guess of their
    number is as many as there are kinds of slices, not counting media engines, and what it served tells whether that was right.
    """
    names = (name for card in driver.cards for name in (driver.layout(card) if driver.mig(card) else ["gpu"]))
    kinds = {name.partition("+")[0] for name in names}
    number = max(1, len(kinds)) if strategy == "mixed" else 1
    while True:
        found, served = _offered(driver, machine, folder, strategy, number)
        if set(found) == served:
            return found
        number = len(served)


def _offered(
    driver: Driver, machine: Machine, folder: Path, strategy: str, number: int
) -> tuple[dict[str, int], set[str]]:
    with _serving(driver, machine, folder, strategy, number) as sockets:
        found = {_resource(one): _healthy(one) for one in sockets}
    return found, set(_SERVED.findall((folder / "device-plugin.log").read_text()))


@contextmanager
def _serving(
    driver: Driver, machine: Machine, folder: Path, strategy: str, number: int
) -> Iterator[list[Path]]:
    """The device plugin, at work until the block ends; the sockets of so many resources."""
    sockets, log = folder / "sockets", folder / "device-plugin.log"
    sockets.mkdir(exist_ok=True)
    command = (
        program("nvidia-device-plugin"),
        f"--mig-strategy={strategy}",
        f"--driver-root-ctr-path={driver.root}",
        "--pass-device-specs",
        "--kubelet-socket=",
    )
    with log.open("wb") as output:
        plugin = subprocess.Popen(
            machine.seen_by(*command, sockets=sockets), env=driver.environment, stdout=output, stderr=output
        )

    def serves() -> bool:
        assert plugin.poll() is None, log.read_text()[-2000:]
        return len(_SERVED.findall(log.read_text())) >= number or "No devices found" in log.read_text()

    try:
        until(serves, timeout=60, what="the plugin serves")
        yield sorted(sockets.glob("nvidia-*.sock"))
    finally:
        plugin.terminate()
        plugin.wait(30)


def given(
    driver: Driver, machine: Machine, folder: Path, *, strategy: str = "mixed"
) -> dict[str, dict[str, list[str]]]:
    """The device plugin's resources, their devices, and the device nodes that a container gets with each."""
    wanted = set(offered(driver, machine, folder, strategy=strategy))
    found: dict[str, dict[str, list[str]]] = {}
    with _serving(driver, machine, folder, strategy, len(wanted)) as sockets:
        for socket in sockets:
            with grpc.insecure_channel(f"unix:{socket}") as channel:
                ids = [one.ID for one in _listed(channel) if one.health == "Healthy"]
                found[_resource(socket)] = {one: _nodes(channel, one) for one in ids}
    assert set(found) == wanted
    return found


def _nodes(channel: grpc.Channel, device: str) -> list[str]:
    allocate = channel.unary_unary(
        "/v1beta1.DevicePlugin/Allocate",
        request_serializer=messages.AllocateRequest.SerializeToString,
        response_deserializer=messages.AllocateResponse.FromString,
    )
    request = messages.AllocateRequest(
        container_requests=[messages.ContainerAllocateRequest(devices_ids=[device])]
    )
    (answer,) = allocate(request, wait_for_ready=True, timeout=30).container_responses
    return sorted(one.container_path for one in answer.devices)


def _resource(socket: Path) -> str:
    return socket.stem.replace("nvidia-", "nvidia.com/", 1)


def _healthy(socket: Path) -> int:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        return sum(device.health == "Healthy" for device in _listed(channel))


def _listed(channel: grpc.Channel) -> list[messages.Device]:
    listen = channel.unary_stream(
        "/v1beta1.DevicePlugin/ListAndWatch",
        request_serializer=messages.Empty.SerializeToString,
        response_deserializer=messages.ListAndWatchResponse.FromString,
    )
    for answer in listen(messages.Empty(), wait_for_ready=True, timeout=30):
        return list(answer.devices)
    return []
