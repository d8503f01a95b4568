"""A plugin that runs against a kubelet, for tests: both real gRPC over unix sockets, in a folder of their own."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tessera.core.devices.device import Card, Device, DeviceNode, Edits, Handover, Place, Span, Transition
from tessera.node.assembly import NodeSources, Settings
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.metrics import Metrics
from tessera.node.polling import NotPublished
from tessera.node.sources import Source, SourceFailed
from tessera.protocol.configuration.devices import DeviceConfiguration
from tessera.simulation.kubelet import Kubelet

GPU = "device.example.com/gpu"
TICK = 0.01  # seconds
# In memory where the system has that: every file that is written is waited for.
TEMPORARY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="tsr-", dir=TEMPORARY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def mock_devices(count: int = 8, resource: str = GPU) -> list[Device]:
    return [
        Device(
            f"device_{n}",
            resource=resource,
            cdi_kind=resource,
            edits=Edits(nodes=(DeviceNode(f"/dev/mock/device_{n}", f"/dev/mock/device_{n}"),)),
        )
        for n in range(count)
    ]


def slices(size: int, starts: Sequence[int], card: int = 0) -> list[Device]:
    """MIG devices of one profile on one card."""
    return [
        Device(
            f"MIG-{card}-{start}-{size}",
            resource=f"nvidia.com/mig-{size}g.{10 * size}gb",
            cdi_kind="simulated.example/gpu",
            edits=Edits(env=((f"TESSERA_{card}_{start}", "1"),)),
            env_list="NVIDIA_VISIBLE_DEVICES",
            place=Place(Card(card), Span(start, size)),
        )
        for start in starts
    ]


def offers(resource: str, count: int) -> Callable[[Kubelet], bool]:
    """Whether that many are allocatable."""
    return lambda kubelet: kubelet.allocatable.get(resource) == count


class ListSource:
    """A source that says what the test says."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.list = list(devices)
        self.failure = ""

    async def devices(self) -> Sequence[Device]:
        if self.failure:
            raise SourceFailed(self.failure)
        return list(self.list)


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    """A metric's value, or None while there is no such series."""
    values = [
        value
        for family in metrics.families()
        if family.name == name
        for _, has, value in family.samples
        if has == labels
    ]
    return values[0] if values else None


@dataclass
class Running:
    """Everything a test wants to touch."""

    root: Path
    kubelet: Kubelet
    plugin: Plugin
    metrics: Metrics
    transitions: list[Transition]
    changed: asyncio.Event

    def poke(self) -> None:
        """A source has news: poll now, not only at the next tick."""
        self.changed.set()

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    def metric(self, name: str, **labels: str) -> float | None:
        return sample(self.metrics, f"tessera_device_plugin_{name}", **labels)

    async def until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait for something that is not announced."""
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def started(kubelet: Kubelet) -> AsyncIterator[Kubelet]:
    """A kubelet that outlives plugins."""
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()


@asynccontextmanager
async def running(
    *sources: Source,
    root: Path,
    kubelet: Kubelet | None = None,
    handover: Handover = Handover.CDI,
    tick: float = TICK,
    possible: Sequence[Device] = (),
) -> AsyncIterator[Running]:
    """A kubelet (a new one, unless given) and a plugin; both are stopped at the end."""
    own = kubelet is None
    kubelet = kubelet or Kubelet(root)
    if own:
        await kubelet.start()
    transitions: list[Transition] = []
    changed = asyncio.Event()

    class Sources(NodeSources):
        def possible(self) -> Sequence[Device]:
            return possible

        def report(self, result: Transition | NotPublished) -> None:
            if isinstance(result, Transition):
                transitions.append(result)

    settings = Settings("node-1", kubelet_dir=root, cdi_dir=root / "cdi", state_dir=root / "state", tick=tick)
    configuration = DeviceConfiguration(handover=handover)
    plugin = Plugin(configuration, settings, sources=Sources(sources, changed=changed))
    task = asyncio.create_task(plugin.run())
    try:
        yield Running(root, kubelet, plugin, plugin.metrics, transitions, changed)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if own:
            await kubelet.stop()


def run(test: Callable[[Path], Awaitable[None]]) -> None:
    """Run an asynchronous test in a short folder, with a deadline."""

    async def bounded(folder: Path) -> None:
        async with asyncio.timeout(60):
            await test(folder)

    with short_folder() as folder:
        asyncio.run(bounded(folder))
