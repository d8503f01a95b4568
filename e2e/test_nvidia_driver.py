"""The stand-in for NVIDIA's driver, asked through nvidia-ml-py."""

import ctypes
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from e2e.nvidia import NVML, Driver
from tessera.core.mig.geometry import Product, product_named
from tessera.core.mig.placement import Wish, place

PRODUCTS = ("A100-40GB", "A100-80GB", "H100-80GB", "H200")
CREATE = "nvmlDeviceCreateGpuInstance*"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Two H200, known to nvidia-ml-py in this process."""
    yield from _loaded(Driver(tmp_path / "driver", "H200", cards=2))


def _loaded(driver: Driver) -> Iterator[Driver]:
    with driver.loaded():
        nvml.nvmlInit()
        try:
            yield driver
        finally:
            nvml.nvmlShutdown()


def _profiles(card: Any) -> dict[str, Any]:
    """What the card offers, by name."""
    found = {}
    for kind in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, kind, version=2)
        except nvml.NVMLError_NotSupported:
            continue
        found[info.name.removeprefix("MIG ")] = info
    return found


def _places(card: Any, profile: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, None, ctypes.byref(count))
    found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, found, ctypes.byref(count))
    return [(one.start, one.size) for one in found]


def _make(card: Any, profile: str) -> Any:
    instance = nvml.nvmlDeviceCreateGpuInstance(card, _profiles(card)[profile].id)
    slices = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[int(profile[0])]
    return instance, nvml.nvmlGpuInstanceCreateComputeInstance(instance, slices)


def _refused(answer: NVML, call: Callable[[], object]) -> None:
    with pytest.raises(nvml.NVMLError) as error:
        call()
    assert error.value.value == answer


@pytest.mark.parametrize("name", PRODUCTS)
def test_tables(name: str, tmp_path: Path) -> None:
    """A card's profiles, their places, counts and ids are those of Tessera's product."""
    product = product_named(name)
    for _ in _loaded(Driver(tmp_path / "driver", name)):
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        found = _profiles(card)
        assert set(found) == {str(shape.profile) for shape, _ in product.listed}
        for shape, _ in product.listed:
            info = found[str(shape.profile)]
            assert (info.id, info.sliceCount, info.instanceCount) == (
                shape.profile_id,
                shape.compute,
                shape.most,
            )
            assert _places(card, info.id) == [(at, shape.size) for at in shape.starts]
        assert nvml.nvmlDeviceGetName(card).replace(" ", "-") == product.label
        assert nvml.nvmlDeviceGetMigMode(card) == [0, 0]
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(card) == 0


@pytest.mark.parametrize("highest_first", [False, True])
def test_cutting(driver: Driver, highest_first: bool) -> None:
    """Slices are made as long as there is a place for one, and never on top of each other; their devices have names and UUIDs."""
    driver.state.highest_first = highest_first
    product, draw = product_named("H200"), random.Random(1)
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceSetMigMode(card, 1) == 0
    ids = {name: info.id for name, info in _profiles(card).items()}
    made: list[Any] = []
    refused = 0
    for _ in range(400):
        if made and draw.random() < 0.4:
            instance, compute = made.pop(draw.randrange(len(made)))
            nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)
            continue
        profile = draw.choice(sorted(ids))
        before = driver.slices(0)
        fits = _fits(product, [(one.profile, one.start) for one in before], profile)
        try:
            made.append(_make(card, profile))
        except nvml.NVMLError_InsufficientResources:
            assert not fits
            refused += 1
        else:
            assert fits
            assert place(product, [_at(one.profile, one.start) for one in driver.slices(0)]) is not None
    assert refused > 50
    names = {nvml.nvmlDeviceGetName(one).rpartition(" ")[2] for one in _devices(card)}
    assert names == set(driver.layout(0))
    assert len({nvml.nvmlDeviceGetUUID(one) for one in _devices(card)}) == len(driver.layout(0))


def _at(profile: str, start: int) -> Wish:
    return Wish(Driver.wish(profile).profile, start)


def _fits(product: Product, present: list[tuple[str, int]], profile: str) -> bool:
    shape = product.shape(Driver.wish(profile).profile)
    assert shape is not None
    wishes = [_at(*one) for one in present]
    return any(place(product, [*wishes, _at(profile, start)]) is not None for start in shape.starts)


def _devices(card: Any) -> Iterator[Any]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except nvml.NVMLError_NotFound:
            return


def test_what_is_removed_is_gone(driver: Driver) -> None:
    """A handle of a slice that was made anew at the same place is not taken for the new one, and the UUID is another."""
    driver.cut(0, "7g.141gb")
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    [before] = _devices(card)
    uuid = nvml.nvmlDeviceGetUUID(before)
    driver.cut(0, "7g.141gb")
    _refused(NVML.NOT_FOUND, lambda: nvml.nvmlDeviceGetUUID(before))
    [after] = _devices(card)
    assert nvml.nvmlDeviceGetUUID(after) != uuid


CHILD = """
import pynvml as nvml
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
nvml.nvmlDeviceSetMigMode(card, 1)
for _ in range(3):
    instance = nvml.nvmlDeviceCreateGpuInstance(card, 14)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
