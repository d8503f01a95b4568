"""Nodes from a short YAML: a name, what the node has, and which devices its plugin or its DRA driver is to find."""

import importlib.resources
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from tessera.core.dra.slices import DRIVER
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.alternatives import GENERAL_CLASS, own_expression
from tessera.core.resources import WHOLE_GPU, short
from tessera.protocol import yaml
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.configuration import schema
from tessera.protocol.configuration.devices import DeviceConfiguration
from tessera.protocol.configuration.schema import BOOLEAN, TEXT, Errors, Field, list_of, map_of, record
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.simulation.control_plane.store import Document

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node that is to be there."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    resources: Mapping[str, str] = field(default_factory=dict)  # without those that device plugins bring
    devices: DeviceConfiguration | None = None
    dra: bool = False


def _taint(text: Any) -> Mapping[str, str]:
    what, colon, effect = str(text).rpartition(":")
    key, _, value = what.partition("=")
    if not colon or not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise InvalidInput(f"{schema.shown(text)} is no taint such as dedicated=gpu:NoSchedule")
    return {"key": key, "value": value, "effect": effect}


def _amount(value: Any) -> str:
    """A quantity, also one that YAML reads as a number."""
    Quantity.parse(str(value))
    return str(value)


def _devices(value: Any) -> DeviceConfiguration:
    return device_config.parse(yaml.dump(value))


def _parsed(description: str, parse: Callable[[Any], Any]) -> schema.ValueType[Any]:
    """A value that a function reads, and refuses with `InvalidInput`."""

    def read(value: Any, path: str, errors: Errors) -> Any:
        try:
            return parse(value)
        except InvalidInput as error:
            for line in error.errors:
                errors.add(path, line)

    return schema.ValueType(description, read, {})


_AMOUNT: Final = _parsed("quantity", _amount)
_DEVICES: Final = _parsed("configuration of the device plugin", _devices)
_NODE: Final = record(
    Field("cpu", _AMOUNT, "CPUs.", default="64"),
    Field("memory", _AMOUNT, "Memory.", default="512Gi"),
    Field("pods", _AMOUNT, "Pods that it takes.", default="110"),
    Field("others", map_of(TEXT, _AMOUNT), "Further resources.", default=_NOTHING),
    Field("labels", map_of(TEXT, TEXT), "Labels.", default=_NOTHING),
    Field("annotations", map_of(TEXT, TEXT), "Annotations.", default=_NOTHING),
    Field("taints", list_of(_parsed("taint", _taint)), "Taints.", default=()),
    Field("layout", TEXT, f"The annotation {RUNAI_CONFIG}.", default=""),
    Field("devices", _DEVICES, "What its device plugin or DRA driver is configured with.", default=None),
    Field("dra", BOOLEAN, "Its devices come from the DRA driver, not the device plugin.", default=False),
)
_DOCUMENT: Final = map_of(TEXT, _NODE)


def parse(text: str | bytes, source: str = "nodes") -> dict[str, NodeSpec]:
    """The nodes of a document by name, or every error about it."""
    errors, document = Errors(), yaml.load(text, source)
    if isinstance(document, dict) and {"apiVersion", "kind"} <= document.keys():
        raise InvalidInput(
            f"{source}: this is a {document['kind']} of Kubernetes, and the demo takes nodes such as `mine: {{layout: 1g.10gb=7, devices: "
            "{simulated: {product: H200-70GB, cards: 1}}}`; `tessera dashboard --from` shows objects of Kubernetes"
        )
    read = _DOCUMENT.read(document, "", errors)
    errors.raise_if_any()
    return {name: _spec(name, one) for name, one in read.items()}


def known_nodes() -> dict[str, NodeSpec]:
    """The nodes that stories are played on."""
    file = importlib.resources.files(__package__) / "nodes.yaml"
    return parse(file.read_bytes(), "nodes.yaml")


def _spec(name: str, read: Mapping[str, Any]) -> NodeSpec:
    layout = {RUNAI_CONFIG: read["layout"]} if read["layout"] else {}
    return NodeSpec(
        name,
        labels={"kubernetes.io/hostname": name, **read["labels"]},
        annotations={**read["annotations"], **layout},
        taints=read["taints"],
        resources={"cpu": read["cpu"], "memory": read["memory"], "pods": read["pods"], **read["others"]},
        devices=read["devices"],
        dra=read["dra"],
    )


def device_classes(nodes: Iterable[NodeSpec]) -> list[Document]:
    """The chart's DeviceClasses, with extended resource names, for what the DRA driver of these nodes can offer."""
    configured = [node.devices.simulated for node in nodes if node.dra and node.devices]
    cards = {card for one in configured if one is not None for card in one.cards}
    if not cards:
        return []
    resources = {profile.resource for card in cards for profile in card.profiles} | {WHOLE_GPU}
    found = [_device_class(GENERAL_CLASS, f"device.driver == '{DRIVER}'")]
    for one in sorted(resources):
        name = f"tessera-{short(one).replace('.', '-')}"
        found.append(_device_class(name, own_expression(one), extendedResourceName=one))
    return found


def _device_class(name: str, expression: str, **more: str) -> Document:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}], **more}}
