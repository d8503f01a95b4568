"""The fields of the device plugin's configuration file, as tables: what each may be, and what it does."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from tessera.core.devices.device import Handover
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import is_of_containers
from tessera.core.mig.geometry import Product, simulated_product
from tessera.core.mig.layout import Strategy
from tessera.core.mig.product import product_named
from tessera.core.mig.profile import MigProfile
from tessera.protocol.cdi import check_kind
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
