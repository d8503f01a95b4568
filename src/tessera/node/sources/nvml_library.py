"""NVIDIA's management library, as far as a device plugin needs it: cards, their MIG devices, what went wrong.

`Nvml` is the port; `NvmlLibrary` is the real thing. It only reads, card by card: one that does not answer is ill, and takes no
other with it. A driver that is not loaded, or is reloaded while we run, is no crash: the next poll starts again.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tessera.node.sources import SourceFailed

_T = TypeVar("_T")

_WHOLE_CARD: Final = 0xFFFFFFFF  # NVML's "no GPU instance" in an event
_MIG_NAME: Final = re.compile(r"MIG (\S+)$")  # "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
_MOST_EVENTS: Final = 256  # taken at one poll
# By the names of nvidia-ml-py. Without a driver no card answers; the version differs while the driver is replaced
_NO_DRIVER: Final = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH")
_REMOVED: Final = ("NOT_FOUND", "INVALID_ARGUMENT")  # a MIG device that was taken away while it was read
_NO_MIG: Final = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")  # of a card, or of an old driver


@dataclass(frozen=True, slots=True)
class NvmlMigDevice:
    """A MIG device of a card."""

    uuid: str
    profile: str  # 1g.18gb, 1g.18gb+me, 1c.3g.71gb
    gpu_instance: int
    compute_instance: int
    memory_mib: int
    start: int | None = None  # memory slices of the GPU instance, where the driver tells
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


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """Something that went wrong on a card, or on one GPU instance of it."""

    card: str  # UUID
    gpu_instance: int | None
    xid: int | None  # None: an uncorrectable memory error

    def __str__(self) -> str:
        return "uncorrectable memory error" if self.xid is None else f"XID {self.xid}"


class Nvml(Protocol):
    """What is asked of the driver."""

    def cards(self, busy: Collection[str] = ()) -> Sequence[NvmlCard]:
        """Every GPU, one that does not answer with its problem; raises `SourceFailed` when the driver does not answer.

        Cards of the UUIDs in `busy` are being cut: they are not asked, and are told as they were seen last.
        """
        ...

    def events(self) -> Sequence[NvmlEvent]:
        """What went wrong since the last call; does not wait."""
        ...

    def close(self) -> None:
        """Let go of the driver, until something is asked again."""
        ...


class NvmlLibrary:
    """NVML through nvidia-ml-py."""

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._lib: Any = None
        self._event_set: Any = None
        self._registered: set[str] = set()
        self._seen: dict[int, NvmlCard] = {}  # as each card answered last
        self._silent = False  # whether some card did not answer at the last look

    def cards(self, busy: Collection[str] = ()) -> Sequence[NvmlCard]:
        if self._silent:
            self.close()  # a card that was reset or replaced may be seen only by those who open the library anew
        return self._with_driver(lambda lib: self._cards(lib, busy))

    def events(self) -> Sequence[NvmlEvent]:
        return self._with_driver(self._events)

    def close(self) -> None:
        lib, self._lib, self._event_set = self._lib, None, None
        self._registered.clear()
        if lib is not None:
            with contextlib.suppress(lib.NVMLError):  # it may be gone already
                lib.nvmlShutdown()

    def _with_driver(self, ask: Callable[[Any], _T]) -> _T:
        import pynvml

        try:
            if self._lib is None:
                pynvml.nvmlInit()
                self._lib, self._event_set = pynvml, pynvml.nvmlEventSetCreate()
            return ask(self._lib)
        except pynvml.NVMLError as error:
            self.close()
            raise SourceFailed(f"NVML: {error}") from error

    def _cards(self, lib: Any, busy: Collection[str]) -> list[NvmlCard]:
        found: dict[int, NvmlCard | str] = {}
        for index in range(lib.nvmlDeviceGetCount()):
            last = self._seen.get(index)
            try:
                found[index] = last if last and last.uuid in busy else self._card(lib, index)
            except lib.NVMLError as error:
                if _is(lib, error, _NO_DRIVER):
                    raise
                found[index] = f"does not answer: {error}"
        answered = {index: card for index, card in found.items() if isinstance(card, NvmlCard)}
        self._silent = len(answered) < len(found)
        uuids = {card.uuid for card in answered.values()}  # numbers shift when a card is gone
        known = {index: card for index, card in self._seen.items() if card.uuid not in uuids} | answered
        self._seen = {index: card for index, card in known.items() if index in found}
        return [
            card
            if isinstance(card, NvmlCard)
            else replace(self._seen.get(index) or NvmlCard(index, "", "", 0, minor=index), problem=card)
            for index, card in found.items()
        ]

    def _card(self, lib: Any, index: int) -> NvmlCard:
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        uuid = lib.nvmlDeviceGetUUID(handle)
        self._register(lib, handle, uuid)
        bus = lib.nvmlDeviceGetPciInfo(handle).busId
        memory = _optional(lib, lib.nvmlDeviceGetMemoryInfo, handle)
        mig_enabled = bool((_unless(_NO_MIG, lib, lib.nvmlDeviceGetMigMode, handle) or [0])[0])
        return NvmlCard(
            index=index,
            uuid=uuid,
            name=lib.nvmlDeviceGetName(handle),
            memory_mib=memory.total // 2**20 if memory else 0,
            minor=lib.nvmlDeviceGetMinorNumber(handle),
            numa=self._numa(bus.decode() if isinstance(bus, bytes) else bus),
            mig_enabled=mig_enabled,
            mig_devices=_mig_devices(lib, handle) if mig_enabled else (),
            problem=_probe(lib, handle),
        )

    def _register(self, lib: Any, handle: Any, uuid: str) -> None:
        """Hear of what goes wrong on the card; some cards cannot tell, which the poll makes up for."""
        if uuid not in self._registered:
            wanted = lib.nvmlEventTypeXidCriticalError | lib.nvmlEventTypeDoubleBitEccError
            wanted &= _optional(lib, lib.nvmlDeviceGetSupportedEventTypes, handle) or 0
            if wanted:
                _optional(lib, lib.nvmlDeviceRegisterEvents, handle, wanted, self._event_set)
            self._registered.add(uuid)

    def _events(self, lib: Any) -> list[NvmlEvent]:
        found: list[NvmlEvent] = []
        for _ in range(_MOST_EVENTS):
            try:
                data = lib.nvmlEventSetWait_v2(self._event_set, 0)
            except lib.NVMLError as error:
                if _is(lib, error, ("TIMEOUT",)):
                    break
                if _is(lib, error, ("GPU_IS_LOST",)):  # the others are heard again after the next look
                    self._silent = True
                    break
                raise
            xid = data.eventData if data.eventType == lib.nvmlEventTypeXidCriticalError else None
            instance = None if data.gpuInstanceId == _WHOLE_CARD else data.gpuInstanceId
            card = _unless(("GPU_IS_LOST",), lib, lib.nvmlDeviceGetUUID, data.device)
            found.append(NvmlEvent(card or "", instance, xid))
        return found

    def _numa(self, bus: str) -> int | None:
        """The NUMA node, as the kernel tells it; NVML writes bus ids with eight digits of domain, the kernel four."""
        try:
            node = int((self._sysfs / "bus/pci/devices" / bus[4:].lower() / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None


def _mig_devices(lib: Any, handle: Any) -> tuple[NvmlMigDevice, ...]:
    free = ("NOT_FOUND",)
    slots = range(lib.nvmlDeviceGetMaxMigDeviceCount(handle))
    devices = (_unless(free, lib, lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in slots)
    found = (
        _unless(_REMOVED, lib, _mig_device, lib, handle, device) for device in devices if device is not None
    )
    return tuple(filter(None, found))


def _mig_device(lib: Any, handle: Any, device: Any) -> NvmlMigDevice:
    named = _MIG_NAME.search(lib.nvmlDeviceGetName(device))
    instance = lib.nvmlDeviceGetGpuInstanceId(device)
    placement = _optional(lib, _placement, lib, handle, instance)
    attributes = _optional(lib, lib.nvmlDeviceGetAttributes_v2, device)
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
    rows = _optional(lib, lib.nvmlDeviceGetRemappedRows, handle)
    return "row remapping failed: the card's memory is worn out" if rows and rows[3] else ""


def _optional(lib: Any, ask: Callable[..., _T], *arguments: object) -> _T | None:
    """An answer that not every card, driver or container gives."""
    try:
        return ask(*arguments)
    except lib.NVMLError as error:
        # a card that is lost, or a driver that is gone, is not a card that cannot answer
        if _is(lib, error, (*_NO_DRIVER, "GPU_IS_LOST")):
            raise
        return None


def _unless(errors: tuple[str, ...], lib: Any, ask: Callable[..., _T], *arguments: object) -> _T | None:
    """An answer; None where NVML says one of these."""
    try:
        return ask(*arguments)
    except lib.NVMLError as error:
        if not _is(lib, error, errors):
            raise
        return None


def _is(lib: Any, error: Any, names: tuple[str, ...]) -> bool:
    return error.value in [getattr(lib, f"NVML_ERROR_{name}") for name in names]
