"""As much of nvidia-ml-py as is used, with one card."""
# ruff: noqa: N802, N815 # the names are NVML's

from types import SimpleNamespace


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakePynvml(SimpleNamespace):
    """As much of nvidia-ml-py as is used: one card with MIG on, one device on it, one event pending."""

    NVMLError = FakeError
    NVML_ERROR_UNINITIALIZED, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_TIMEOUT = 1, 9, 10
    nvmlEventTypeXidCriticalError, nvmlEventTypeDoubleBitEccError = 8, 2

    def __init__(self) -> None:
        super().__init__()
        self.loaded = True
        self.open = 0
        self.registered: list[tuple[str, int]] = []
        self.events = [SimpleNamespace(device="card", eventType=8, eventData=79, gpuInstanceId=0xFFFFFFFF)]

    def nvmlInit(self) -> None:
        if not self.loaded:
            raise FakeError(9)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceGetCount(self) -> int:
        if not self.loaded:
            raise FakeError(1)
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return "card"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return {"card": "GPU-x", "slice": "MIG-x"}[handle]

    def nvmlDeviceGetName(self, handle: str) -> str:
        return {"card": "NVIDIA H200", "slice": "NVIDIA H200 MIG 1g.18gb+me"}[handle]

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:1B:00.0", pciDeviceId=0x233510DE)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=143771 * 2**20)

    def nvmlDeviceGetMinorNumber(self, handle: str) -> int:
        return 3

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index != 2:
            raise FakeError(6)
        return "slice"

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
        if not self.events:
            raise FakeError(10)
        return self.events.pop()
