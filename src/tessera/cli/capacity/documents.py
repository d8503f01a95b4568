"""What `tessera capacity` says to programs: a document, CSV, names."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, Protocol

from tessera.core.devices.capacity import PodUse, Usage, Usages, in_order
from tessera.core.kubernetes.quantity import ZERO
from tessera.inventory.report import Report, Share, amount, pod_state, state_of
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
                "resources": {
                    resource: {**_usage(usage), **({"from": "dra"} if one.source(resource) == "dra" else {})}
                    for resource, usage in one.resources.items()
                },
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
    if report.namespaces is not None:
        whole["namespaces"] = {
            namespace: {
                resource: {
                    "asked": amount(one.asked),
                    "holds": amount(one.holds),
                    "waits": amount(one.waits),
                }
                for resource, one in shares.items()
            }
            for namespace, shares in report.namespaces.items()
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


def csv_lines(report: Report, *, headers: bool = True) -> list[str]:
    """A line for each node and resource, or for each pod and resource; amounts are plain numbers."""
    heading, *rows = (
        _namespace_rows(report.namespaces)
        if report.namespaces is not None
        else _pod_rows(report.pods)
        if report.pods is not None
        else _node_rows(report)
    )
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([heading, *rows] if headers else rows)
    return text.getvalue().splitlines()


def _pod_rows(uses: Iterable[PodUse]) -> Iterator[tuple[str, ...]]:
    yield ("namespace", "pod", "node", "resource", "amount", "state")
    for use in uses:
        for resource, one in in_order(use.amounts).items():
            yield (use.namespace, use.name, use.node, resource, _plain(one.value), pod_state(use))


def _namespace_rows(namespaces: Mapping[str, Mapping[str, Share]]) -> Iterator[tuple[str, ...]]:
    yield ("namespace", "resource", "asked", "holds", "waits")
    for namespace, shares in namespaces.items():
        for resource, one in shares.items():
            yield (namespace, resource, *(_plain(of.value) for of in (one.asked, one.holds, one.waits)))


def _node_rows(report: Report) -> Iterator[tuple[str, ...]]:
    last = ("from",) if report.with_dra else ()  # where all comes from device plugins there is no such column
    yield ("node", "product", "resource", "allocatable", "allocated", "available", "asked", *last)
    for node in report.nodes:
        for resource, usage in node.resources.items():
            numbers = [_plain(of.value) for of in (usage.allocatable, usage.allocated, usage.available)]
            source = (node.source(resource),) if last else ()
            yield (node.node.name, node.product, resource, *numbers, "", *source)
    for resource, asked in report.asked.items():  # by pods that no node has
        yield ("", "", resource, "", "", "", _plain(asked.value), *("" for _ in last))


def name_lines(report: Report, *, headers: bool = True) -> list[str]:  # noqa: ARG001 # names have no heading
    """The nodes, or the pods where they are asked for, as kubectl names them."""
    if report.pods is not None:
        return [f"pod/{use.name}" for use in report.pods]
    return [f"node/{one.node.name}" for one in report.nodes]


class LinesOf(Protocol):
    """A report as lines for programs."""

    def __call__(self, report: Report, *, headers: bool) -> list[str]:
        """The lines."""
        ...


LINES: Final[dict[str, LinesOf]] = {"csv": csv_lines, "name": name_lines}


def _plain(value: Fraction) -> str:
    """A decimal number: quantities have at most nine digits behind the point."""
    if value.denominator == 1:
        return str(value.numerator)
    digits = f"{abs(value.numerator) * 10**9 // value.denominator:010d}"
    return ("-" if value < 0 else "") + f"{digits[:-9]}.{digits[-9:]}".rstrip("0")
