"""The device plugin's configuration file: YAML or JSON in, devices and sources out.

The tables of `device_fields` are the whole truth about it. Everything that is wrong is reported at once, each error with its path.

The fields of the device plugin's configuration file, as tables: what each may be, and what it does.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tessera.core.devices.device import Device, DeviceNode, Edits, Handover, Mount
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product, product_named, simulated_product
from tessera.core.mig.layout import Strategy, resolve
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import is_of_containers
from tessera.protocol import yaml
from tessera.protocol.cdi import check_device_name, check_kind
from tessera.protocol.configuration.schema import (
    BOOLEAN,
    TEXT,
    Errors,
    Field,
    ValueType,
    choice,
    count,
    list_of,
    map_of,
    parsed,
    record,
    shown,
    text_that,
)
from tessera.protocol.configuration.schema import reference as schema_reference
from tessera.protocol.mig import documents

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"  # what NVIDIA's plugin and runtime call it
_SIMULATED_KIND: Final = "tessera.simulated/gpu"

_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


def _resource(text: str) -> str:
    if "/" not in text or not is_of_containers(text):
        raise InvalidInput(f"{shown(text)} is not an extended resource such as device.example.com/gpu")
    if text.partition("/")[0].endswith("kubernetes.io"):
        raise InvalidInput(f"{shown(text)}: kubernetes.io belongs to Kubernetes; use your own domain")
    return text


def _is_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text and ".." not in text.split("/")


_TEXTS: Final = list_of(TEXT)
_PATTERNS: Final = ValueType(
    "text, or list of text",
    lambda value, path, errors: _TEXTS.read([value] if isinstance(value, str) else value, path, errors),
    {"oneOf": [TEXT.schema, _TEXTS.schema]},
)
_NO_PATH: Final = ' is not an absolute path without ".."'
_HOST_PATH: Final = text_that(
    "path on the host; `{id}` and `{n}` stand for the device and its number", _is_path, _NO_PATH
)
_CONTAINER_PATH: Final = text_that("path in the container, likewise", _is_path, _NO_PATH)
_PERMISSIONS: Final = text_that(
    "some of `r`, `w`, `m`",
    lambda text: text and not set(text) - set("rwm") and len(set(text)) == len(text),
    ": permissions are some of r, w and m, such as rw",
)
_NAME_OF_VARIABLE: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*)?", re.ASCII).fullmatch
_NO_VARIABLE: Final = " is not a name of an environment variable"
_VARIABLE: Final = text_that("variable", _NAME_OF_VARIABLE, _NO_VARIABLE)
_LIST_VARIABLE: Final = text_that("environment variable", _NAME_OF_VARIABLE, _NO_VARIABLE)
_PROFILES: Final = list_of(parsed("text", MigProfile.parse, None))
_STRATEGIES: Final = choice(*map(str, Strategy))
_KIND: Final = parsed("CDI kind, `vendor/class`", check_kind, "")

_DEVICE_NODE: Final = record(
    Field("hostPath", _HOST_PATH, "The device file on the host."),
    Field("containerPath", _CONTAINER_PATH, "Where the container has it. Default: the same path.", default=""),
    Field("permissions", _PERMISSIONS, "What the container may do.", default="rw"),
)  # fmt: skip
_MOUNT: Final = record(
    Field("hostPath", _HOST_PATH, "A file or folder on the host."),
    Field("containerPath", _CONTAINER_PATH, "Where the container has it. Default: the same path.", default=""),
    Field("readOnly", BOOLEAN, "Whether the container may only read it.", default=True),
)  # fmt: skip
_STATIC: Final = record(
    Field("resource", parsed("extended resource", _resource, ""), "What pods ask for."),
    Field("devices", _PATTERNS, "The ids, or patterns such as `device_{0..7}`."),
    Field("deviceNodes", list_of(_DEVICE_NODE), "Device files that a container gets with a device.", default=()),
    Field("mounts", list_of(_MOUNT), "Files that a container gets with a device.", default=()),
    Field("env", map_of(_VARIABLE, TEXT), "Variables that a container gets with a device.", default=MappingProxyType({})),
    Field("devicesVariable", _LIST_VARIABLE, "A variable that lists the container's devices by id.", default=""),
    Field("cdiKind", _KIND, "The devices' CDI kind. Default: the resource.", default=""),
)  # fmt: skip
_OWN_PRODUCT: Final = record(
    Field("name", TEXT, "The card's name."),
    Field("memory", count(1, 99_999), "GB of one card."),
    Field("slices", count(1, 16), "Equal slices that a card can be cut into.", default=1),
    Field("profiles", _PROFILES, "MIG profiles of the card, such as `2g.20gb`. None: it cannot be cut.", default=()),
    Field("label", TEXT, "The value of `nvidia.com/gpu.product`. Default: the name with dashes.", default=""),
)  # fmt: skip


def _read_product(value: Any, path: str, errors: Errors) -> Product:
    own = value if isinstance(value, str) else None
    fields = {} if own else _OWN_PRODUCT.read(value, path, errors)
    try:
        return product_named(own) if own else _own_product(fields)
    except InvalidInput as error:
        if own or not errors.texts:
            errors.add(path, str(error))
    return product_named("H200")


_PRODUCT: Final = ValueType(
    "name of a product, or a map that describes one",
    _read_product,
    {"oneOf": [{"type": "string"}, _OWN_PRODUCT.schema]},
)
_SIMULATED: Final = record(
    Field("product", _PRODUCT, "The cards' product."),
    Field("cards", count(1, 64), "How many cards."),
    Field("migStrategy", _STRATEGIES, "How cut cards become resources, as in NVIDIA's plugin.", default="mixed"),
    Field("layout", TEXT, "The layout of the cards until the node has an annotation, such as `2g.20gb=2,3g.40gb=1`. Default: whole cards.", default=""),
    Field("partitioning", choice("static", "dynamic"), "`static`: cut as the layout says; `dynamic`: the DRA driver cuts a slice when a claim gets it, and there is no layout.", default="static"),
    Field("profiles", _PROFILES, "With `dynamic`: the profiles that may be cut. Default: all profiles of the card.", default=()),
    Field("numaNodes", count(0, 64), "NUMA nodes that the cards are spread over. 0: the plugin reports none.", default=0),
    Field("devicesVariable", _LIST_VARIABLE, "A variable that lists the container's devices by UUID.", default=VISIBLE_DEVICES),
    Field("cdiKind", _KIND, "The devices' CDI kind.", default=_SIMULATED_KIND),
)  # fmt: skip
_NVML: Final = record(
    Field("migStrategy", _STRATEGIES, "How cut cards become resources, as in NVIDIA's plugin.", default="none"),
    Field("cdi", choice("own", "nvidia-ctk"), "Which CDI spec describes the devices: `own`, with device nodes only, or that of `nvidia-ctk cdi generate`, with the driver's libraries.", default="own"),
    Field("devicesVariable", _LIST_VARIABLE, "A variable that lists the container's devices by UUID; NVIDIA's runtime reads it.", default=VISIBLE_DEVICES),
    Field("cut", BOOLEAN, "Whether the cards may be cut (needs `migStrategy: mixed`): by the device plugin as the node's layout says, by the DRA driver with `partitioning: dynamic`. Off: they are only read.", default=False),
    Field("switchMode", BOOLEAN, "With `cut`: whether MIG mode may also be turned on and off, on cards that nobody uses.", default=False),
    Field("partitioning", choice("static", "dynamic"), "`static`: the slices that are there; `dynamic`, with `cut`: the DRA driver cuts a slice when a claim gets it, and there is no layout.", default="static"),
    Field("profiles", _PROFILES, "With `dynamic`: the profiles that may be cut. Default: all profiles of the card.", default=()),
)  # fmt: skip

DOCUMENT: Final = record(
    Field("handover", choice(*map(str, Handover)), "How a container gets its devices: by CDI name, spelled out inline for runtimes without CDI, or both.", default="cdi"),
    Field("faultFile", text_that("path", _is_path, _NO_PATH), "A file in which people mark devices unhealthy (`device_3: unhealthy`), checked every second.", default=""),
    Field("evictUnhealthy", BOOLEAN, "Whether the DRA driver evicts pods from a device that becomes unhealthy (`NoExecute`), or only keeps new pods away.", default=False),
    Field("static", list_of(_STATIC), "Devices listed here.", default=()),
    Field("simulated", _SIMULATED, "GPUs that exist only for the kubelet.", default=None),
    Field("nvml", _NVML, "The GPUs that NVIDIA's driver knows.", default=None),
)  # fmt: skip


def _own_product(fields: Mapping[str, Any]) -> Product:
    name, label = fields["name"], fields["label"] or fields["name"].replace(" ", "-")
    if not _LABEL.fullmatch(label):
        raise InvalidInput(
            f"{shown(label)} cannot be the value of a label; set label to letters, digits, - _ ."
        )
    if not fields["profiles"]:
        memory = fields["memory"] * 1024
        return Product(name, memory, 1, 1, (), (label,), simulated=True)
    return simulated_product(
        name, fields["memory"], fields["slices"], filter(None, fields["profiles"]), label=label
    )


def reference() -> str:
    return schema_reference((*DOCUMENT.rows(""), *_OWN_PRODUCT.rows("simulated.product")), "")


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
