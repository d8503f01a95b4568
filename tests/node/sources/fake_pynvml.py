"""As much of nvidia-ml-py as is used for reading."""
# ruff: noqa: N802, N815 # the names are NVML's

import threading
from types import SimpleNamespace


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakePynvml(SimpleNamespace):
    """Cards (one, unless a test says otherwise) with MIG on and one device each, one event pending; some may be lost."""

    NVMLError = FakeError
    NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED = 1, 2, 3
    NVML_ERROR_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_TIMEOUT = 6, 9, 10
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_FUNCTION_NOT_FOUND = 12, 13
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_LIB_RM_VERSION_MISMATCH = 15, 18
    nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError = 8, 2

    def __init__(self) -> None:
        super().__init__()
        self.loaded = True
        self.open = 0
        self.cards = ["card"]
        self.answers: dict[str, int] = {}  # "card", or "card nvmlDeviceGetName": what it answers instead
        self.hangs: dict[str, threading.Event] = {}  # likewise: what comes back when the event is set
        self.stuck: dict[int, str] = {}  # threads that wait for that
        self.registered: list[tuple[str, int]] = []
        self.events = [SimpleNamespace(device="card", eventType=8, eventData=79, gpuInstanceId=0xFFFFFFFF)]

    def nvmlInit(self) -> None:
        self._asked("driver", "nvmlInit")
        if not self.loaded:
            raise FakeError(9)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        self._asked("driver", "nvmlDeviceGetCount")
        if not self.loaded:
            raise FakeError(1)
        return len(self.cards)

    def _asked(self, handle: str, call: str) -> None:
        if hangs := self.hangs.get(handle) or self.hangs.get(f"{handle} {call}"):
            self.stuck[threading.get_ident()] = handle
            assert hangs.wait(30)
            del self.stuck[threading.get_ident()]
        error = self.answers.get(handle) or self.answers.get(f"{handle} {call}")
        if error:
            raise FakeError(error)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self._asked(self.cards[index], "nvmlDeviceGetHandleByIndex")
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        self._asked(handle, "nvmlDeviceGetUUID")
        card, _, of = handle.partition(" ")
        return f"MIG-x{card[4:]}" if of else f"GPU-x{card[4:]}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        self._asked(handle, "nvmlDeviceGetName")
        return "NVIDIA H200 MIG 1g.18gb+me" if handle.endswith("slice") else "NVIDIA H200"

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:1B:00.0", pciDeviceId=0x233510DE)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=143771 * 2**20)

    def nvmlDeviceGetMinorNumber(self, handle: str) -> int:
        return 3

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        self._asked(handle, "nvmlDeviceGetMigMode")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        self._asked(handle, "nvmlDeviceGetMigDeviceHandleByIndex")
        if index != 2:
            raise FakeError(6)
        return f"{handle} slice"

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        return 9

    def nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:
        return 0

    def nvmlDeviceGetAttributes_v2(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(memorySizeMB=16384)

    def nvmlDeviceGetGpuInstanceById(self, handle: str, instance: int) -> str:
        return f"gi{instance}"

    def nvmlGpuInstanceGetInfo(self, instance: str) -> SimpleNamespace:
        return SimpleNamespace(placement=SimpleNamespace(start=6, size=1))

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        return (0, 0, 0, 1)

    def nvmlDeviceGetSupportedEventTypes(self, handle: str) -> int:
        return 8 | 1

    def nvmlDeviceRegisterEvents(self, handle: str, types: int, events: str) -> None:
        self.registered.append((handle, types))

    def nvmlEventSetWait_v2(self, events: str, timeout: int) -> SimpleNamespace:
        self._asked("events", "")
        if not self.events:
            raise FakeError(10)
        return self.events.pop()
