"""What `tessera capacity` says to programs: JSON, YAML, CSV."""

import csv
import io
from fractions import Fraction
from typing import Any

import msgspec

from tessera.core.devices.capacity import Usage, Usages, in_order
from tessera.core.kubernetes.quantity import ZERO
from tessera.inventory.report import Report, amount, pod_state, state_of
from tessera.protocol import yaml
from tessera.protocol.mig.documents import CONFIG_STATE


def document(report: Report) -> dict[str, Any]:
    """Everything, for programs; amounts are Kubernetes quantities, exact."""
    whole: dict[str, Any] = {
        "nodes": [
            {
                "name": one.node.name,
                "product": one.product,
                "state": state_of(one.node),
                "layoutState": one.node.labels.get(CONFIG_STATE, ""),
                "resources": _usages(one.resources),
            }
            for one in report.nodes
        ],
        "products": [
            {"product": product, "nodes": number, "resources": _usages(usages)}
            for product, (number, usages) in report.products.items()
        ],
        "total": {
            resource: {
                **_usage(report.total.get(resource, Usage())),
                "asked": amount(report.asked.get(resource, ZERO)),
            }
            for resource in in_order({**report.total, **report.asked})
        },
    }
    if report.rooms:
        whole["room"] = {
            str(profile): {"free": room.free, "beside": room.beside, "recut": room.recut, "lost": room.lost}
            for profile, room in report.rooms.items()
        }
    if report.pods is not None:
        whole["pods"] = [
            {
                "namespace": use.namespace,
                "name": use.name,
                "node": use.node,
                "state": pod_state(use),
                "resources": {resource: amount(one) for resource, one in in_order(use.amounts).items()},
            }
            for use in report.pods
        ]
    return whole


def _usages(usages: Usages) -> dict[str, Any]:
    return {resource: _usage(usage) for resource, usage in usages.items()}


def _usage(usage: Usage) -> dict[str, str]:
    return {
        "allocatable": amount(usage.allocatable),
        "allocated": amount(usage.allocated),
        "available": amount(usage.available),
    }


def as_json(report: Report, *, lines: bool = False) -> str:
    """The document; on one line where one follows another."""
    encoded = msgspec.json.encode(document(report))
    return (encoded if lines else msgspec.json.format(encoded, indent=2)).decode()


def as_yaml(report: Report) -> str:
    """The document as YAML."""
    return yaml.dump(document(report)).rstrip("\n")


def as_csv(report: Report) -> str:
    """A line for each node and resource, or for each pod and resource; amounts are plain numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if report.pods is not None:
        writer.writerow(("namespace", "pod", "node", "resource", "amount", "state"))
        for use in report.pods:
            for resource, one in in_order(use.amounts).items():
                number = _plain(one.value)
                writer.writerow((use.namespace, use.name, use.node, resource, number, pod_state(use)))
        return text.getvalue().rstrip("\n")
    writer.writerow(("node", "product", "resource", "allocatable", "allocated", "available", "asked"))
    for node in report.nodes:
        for resource, usage in node.resources.items():
            numbers = [_plain(of.value) for of in (usage.allocatable, usage.allocated, usage.available)]
            writer.writerow((node.node.name, node.product, resource, *numbers, ""))
    for resource, asked in report.asked.items():  # by pods that no node has
        writer.writerow(("", "", resource, "", "", "", _plain(asked.value)))
    return text.getvalue().rstrip("\n")


def _plain(value: Fraction) -> str:
    """A decimal number: quantities have at most nine digits behind the point."""
    if value.denominator == 1:
        return str(value.numerator)
    digits = f"{abs(value.numerator) * 10**9 // value.denominator:010d}"
    return ("-" if value < 0 else "") + f"{digits[:-9]}.{digits[-9:]}".rstrip("0")
