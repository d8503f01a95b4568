"""Real cards on a stand-in for NVIDIA's driver: a look at them, a cut of all of them, and what NVML takes of memory.

The device plugin is a process of its own, between a stand-in kubelet and a stand-in API server in this one. The same calls of NVML
without anything around them are measured beside, in the same round: a real driver takes its own time for each.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
from e2e.cluster.errors import ClusterError
from e2e.nvidia import Driver

from benchmarks.dra import kubeconfig
from benchmarks.processes import LOAD_CORE, SERVER_CORE, Running, Unavailable, on_core
from benchmarks.results import TESSERA, Results
from benchmarks.stage import Stage
from tessera.core.devices.device import ON_THE_WAY
from tessera.node.sources.nvml_card import read_card
from tessera.node.sources.nvml_library import NvmlLibrary
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import NODES
from tessera.simulation.control_plane.store import Store
from tessera.simulation.kubelet import Kubelet

RUN: Final = "cards"
BARE: Final = "the same calls, bare"
LOOK: Final = "a look at 8 cards × 7 slices"
MS: Final = "ms"
CPU: Final = "ms of processor time"
RECUT: Final = "8 cards from 3 slices to 7"
SECONDS: Final = "s until the kubelet counts them"
MORE: Final = "s more than the bare calls"
NO_WAIT: Final = "Tessera, less its wait"
RESIDENT: Final = "MiB resident"
PLUGIN: Final = "the device plugin with 56 devices"
GROWTH: Final = "MiB more than one that only reads"
READ: Final = "NVML, read"
CUT: Final = "NVML, cut"
SIMULATED: Final = "simulated"

_CARDS: Final = 8
_FIRST: Final = ("2g.35gb", "2g.35gb", "3g.71gb")
_SEVEN: Final = ("1g.18gb",) * 7
_ONE: Final = "nvidia.com/mig-1g.18gb"
_NODE: Final = "bench"
_CONFIGS: Final = {
    CUT: "nvml: {migStrategy: mixed, cut: true}",
    READ: "nvml: {migStrategy: mixed}",
    SIMULATED: f"simulated: {{product: H200, cards: {_CARDS}, layout: '1g.18gb=7'}}",
}
# The plugin, and the same without the wait between withdrawing slices and removing them
_COMMAND: Final = "import tessera.core.devices.device as t; {}from tessera.cli import main; main()"
_LOOKS: Final = 100
_PATIENCE: Final = 60.0  # seconds


Quantity = tuple[str, str, str]  # case, unit, subject


def run(stage: Stage, results: Results) -> None:
    """A round is a look, a cut with and without the wait, and three plugins' sizes; a short one is the look alone."""
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory(prefix="tessera-", dir="/var/tmp") as folder:
        try:
            driver = Driver(Path(folder) / "driver", "H200", cards=_CARDS)
        except ClusterError as error:
            if stage.effort.short:
                results.note(f"{RUN}: not measured: {error}")
                return
            raise Unavailable(str(error)) from error
        with driver.loaded():
            rounds = [
                _look(driver) | ({} if stage.effort.short else asyncio.run(_round(driver)))
                for _ in range(stage.effort.rounds)
            ]
    for quantity in rounds[0]:
        results.add(RUN, *quantity, [one[quantity] for one in rounds])
    results.note(
        f"{RUN}: the driver, the kubelet and the API server are stand-ins. A slice that is withdrawn is removed {ON_THE_WAY:.1f} s after the kubelet's checkpoint "
        f"has it no longer: until then a pod for which the kubelet had already chosen it can be given it; load average {os.getloadavg()[0]:.1f} at the end"
        + (", all of it with real-time priority" if os.sched_getscheduler(0) == os.SCHED_FIFO else "")
    )


def _look(driver: Driver) -> dict[Quantity, float]:
    """Milliseconds of one look, the median of many in turns; and of the processor, the mean."""
    import pynvml

    for card in driver.cards:
        driver.cut(card, *_SEVEN)
    nvml = NvmlLibrary()

    def bare() -> None:
        for card in range(pynvml.nvmlDeviceGetCount()):
            read_card(pynvml, pynvml.nvmlDeviceGetHandleByIndex(card), card, Path("/sys"))

    subjects: dict[str, Callable[[], object]] = {TESSERA: nvml.cards, BARE: bare}
    nvml.cards()
    times: dict[str, list[float]] = {subject: [] for subject in subjects}
    processor = dict.fromkeys(subjects, 0.0)
    for _ in range(_LOOKS):
        for subject, look in subjects.items():
            begun, used = time.perf_counter(), time.process_time()
            look()
            times[subject].append((time.perf_counter() - begun) * 1000)
            processor[subject] += (time.process_time() - used) * 1000
    nvml.close()
    return {
        quantity: value
        for subject in subjects
        for quantity, value in (
            ((LOOK, MS, subject), median(times[subject])),
            ((LOOK, CPU, subject), processor[subject] / _LOOKS),
        )
    }


