"""One card, read through nvidia-ml-py."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_MIG_NAME: Final = re.compile(r"MIG (\S+)$")  # "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
_REMOVED: Final = ("NOT_FOUND", "INVALID_ARGUMENT")  # a MIG device that was removed while it was read
_NO_MIG: Final = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")  # of a card, or of an old driver
# By the names of nvidia-ml-py. Without a driver no card answers; the version differs while the driver is replaced
NO_DRIVER: Final = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH")


@dataclass(frozen=True, slots=True)
class NvmlMigDevice:
    """A MIG device of a card."""

    uuid: str
    profile: str  # 1g.18gb, 1g.18gb+me, 1c.3g.71gb
    gpu_instance: int
    compute_instance: int
    memory_mib: int
    start: int | None = None  # memory slices of the GPU instance, where the driver reports it
    size: int | None = None


@dataclass(frozen=True, slots=True)
class NvmlCard:
    """A GPU."""

    index: int
    uuid: str  # empty: it has not answered since we started
    name: str
    memory_mib: int
    minor: int  # /dev/nvidia<minor>
    numa: int | None = None
    mig_enabled: bool = False
    mig_devices: tuple[NvmlMigDevice, ...] = ()
    problem: str = ""


def read_card(lib: Any, handle: Any, index: int, sysfs: Path) -> NvmlCard:
    """A card and its MIG devices; raises what NVML answers when the card does not."""
    bus = lib.nvmlDeviceGetPciInfo(handle).busId
    memory = optional(lib, lib.nvmlDeviceGetMemoryInfo, handle)
    mig_enabled = bool((unless(_NO_MIG, lib, lib.nvmlDeviceGetMigMode, handle) or [0])[0])
    return NvmlCard(
        index=index,
        uuid=lib.nvmlDeviceGetUUID(handle),
        name=lib.nvmlDeviceGetName(handle),
        memory_mib=memory.total // 2**20 if memory else 0,
        minor=lib.nvmlDeviceGetMinorNumber(handle),
        numa=_numa(sysfs, bus.decode() if isinstance(bus, bytes) else bus),
        mig_enabled=mig_enabled,
        mig_devices=_mig_devices(lib, handle) if mig_enabled else (),
        problem=_probe(lib, handle),
    )


def _numa(sysfs: Path, bus: str) -> int | None:
    """The NUMA node, as the kernel reports it; NVML writes bus ids with eight digits of domain, the kernel four."""
    try:
        node = int((sysfs / "bus/pci/devices" / bus[4:].lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _mig_devices(lib: Any, handle: Any) -> tuple[NvmlMigDevice, ...]:
    free = ("NOT_FOUND",)
    slots = range(lib.nvmlDeviceGetMaxMigDeviceCount(handle))
    devices = (unless(free, lib, lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in slots)
    found = (
        unless(_REMOVED, lib, _mig_device, lib, handle, device) for device in devices if device is not None
    )
    return tuple(filter(None, found))


def _mig_device(lib: Any, handle: Any, device: Any) -> NvmlMigDevice:
    named = _MIG_NAME.search(lib.nvmlDeviceGetName(device))
    instance = lib.nvmlDeviceGetGpuInstanceId(device)
    placement = optional(lib, _placement, lib, handle, instance)
    attributes = optional(lib, lib.nvmlDeviceGetAttributes_v2, device)
    return NvmlMigDevice(
        uuid=lib.nvmlDeviceGetUUID(device),
        profile=named[1] if named else "unknown",
        gpu_instance=instance,
        compute_instance=lib.nvmlDeviceGetComputeInstanceId(device),
        memory_mib=attributes.memorySizeMB if attributes else 0,
        start=placement.start if placement else None,
        size=placement.size if placement else None,
    )


def _placement(lib: Any, handle: Any, instance: int) -> Any:
    return lib.nvmlGpuInstanceGetInfo(lib.nvmlDeviceGetGpuInstanceById(handle, instance)).placement


def _probe(lib: Any, handle: Any) -> str:
    """What is wrong with a card that can be seen by asking it."""
    try:
        lib.nvmlDeviceGetMemoryInfo(handle)
    except lib.NVMLError as error:
        return f"does not answer: {error}"
    rows = optional(lib, lib.nvmlDeviceGetRemappedRows, handle)
    return "row remapping failed: the card's memory is worn out" if rows and rows[3] else ""


def optional(lib: Any, ask: Callable[..., _T], *arguments: object) -> _T | None:
    """An answer that not every card, driver or container gives."""
    try:
        return ask(*arguments)
    except lib.NVMLError as error:
        # a card that is lost, or a driver that is gone, is not a card that cannot answer
        if is_one_of(lib, error, (*NO_DRIVER, "GPU_IS_LOST")):
            raise
        return None


def unless(errors: tuple[str, ...], lib: Any, ask: Callable[..., _T], *arguments: object) -> _T | None:
    """An answer; None where NVML says one of these."""
    try:
        return ask(*arguments)
    except lib.NVMLError as error:
        if not is_one_of(lib, error, errors):
            raise
        return None


def is_one_of(lib: Any, error: Any, names: tuple[str, ...]) -> bool:
    return error.value in [getattr(lib, f"NVML_ERROR_{name}") for name in names]
