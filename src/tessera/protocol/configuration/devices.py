"""The device plugin's configuration file: YAML or JSON in, devices and sources out.

The tables of `device_fields` are the whole truth about it. Everything that is wrong is reported at once, each error with its path.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.devices.device import Device, DeviceNode, Edits, Handover, Mount
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import Strategy, resolve
from tessera.core.mig.profile import MigProfile
from tessera.protocol import yaml
from tessera.protocol.cdi import check_device_name, check_kind
from tessera.protocol.configuration.device_fields import DOCUMENT
from tessera.protocol.configuration.schema import Errors, shown
from tessera.protocol.mig import documents

_NVML_KIND: Final = "tessera.nvml/gpu"
NVIDIA_CTK_KIND: Final = "nvidia.com/gpu"  # what `nvidia-ctk cdi generate` writes

_MOST_DEVICES: Final = 10_000  # of one entry: the kubelet's messages end at 4 MiB
_RANGE: Final = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SimulatedCards:
    cards: tuple[Product, ...]
    strategy: Strategy
    layout: str  # until the node's annotation says otherwise
    env_list: str
    cdi_kind: str
    numa_nodes: int
    dynamic: tuple[MigProfile, ...] | None = None  # cut on demand; None: a layout says it


@dataclass(frozen=True, slots=True)
class NvmlCards:
    strategy: Strategy
    env_list: str
    cdi_kind: str
    described_by_us: bool  # else by NVIDIA's container toolkit
    cut: bool = False  # as the node's layout says; else they are only read
    switch_mode: bool = False  # whether MIG mode may be turned on and off
    dynamic: tuple[MigProfile, ...] | None = None  # cut on demand; none of them: all that a card has


@dataclass(frozen=True, slots=True)
class DeviceConfiguration:
    """Everything that an operator can say about a node's devices."""

    static: tuple[Device, ...] = ()
    simulated: SimulatedCards | None = None
    nvml: NvmlCards | None = None
    handover: Handover = Handover.CDI
    fault_file: str = ""
    evict_unhealthy: bool = False


def parse(text: str | bytes, source: str = "configuration") -> DeviceConfiguration:
    """Read a configuration; raises `InvalidInputs` with every error, or `InvalidYaml`."""
    document = yaml.load(text, source, exact=True)
    if document is None:
        document = {}  # an empty file, or comments only, says as much as {}: nothing
    errors = Errors()
    read = DOCUMENT.read(document, "", errors)
    if isinstance(document, dict) and not document.keys() & {"static", "simulated", "nvml"}:
        errors.add("", "no devices: at least one of static, simulated and nvml is needed")
    static = _static_devices(read["static"], errors)
    simulated = _simulated(read["simulated"], errors) if read["simulated"] else None
    nvml = _nvml(read["nvml"], errors) if read["nvml"] is not None else None
    if simulated and nvml and nvml.cut:
        errors.add("nvml.cut", "not beside simulated: the node has one layout")
    errors.raise_if_any()
    return DeviceConfiguration(
        static=static,
        simulated=simulated,
        nvml=nvml,
        handover=Handover(read["handover"]),
        fault_file=read["faultFile"],
        evict_unhealthy=read["evictUnhealthy"],
    )


def _static_devices(entries: tuple[dict[str, Any], ...], errors: Errors) -> tuple[Device, ...]:
    devices: list[Device] = []
    names: set[str] = set()
    for index, entry in enumerate(entries):
        path = f"static[{index}]"
        if not (entry["deviceNodes"] or entry["mounts"] or entry["env"]):
            errors.add(path, "a device needs at least one of deviceNodes, mounts and env")
        for device in _entry_devices(entry, path, errors):
            if device.cdi_name in names:
                errors.add(
                    f"{path}.devices", f"{device.cdi_name} appears twice; set cdiKind to distinguish them"
                )
                break
            names.add(device.cdi_name)
            devices.append(device)
    return tuple(devices)


def _entry_devices(entry: Mapping[str, Any], path: str, errors: Errors) -> Iterator[Device]:
    resource = entry["resource"]
    try:
        kind = entry["cdiKind"] or check_kind(resource or "any/thing")
        for device_id, number in _expanded(entry["devices"]):
            replaced = {"{id}": check_device_name(device_id), "{n}": number}
            yield Device(
                device_id,
                resource=resource,
                cdi_kind=kind,
                edits=_entry_edits(entry, replaced),
                env_list=entry["devicesVariable"],
            )
    except InvalidInput as error:
        errors.add(f"{path}.devices", str(error))