async def _round(driver: Driver) -> dict[Quantity, float]:
    found: dict[Quantity, float] = {}
    bare = _bare_recut(driver)
    found[RECUT, SECONDS, BARE] = bare
    for subject, before in ((TESSERA, ""), (NO_WAIT, "t.RECALL = 0.0; ")):
        for card in driver.cards:
            driver.cut(card, *_FIRST)
        async with _plugin(driver, CUT, before) as (process, kubelet, annotate):
            annotate("2g.35gb=2,3g.71gb=1")
            await kubelet.until(lambda one: sum(one.allocatable.values()) == 3 * _CARDS, _PATIENCE)
            begun = time.perf_counter()
            annotate("1g.18gb=7")
            await kubelet.until(lambda one: one.allocatable.get(_ONE) == 7 * _CARDS, _PATIENCE)
            found[RECUT, SECONDS, subject] = time.perf_counter() - begun
            found[RECUT, MORE, subject] = found[RECUT, SECONDS, subject] - bare
            if not before:
                found[PLUGIN, RESIDENT, CUT] = process.memory()
    for kind in (READ, SIMULATED):
        async with _plugin(driver, kind) as (process, kubelet, _):
            await kubelet.until(lambda one: one.allocatable.get(_ONE) == 7 * _CARDS, _PATIENCE)
            await asyncio.sleep(5)  # as long as the other one has run
            found[PLUGIN, RESIDENT, kind] = process.memory()
    found[PLUGIN, GROWTH, CUT] = found[PLUGIN, RESIDENT, CUT] - found[PLUGIN, RESIDENT, READ]
    return found


def _bare_recut(driver: Driver) -> float:
    """Seconds that the stand-in takes to remove and to make the same slices."""
    import pynvml

    for card in driver.cards:
        driver.cut(card, *_FIRST)
    pynvml.nvmlInit()
    begun = time.perf_counter()
    for card in driver.cards:
        handle = pynvml.nvmlDeviceGetHandleByIndex(card)
        for one in driver.slices(card):
            instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, one.instance)
            compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
            pynvml.nvmlComputeInstanceDestroy(compute)
            pynvml.nvmlGpuInstanceDestroy(instance)
        for start in range(len(_SEVEN)):
            place = pynvml.c_nvmlGpuInstancePlacement_t()
            place.start, place.size = start, 1
            made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, 19, ctypes.byref(place))
            pynvml.nvmlGpuInstanceCreateComputeInstance(made, 0)
    seconds = time.perf_counter() - begun
    pynvml.nvmlShutdown()
    return seconds


@asynccontextmanager
async def _plugin(
    driver: Driver, kind: str, before: str = ""
) -> AsyncIterator[tuple[Running, Kubelet, Callable[[str], None]]]:
    """The device plugin as a process between stand-ins, and how its node is annotated."""
    with _folder() as root:
        (root / "devices.yaml").write_text(_CONFIGS[kind])
        server = ApiServer(Store())
        server.store.create(NODES, {"metadata": {"name": _NODE}})
        kubelet = Kubelet(root)
        await kubelet.start()
        async with await server.start():
            (root / "kubeconfig").write_text(msgspec.json.encode(kubeconfig(server.url)).decode())
            command: list[str | Path] = [
                sys.executable, "-c", _COMMAND.format(before), "device-plugin", f"--config={root}/devices.yaml",
                f"--kubeconfig={root}/kubeconfig", f"--node-name={_NODE}", f"--kubelet-dir={root}",
                f"--cdi-dir={root}/cdi", f"--state-dir={root}/state", "--metrics-listen=127.0.0.1:0",
            ]  # fmt: skip
            variables = [f"{name}={value}" for name, value in driver.variables.items()]
            process = Running(on_core(SERVER_CORE, ["env", *variables, *command]))

            def annotate(layout: str) -> None:
                document = server.store.get(NODES, _NODE).document
                metadata: dict[str, Any] = document["metadata"]
                annotations = {**metadata.get("annotations", {}), RUNAI_CONFIG: layout}
                server.store.update(
                    NODES, _NODE, {**document, "metadata": {**metadata, "annotations": annotations}}
                )

            try:
                yield process, kubelet, annotate
            finally:
                process.stop()
                await kubelet.stop()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tessera-", dir="/var/tmp") as folder:  # short, for sockets
        yield Path(folder)
