"""The fields of the device plugin's configuration file, as tables: what each may be, and what it does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
    TEXT,
    Boolean,
    Choice,
    Count,
    Errors,
    Field,
    ListOf,
    MapOf,
    Record,
    Text,
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


@dataclass(frozen=True, slots=True)
class _Patterns:
    """One text, or a list of them."""

    words: str = "text, or list of text"

    def read(self, value: Any, path: str, errors: Errors) -> tuple[str, ...]:
        return ListOf(TEXT).read([value] if isinstance(value, str) else value, path, errors)

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [TEXT.schema(), ListOf(TEXT).schema()]}


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
_STRATEGIES: Final = Choice(tuple(map(str, Strategy)))
_KIND: Final = Text("CDI kind, `vendor/class`", check_kind, "")

_DEVICE_NODE: Final = Record(
    (
        Field("hostPath", _HOST_PATH, "The device file on the host."),
        Field("containerPath", _CONTAINER_PATH, "Where the container has it. Default: the same path.", default=""),
        Field("permissions", _PERMISSIONS, "What the container may do.", default="rw"),
    )
)  # fmt: skip
_MOUNT: Final = Record(
    (
        Field("hostPath", _HOST_PATH, "A file or folder on the host."),
        Field("containerPath", _CONTAINER_PATH, "Where the container has it. Default: the same path.", default=""),
        Field("readOnly", Boolean(), "Whether the container may only read it.", default=True),
    )
)  # fmt: skip
_STATIC: Final = Record(
    (
        Field("resource", Text("extended resource", _resource, ""), "What pods ask for."),
        Field("devices", _Patterns(), "The ids, or patterns such as `device_{0..7}`."),
        Field("deviceNodes", ListOf(_DEVICE_NODE), "Device files that a container gets with a device.", default=()),
        Field("mounts", ListOf(_MOUNT), "Files that a container gets with a device.", default=()),
        Field("env", MapOf(_VARIABLE, TEXT), "Variables that a container gets with a device.", default=MappingProxyType({})),
        Field("devicesVariable", _LIST_VARIABLE, "A variable that lists the container's devices by id.", default=""),
        Field("cdiKind", _KIND, "The devices' CDI kind. Default: the resource.", default=""),
    )
)  # fmt: skip
_OWN_PRODUCT: Final = Record(
    (
        Field("name", TEXT, "The card's name."),
        Field("memory", Count(1, 99_999), "GB of one card."),
        Field("slices", Count(1, 16), "Equal slices that a card can be cut into.", default=1),
        Field("profiles", ListOf(TEXT), "MIG profiles of the card, such as `2g.20gb`. None: it cannot be cut.", default=()),
        Field("label", TEXT, "The value of `nvidia.com/gpu.product`. Default: the name with dashes.", default=""),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _ProductKind:
    """A product by name, or the description of a simulated card."""

    words: str = "name of a product, or a map that describes one"

    def read(self, value: Any, path: str, errors: Errors) -> Product:
        own = value if isinstance(value, str) else None
        fields = {} if own else _OWN_PRODUCT.read(value, path, errors)
        try:
            return product_named(own) if own else _own_product(fields)
        except InvalidInput as error:
            if own or not errors.texts:
                errors.add(path, str(error))
        return product_named("H200")

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [{"type": "string"}, _OWN_PRODUCT.schema()]}


_SIMULATED: Final = Record(
    (
        Field("product", _ProductKind(), "The cards' product."),
        Field("cards", Count(1, 64), "How many cards."),
        Field("migStrategy", _STRATEGIES, "How cut cards become resources, as in NVIDIA's plugin.", default="mixed"),
        Field("layout", TEXT, "The layout of the cards until the node has an annotation, such as `2g.20gb=2,3g.40gb=1`. Default: whole cards.", default=""),
        Field("partitioning", Choice(("static", "dynamic")), "`static`: cut as the layout says; `dynamic`: the DRA driver cuts a slice when a claim gets it, and there is no layout.", default="static"),
        Field("profiles", ListOf(TEXT), "With `dynamic`: the profiles that may be cut. Default: all profiles of the card.", default=()),
        Field("numaNodes", Count(0, 64), "NUMA nodes that the cards are spread over. 0: the plugin reports none.", default=0),
        Field("devicesVariable", _LIST_VARIABLE, "A variable that lists the container's devices by UUID.", default=VISIBLE_DEVICES),
        Field("cdiKind", _KIND, "The devices' CDI kind.", default=_SIMULATED_KIND),
    )
)  # fmt: skip
_NVML: Final = Record(
    (
        Field("migStrategy", _STRATEGIES, "How cut cards become resources, as in NVIDIA's plugin.", default="none"),
        Field("cdi", Choice(("own", "nvidia-ctk")), "Which CDI spec describes the devices: `own`, with device nodes only, or that of `nvidia-ctk cdi generate`, with the driver's libraries.", default="own"),
        Field("devicesVariable", _LIST_VARIABLE, "A variable that lists the container's devices by UUID; NVIDIA's runtime reads it.", default=VISIBLE_DEVICES),
    )
)  # fmt: skip

DOCUMENT: Final = Record(
    (
        Field("handover", Choice(tuple(map(str, Handover))), "How a container gets its devices: by CDI name, spelled out inline for runtimes without CDI, or both.", default="cdi"),
        Field("faultFile", text_that("path", _is_path, _NO_PATH), "A file in which people mark devices unhealthy (`device_3: unhealthy`), checked every second.", default=""),
        Field("evictUnhealthy", Boolean(), "Whether the DRA driver evicts pods from a device that becomes unhealthy (`NoExecute`), or only keeps new pods away.", default=False),
        Field("static", ListOf(_STATIC), "Devices listed here.", default=()),
        Field("simulated", _SIMULATED, "GPUs that exist only for the kubelet.", default=None),
        Field("nvml", _NVML, "The GPUs that NVIDIA's driver knows.", default=None),
    )
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
    profiles = [MigProfile.parse(profile) for profile in fields["profiles"]]
    return simulated_product(name, fields["memory"], fields["slices"], profiles, label=label)


def reference() -> str:
    return schema_reference((*DOCUMENT.rows(), *_OWN_PRODUCT.rows("simulated.product")), "")