"""


def _child(driver: Driver) -> tuple[int, int]:
    """The process id of one that makes three slices, and how it ended."""
    with subprocess.Popen([sys.executable, "-c", CHILD], env=driver.environment) as child:
        return child.pid, child.wait(30)


def test_processes_share_the_cards(driver: Driver) -> None:
    """What one process cuts, another sees; calls are written down with who made them."""
    pid, ended = _child(driver)
    assert ended == 0
    assert driver.layout(0) == ["2g.35gb"] * 3
    assert [one.pid for one in driver.calls("CreateGpuInstance")] == [pid] * 3
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    assert len(list(_devices(card))) == 3


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_at_a_call(driver: Driver, nth: int, after: bool) -> None:
    """A process is killed in its n-th call, before the call did anything or after; the others go on."""
    driver.kill("nvmlDeviceCreateGpuInstance", nth=nth, after=after)
    assert _child(driver)[1] == -signal.SIGKILL
    assert len(driver.slices(0)) == nth - 1 + after
    assert [len(one.computes) for one in driver.slices(0)] == [1] * (nth - 1) + [0] * after
    nvml.nvmlDeviceCreateGpuInstance(nvml.nvmlDeviceGetHandleByIndex(0), 19)


def test_killed_with_the_lock(driver: Driver) -> None:
    """A process that dies with the lock in its hands holds nobody up."""
    code = f"import fcntl, time; f = open({str(driver.path)!r}, 'r+'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with driver.path.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(holder.pid, signal.SIGKILL)
        driver.cut(0, "7g.141gb")
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        _refused(NVML.INSUFFICIENT_RESOURCES, lambda: nvml.nvmlDeviceCreateGpuInstance(card, 19))


def test_the_nth_call_fails(driver: Driver) -> None:
    """In the middle of a cut a card refuses, once, and on this card alone."""
    for number in driver.cards:
        driver.cut(number)
    one, other = map(nvml.nvmlDeviceGetHandleByIndex, driver.cards)
    driver.fail(CREATE, NVML.INSUFFICIENT_RESOURCES, card=0, nth=2)
    _make(one, "1g.18gb")
    _make(other, "1g.18gb")
    _make(other, "1g.18gb")
    _refused(NVML.INSUFFICIENT_RESOURCES, lambda: _make(one, "1g.18gb"))
    _make(one, "1g.18gb")
    assert [len(driver.slices(card)) for card in driver.cards] == [2, 2]


def test_in_use(driver: Driver) -> None:
    """A slice that a process uses cannot be removed, and the process is told; nor does a card change its mode while one uses it."""
    [piece] = driver.cut(0, "3g.71gb@4")
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    instance = nvml.nvmlDeviceGetGpuInstanceById(card, piece.instance)
    compute = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    driver.use(0, piece.instance, pid=4711)
    _refused(NVML.IN_USE, lambda: nvml.nvmlComputeInstanceDestroy(compute))
    _refused(NVML.IN_USE, lambda: nvml.nvmlGpuInstanceDestroy(instance))
    [process] = nvml.nvmlDeviceGetComputeRunningProcesses(card)
    assert (process.pid, process.gpuInstanceId) == (4711, piece.instance)
    driver.use(0, piece.instance, pid=0)
    nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(instance)
    driver.use(0)
    assert nvml.nvmlDeviceSetMigMode(card, 0) == NVML.IN_USE
    assert nvml.nvmlDeviceGetMigMode(card) == [1, 0]


@pytest.mark.parametrize("possible", [False, True])
def test_a_reset_that_is_needed(driver: Driver, possible: bool) -> None:
    """The new mode is pending until the cards are reset, by nvidia-smi where that can be."""
    driver.needs_reset(0, possible=possible)
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceSetMigMode(card, 1) == NVML.RESET_REQUIRED
    assert nvml.nvmlDeviceGetMigMode(card) == [0, 1]
    done = subprocess.run(["nvidia-smi", "-r"], env=driver.environment, check=False, capture_output=True)
    assert (done.returncode == 0) is possible
    assert nvml.nvmlDeviceGetMigMode(card) == [int(possible), 1]


def test_a_lost_card(driver: Driver) -> None:
    """A lost card answers so to everything, the other one as ever."""
    card = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.lose(0)
    for call in (nvml.nvmlDeviceGetUUID, nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlDeviceGetMigMode):
        _refused(NVML.GPU_IS_LOST, lambda call=call: call(card))  # type: ignore[misc]
    _refused(NVML.GPU_IS_LOST, lambda: nvml.nvmlDeviceGetHandleByIndex(0))
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(1))
    driver.lose(0, lost=False)
    assert nvml.nvmlDeviceGetUUID(card)


def test_xids(driver: Driver) -> None:
    """Who listens to a card hears of what happens to it, or to one slice of it."""
    [piece] = driver.cut(0, "3g.71gb@4")
    heard = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(
        nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, heard
    )
    driver.xid(1, 48)
    driver.xid(0, 79)
    driver.xid(0, 94, piece.instance)
    events = [nvml.nvmlEventSetWait_v2(heard, 1000) for _ in range(2)]
    assert [one.eventData for one in events] == [79, 94]
    assert [one.gpuInstanceId for one in events] == [0xFFFFFFFF, piece.instance]
    _refused(NVML.TIMEOUT, lambda: nvml.nvmlEventSetWait_v2(heard, 0))
    nvml.nvmlEventSetFree(heard)


def test_a_call_that_hangs(driver: Driver) -> None:
    """A call for one card hangs, others go on; it returns when the fault is taken away."""
    one, other = map(nvml.nvmlDeviceGetHandleByIndex, driver.cards)
    asked = threading.Thread(target=nvml.nvmlDeviceGetMemoryInfo, args=(one,), daemon=True)
    with driver.hanging("nvmlDeviceGetMemoryInfo", card=0):
        asked.start()
        deadline = time.monotonic() + 10
        while not driver.calls("MemoryInfo") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert nvml.nvmlDeviceGetMemoryInfo(other).total
        assert asked.is_alive()
    asked.join(10)
    assert not asked.is_alive()


def test_without_cards(tmp_path: Path) -> None:
    """A program that is not given cards finds no driver."""
    environment = Driver(tmp_path / "driver", "H200").environment
    environment["TESSERA_STAND_IN_DRIVER"] = str(tmp_path / "nothing")
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False
    )
    assert "Driver Not Loaded" in done.stderr
