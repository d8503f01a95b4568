"""Cutting through nvidia-ml-py: a thin edge. What may lie where is what NVML says, not what our tables say."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_uint
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.core.mig.cutting import GpuInstance
from tessera.core.mig.geometry import Product, Shape
from tessera.core.mig.placement import Instance
from tessera.core.mig.profile import MigProfile
from tessera.node.sources.cutting.port import CardInUse, DriverRefused, NeedsReset, RefusedForGood

_COMPUTE_PROFILE: Final = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
# By the names of nvidia-ml-py: what the card, the driver or the privilege of our container does not allow
_NEVER: Final = ("NOT_SUPPORTED", "INVALID_ARGUMENT", "NO_PERMISSION", "FUNCTION_NOT_FOUND")
_MOST: Final = 16  # instances in one list; no card has more slices


class NvmlDriver:
    """NVML, opened for each call: between cuts nothing of ours is open."""

    def __init__(self) -> None:
        self._products: dict[str, Product] = {}

    def product(self, uuid: str) -> Product:
        if uuid not in self._products:
            with self._open(uuid, lambda _: None) as card:
                self._products[uuid] = card.product
        return self._products[uuid]

    @contextmanager
    def open(self, uuid: str, on_call: Callable[[str], None]) -> Iterator["NvmlWriter"]:
        with self._open(uuid, on_call) as card:
            yield card

    @contextmanager
    def _open(self, uuid: str, on_call: Callable[[str], None]) -> Iterator["NvmlWriter"]:
        import pynvml

        calls = _Calls(pynvml, on_call)
        calls("nvmlInit")
        try:
            yield NvmlWriter(calls, uuid)
        finally:
            calls("nvmlShutdown")


class _Calls:
    """NVML's functions by name: each is noted before it is called, and raises NVML's message."""

    def __init__(self, lib: Any, on_call: Callable[[str], None]) -> None:
        self.lib = lib
        self._on_call = on_call

    def __call__(self, name: str, *arguments: object) -> Any:
        self._on_call(name)
        try:
            return getattr(self.lib, name)(*arguments)
        except self.lib.NVMLError as error:
            kind = CardInUse if error.value == self.lib.NVML_ERROR_IN_USE else DriverRefused
            if error.value in [getattr(self.lib, f"NVML_ERROR_{one}") for one in _NEVER]:
                kind = RefusedForGood
            raise kind(f"{name}: {error}") from error

    def or_none(self, name: str, *arguments: object) -> Any:
        """The answer; None for what this card or driver does not have."""
        lib = self.lib
        none = (lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_INVALID_ARGUMENT, lib.NVML_ERROR_NOT_FOUND)
        try:
            return self(name, *arguments)
        except DriverRefused as error:
            if getattr(error.__cause__, "value", None) in none:
                return None
            raise


class NvmlWriter:
    """One card."""

    def __init__(self, calls: _Calls, uuid: str) -> None:
        self._call = calls
        self._lib = calls.lib
        self._card = calls("nvmlDeviceGetHandleByUUID", uuid)
        # profile id → NVML's description; profile numbers of NVML are not their ids
        numbers = range(self._lib.NVML_GPU_INSTANCE_PROFILE_COUNT)
        found = (
            calls.or_none("nvmlDeviceGetGpuInstanceProfileInfo", self._card, number) for number in numbers
        )
        self._infos = {info.id: info for info in found if info is not None}
        self._computes: dict[
            int, list[Any]
        ] = {}  # by profile of the GPU instance: its compute instances' profiles
        self.product = self._product()

    def modes(self) -> tuple[bool, bool]:
        now, then = self._call.or_none("nvmlDeviceGetMigMode", self._card) or (0, 0)
        return bool(now), bool(then)

    def switch(self, *, on: bool) -> None:
        status = self._call("nvmlDeviceSetMigMode", self._card, int(on))
        if status == self._lib.NVML_ERROR_RESET_REQUIRED:
            raise NeedsReset("nvmlDeviceSetMigMode: the card must be reset")
        if status == self._lib.NVML_ERROR_IN_USE:
            raise CardInUse("nvmlDeviceSetMigMode: in use by another client")
        if status != self._lib.NVML_SUCCESS:
            raise DriverRefused(f"nvmlDeviceSetMigMode: {self._lib.NVMLError(status)}")

    def made(self) -> Sequence[GpuInstance]:
        profiles = {shape.profile_id: shape.profile for shape in self.product.shapes}
        found = []
        for profile_id in self._infos:
            for handle in self._listed("nvmlDeviceGetGpuInstances", self._card, profile_id, "GpuInstance"):
                info = self._call("nvmlGpuInstanceGetInfo", handle)
                computes = [
                    self._call("nvmlComputeInstanceGetInfo", compute)
                    for compute_profile in self._compute_profiles(handle, profile_id)
                    for compute in self._listed(
                        "nvmlGpuInstanceGetComputeInstances", handle, compute_profile.id, "ComputeInstance"
                    )
                ]
                whole = self._whole(handle, profile_id)
                place = info.placement
                found.append(
                    GpuInstance(
                        info.id,
                        Instance(profiles[profile_id], place.start, place.size),
                        tuple(sorted(one.id for one in computes)),
                        whole is not None and [one.profileId for one in computes] == [whole],
                    )
                )
        return sorted(found, key=lambda one: one.instance.position)

    def create(self, instance: Instance) -> int:
        shape = self.product.shape(instance.profile)
        if shape is None:
            raise RefusedForGood(
                f"{instance.profile} is not a profile of the card; it has {self.product.profile_names}"
            )
        place = self._lib.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = instance.position, instance.size
        handle = self._call(
            "nvmlDeviceCreateGpuInstanceWithPlacement", self._card, shape.profile_id, byref(place)
        )
        return int(self._call("nvmlGpuInstanceGetInfo", handle).id)

    def create_compute(self, gpu_instance: int) -> None:
        handle = self._instance(gpu_instance)
        whole = self._whole(handle, self._call("nvmlGpuInstanceGetInfo", handle).profileId)
        if whole is None:
            raise RefusedForGood(
                f"GPU instance {gpu_instance}: NVML offers no compute instance that takes all of it"
            )
        self._call("nvmlGpuInstanceCreateComputeInstance", handle, whole)

    def destroy_compute(self, gpu_instance: int, compute_instance: int) -> None:
        handle = self._instance(gpu_instance)
        compute = self._call("nvmlGpuInstanceGetComputeInstanceById", handle, compute_instance)
        self._call("nvmlComputeInstanceDestroy", compute)

    def destroy(self, gpu_instance: int) -> None:
        self._call("nvmlGpuInstanceDestroy", self._instance(gpu_instance))

    def _instance(self, number: int) -> Any:
        return self._call("nvmlDeviceGetGpuInstanceById", self._card, number)

    def _listed(self, name: str, of: Any, profile_id: int, kind: str) -> list[Any]:
        some, count = (getattr(self._lib, f"c_nvml{kind}_t") * _MOST)(), c_uint(_MOST)
        self._call(name, of, profile_id, some, byref(count))
        return list(some[: count.value])

    def _compute_profiles(self, handle: Any, profile_id: int) -> list[Any]:
        if profile_id not in self._computes:
            shared = self._lib.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            name, numbers = _COMPUTE_PROFILE, range(self._lib.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
            found = (self._call.or_none(name, handle, number, shared, 1) for number in numbers)
            self._computes[profile_id] = [info for info in found if info is not None]
        return self._computes[profile_id]

    def _whole(self, handle: Any, profile_id: int) -> int | None:
        """The profile of the compute instance that has as many slices as the GPU instance."""
        slices = self._infos[profile_id].sliceCount
        return next(
            (one.id for one in self._compute_profiles(handle, profile_id) if one.sliceCount == slices), None
        )

    def _product(self) -> Product:
        name = self._call("nvmlDeviceGetName", self._card)
        memory = self._call("nvmlDeviceGetMemoryInfo", self._card).total // 2**20
        pci = self._call("nvmlDeviceGetPciInfo", self._card).pciDeviceId
        shapes = tuple(sorted(filter(None, map(self._shape, self._infos.values())), key=lambda s: s.profile))
        return Product(
            name=name,
            memory_mib=memory,
            compute_slices=max((shape.compute for shape in shapes), default=1),
            memory_slices=max((start + one.size for one in shapes for start in one.starts), default=1),
            shapes=shapes,
            labels=(name.replace(" ", "-"),),
            pci_ids=(pci,),
        )

    def _shape(self, info: Any) -> Shape | None:
        places, count = (self._lib.c_nvmlGpuInstancePlacement_t * _MOST)(), c_uint(_MOST)
        self._call("nvmlDeviceGetGpuInstancePossiblePlacements", self._card, info.id, places, byref(count))
        text = info.name.decode() if isinstance(info.name, bytes) else info.name
        try:
            profile = MigProfile.parse(text.removeprefix("MIG "))
        except InvalidInput:
            return None  # of a driver that is newer than we are
        if not count.value:
            return None
        return Shape(
            profile,
            places[0].size,
            tuple(sorted(place.start for place in places[: count.value])),
            info.instanceCount,
            info.id,
            info.memorySizeMB,
        )