def _expanded(patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every id, and its number where a range gives it one."""
    count = 0
    for pattern in patterns:
        found = _RANGE.search(pattern)
        first, last = (int(found[1]), int(found[2])) if found else (0, 0)
        if last < first:
            raise InvalidInput(f"{shown(pattern)}: a range must go up, such as {{0..7}}")
        count += last - first + 1
        if count > _MOST_DEVICES:
            raise InvalidInput(f"more than {_MOST_DEVICES} devices")
        for number in range(first, last + 1):
            yield (_RANGE.sub(str(number), pattern, count=1), str(number)) if found else (pattern, "")


def _entry_edits(entry: Mapping[str, Any], replaced: Mapping[str, str]) -> Edits:
    def fill(text: str) -> str:
        for mark, value in replaced.items():
            text = text.replace(mark, value)
        return text

    return Edits(
        env=tuple((name, fill(value)) for name, value in entry["env"].items()),
        nodes=tuple(
            DeviceNode(
                fill(node["containerPath"] or node["hostPath"]), fill(node["hostPath"]), node["permissions"]
            )
            for node in entry["deviceNodes"]
        ),
        mounts=tuple(
            Mount(
                fill(mount["containerPath"] or mount["hostPath"]), fill(mount["hostPath"]), mount["readOnly"]
            )
            for mount in entry["mounts"]
        ),
    )


def _simulated(read: Mapping[str, Any], errors: Errors) -> SimulatedCards:
    cards = (read["product"],) * read["cards"]
    strategy = Strategy(read["migStrategy"])
    if read["layout"] and not errors.texts:
        try:
            resolve(documents.read(read["layout"], "layout").select(), cards).slots(strategy)
        except InvalidInput as error:
            errors.add("simulated.layout", str(error))
    return SimulatedCards(
        cards,
        strategy,
        read["layout"],
        read["devicesVariable"],
        read["cdiKind"],
        read["numaNodes"],
        _dynamic(read, strategy, errors),
    )


def _dynamic(read: Mapping[str, Any], strategy: Strategy, errors: Errors) -> tuple[MigProfile, ...] | None:
    if read["partitioning"] == "static":
        if read["profiles"]:
            errors.add(
                "simulated.profiles", "only with partitioning: dynamic; a layout names its own profiles"
            )
        return None
    if read["layout"]:
        errors.add("simulated.layout", "not with partitioning: dynamic, which cuts what claims ask for")
    if strategy is not Strategy.MIXED:
        errors.add("simulated.migStrategy", "partitioning: dynamic needs mixed")
    has, known = read["product"].profiles, read["product"].profile_names
    for index, profile in enumerate(read["profiles"]):
        if profile is not None and profile not in has:
            what = f"{profile} is not a profile of the card; it has {known}"
            errors.add(f"simulated.profiles[{index}]", what)
    return tuple(read["profiles"]) or has


def _nvml(read: Mapping[str, Any], errors: Errors) -> NvmlCards:
    ours, strategy = read["cdi"] == "own", Strategy(read["migStrategy"])
    if read["cut"] and strategy is not Strategy.MIXED:
        errors.add("nvml.cut", f"needs migStrategy: mixed, not {strategy}")
    if read["cut"] and not ours:
        errors.add(
            "nvml.cut",
            "needs cdi: own; the spec of nvidia-ctk lacks slices that are cut after it was written",
        )
    if read["switchMode"] and not read["cut"]:
        errors.add("nvml.switchMode", "only with cut: true")
    dynamic = read["partitioning"] == "dynamic"
    if dynamic and not read["cut"]:
        errors.add("nvml.partitioning", "dynamic cuts real cards: set cut: true as well")
    if read["profiles"] and not dynamic:
        errors.add("nvml.profiles", "only with partitioning: dynamic")
    return NvmlCards(
        strategy,
        read["devicesVariable"],
        _NVML_KIND if ours else NVIDIA_CTK_KIND,
        ours,
        read["cut"],
        read["switchMode"],
        tuple(filter(None, read["profiles"])) if dynamic else None,
    )
