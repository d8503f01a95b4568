"""The device plugin that cuts cards of a stand-in for NVIDIA's driver, and what goes wrong in the middle of a cut."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
from e2e.cluster import ApiError, pods_path
from e2e.nvidia import NVML, Driver
from e2e.nvidia.machine import device_nodes

from stress.chaos.churn import NAMESPACE
from stress.chaos.node import Hardware, NodePart
from stress.chaos.schedule import Fault
from tessera.protocol.kubelet import checkpoint

CARDS: Final = 2
CUTS: Final = (  # the calls that a cut makes
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
)
PROMISE: Final = "a slice that a pod holds is never cut"


class CardsPart(NodePart):
    """The device plugin with `nvml.cut`."""

    kind = "cards"

    def make_hardware(self, folder: Path) -> Hardware:
        self.driver = Driver(folder / "driver", "H200", cards=CARDS)
        for card in self.driver.cards:
            self.driver.cut(card)
        return Hardware(
            config="nvml: {migStrategy: mixed, cut: true}\n",
            layouts=("2g.35gb=2,3g.71gb=1", "1g.18gb=7", "3g.71gb=2", "2g.35gb=3,1g.18gb=1"),
            devices={"2g.35gb": 4, "3g.71gb": 2},
            profiles=("1g.18gb", "2g.35gb", "3g.71gb"),
            environment=self.driver.variables,
        )

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with device_nodes(CARDS), super().prepared():
            self.ask_for(self.hardware.layouts[0])
            yield

    def faults(self) -> list[Fault]:
        return [
            *super().faults(),
            Fault("a kill in the middle of a cut", self._killed_at_a_call, 0.5, 2.0),
            Fault("a cut that NVML refuses", self._refused, 1.0, 5.0),
            Fault("a call of NVML that hangs", self._hanging, 1.0, 8.0),
            Fault("a lost card", self._lost, 1.0, 6.0),
            Fault("a full disk in the middle of a cut", self._disk_full_at_a_call, 1.0, 5.0),
            Fault("a full disk and a kill in the middle of a cut", self._disk_full_and_killed, 0.5, 3.0),
        ]

    @contextmanager
    def _killed_at_a_call(self) -> Iterator[None]:
        call, after = self.random.choice(CUTS), self.random.random() < 0.5
        self.driver.kill(call, nth=self.random.randint(1, 4), after=after)
        self.change_layout()
        deadline = time.monotonic() + 8.0
        while self.program.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        yield
        self.driver.no_faults()
        with self.killed():
            pass

    @contextmanager
    def _refused(self) -> Iterator[None]:
        nth, times = self.random.randint(1, 3), self.random.randint(1, 3)
        self.driver.fail(self.random.choice(CUTS), NVML.INSUFFICIENT_RESOURCES, nth=nth, times=times)
        self.change_layout()
        yield
        self.driver.no_faults()

    @contextmanager
    def _hanging(self) -> Iterator[None]:
        with self.driver.hanging(self.random.choice(CUTS), nth=self.random.randint(1, 3)):
            self.change_layout()
            yield

    @contextmanager
    def _lost(self) -> Iterator[None]:
        card = self.random.choice(self.driver.cards)
        self.driver.lose(card)
        yield
        self.driver.lose(card, lost=False)

    @contextmanager
    def _disk_full_at_a_call(self) -> Iterator[None]:
        """The disk is full from some call of a cut on; the cut goes on."""
        with contextlib.ExitStack() as stack:
            with self._held_in_a_cut():
                stack.enter_context(self.filled_disk())
            yield

    @contextmanager
    def _disk_full_and_killed(self) -> Iterator[None]:
        """The same, and the program is killed in this call; the next one starts while the disk is full."""
        with contextlib.ExitStack() as stack:
            with self._held_in_a_cut():
                stack.enter_context(self.filled_disk())
                self.program.kill()
            self.program = self.start_program()
            yield

    @contextmanager
    def _held_in_a_cut(self) -> Iterator[None]:
        """Inside the block, the program stands in a call of a cut, if the new layout needs this call."""
        call = self.random.choice(CUTS)
        self.driver.forget_calls()
        with self.driver.hanging(call, nth=self.random.randint(1, 3)):
            self.change_layout()
            deadline = time.monotonic() + 6.0
            while not self.driver.calls(call) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.rest(0.1, 0.5)
            yield

    # Promises

    def look(self) -> None:
        super().look()
        with contextlib.suppress(ApiError, OSError, ValueError, msgspec.DecodeError):
            allocated = self._allocated()
            present = {piece.uuid(card) for card in self.driver.cards for piece in self.driver.slices(card)}
            missing = {uid: gone for uid, devices in allocated.items() if (gone := devices - present)}
            self.report.checks[PROMISE] += 1
            if missing:
                self._complain(missing)

    def _complain(self, missing: Mapping[str, set[str]]) -> None:
        """Report pods that run on after one of their slices was missing. The kubelet's record may be older than a pod's end."""
        for pod in self.cluster.api.get(pods_path(NAMESPACE))["items"]:
            metadata = pod["metadata"]
            runs = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in metadata
            if runs and metadata["uid"] in missing:
                gone = ", ".join(sorted(missing[metadata["uid"]]))
                self.report.add(self.kind, f"pod {metadata['name']} runs, and its slice is gone: {gone}")

    def _allocated(self) -> dict[str, set[str]]:
        """The devices that pods have by the kubelet's record, by the pods' UIDs."""
        record = self.cluster.kubelet_dir / "device-plugins" / checkpoint.FILE
        entries = msgspec.json.decode(record.read_bytes())["Data"]["PodDeviceEntries"] or ()
        return {entry["PodUID"]: {*chain(*entry["DeviceIDs"].values())} for entry in entries}
