"""A report in the forms that `tessera capacity` prints: tables for people; a document, CSV and names for programs.

`in_order_of` sorts it first, as `--sort-by` says.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from tessera.cli.common.output import Style, headed
from tessera.core.devices.capacity import NodeUse, PodUse, Usage, in_order
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.planning.fragmentation import Room
from tessera.core.resources import short
from tessera.inventory.report import Report, Share, amount, pod_state, state_of
from tessera.protocol.mig.documents import CONFIG_STATE

Row = tuple[str, ...]

_USAGE: Final = ("allocatable", "allocated", "available")
_SHARE: Final = ("asked", "holds", "waits")
_ROOM: Final = ("free", "beside", "recut", "lost")
_NOT_KNOWN: Final = "not known"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading; its first columns identify a row, so that changes can be shown."""

    heading: Row
    rows: Sequence[Row]
    keys: int


def drawn(report: Report, form: str, style: Style, *, headers: bool) -> list[str]:
    """The lines of a form that is no document."""
    if form == "csv":
        return _csv_lines(report, headers=headers)
    if form == "name":  # as kubectl names them
        pods, nodes = report.pods, report.nodes
        return (
            [f"node/{one.node.name}" for one in nodes]
            if pods is None
            else [f"pod/{use.name}" for use in pods]
        )
    return draw(tables(report, wide=form == "wide", totals=headers), style, headers=headers)


def draw(some: Sequence[Table], style: Style, *, headers: bool) -> list[str]:
    """Tables, one under the other; those without rows are left out."""
    lines: list[str] = []
    for one in some:
        if one.rows:
            lines += [*([""] if lines else []), *headed([one.heading, *one.rows], style, headers=headers)]
    return lines


def tables(report: Report, *, wide: bool, totals: bool = True) -> list[Table]:
    """Nodes, their sum, pods if they are asked for, room for more if there are layouts; some may be empty.

    Short names of resources and no products keep the usual tables within 80 columns.
    """
    called = str if wide else short
    total = [_total_table(report, called)] if totals else []
    if report.namespaces is not None:
        heading: Row = ("NAMESPACE", "RESOURCE", "ASKED FOR", "HOLDS", "WAITS FOR")
        return [Table(heading, list(_namespace_rows(report.namespaces, amount, called)), 2), *total]
    found = [_node_table(report, called, wide=wide), *total]
    if report.pods is not None:
        heading = ("NAMESPACE", "POD", "NODE", "RESOURCE", "AMOUNT", "STATE")
        found.append(Table(heading, list(_pod_rows(report.pods, amount, "-", called)), 4))
    if wide and report.rooms:
        rows = [
            (str(profile), *(_values(room, _ROOM, str) if room else [_NOT_KNOWN] * len(_ROOM)))
            for profile, room in report.rooms.items()
        ]
        found.append(Table(("ROOM FOR", "CUT AND FREE", "BESIDE", "RE-CUT", "LOST"), rows, 1))
    return found


def _node_table(report: Report, called: Callable[[str], str], *, wide: bool) -> Table:
    rows = []
    for one in report.nodes:
        last = (state_of(one.node), one.node.labels.get(CONFIG_STATE, "-"), _layout_from(report, one))
        for resource, usage in one.resources.items():
            if usage or wide:
                product = (one.product or "-",) if wide else ()
                source = _from(report, one.source(resource))
                first: Row = (one.node.name, *product, called(resource), *source)
                more = (_percent(usage), *last) if wide else ()
                rows.append((*first, *_values(usage, _USAGE, amount), *more))
    more = ("USED", "STATE", "LAYOUT", "LAYOUT FROM") if wide else ()
    first = ("NODE", *(("PRODUCT",) if wide else ()), "RESOURCE", *_from(report, "FROM"))
    return Table((*first, "ALLOCATABLE", "ALLOCATED", "AVAILABLE", *more), rows, len(first))


def _layout_from(report: Report, one: NodeUse) -> str:
    """Where it is known from how a node's cards are cut."""
    known = report.layouts.get(one.node.name)
    return "-" if known is None else str(known.source) if isinstance(known, KnownLayout) else _NOT_KNOWN


def _total_table(report: Report, called: Callable[[str], str]) -> Table:
    rows: list[Row] = []
    source: Row
    products = report.products.items() if len(report.products) > 1 else ()
    for product, (_, usages) in products:
        for resource, usage in usages.items():
            if usage:
                source = ("",) if report.with_dra else ()
                rows.append((product or "-", called(resource), *source, *_values(usage, _USAGE, amount), ""))
    for resource in in_order({**report.total, **report.asked}):
        usage, asked = report.total.get(resource, Usage()), report.asked.get(resource, ZERO)
        if usage or asked:
            source = _from(report, report.sources.get(resource, ""))
            rows.append(("all", called(resource), *source, *_values(usage, _USAGE, amount), amount(asked)))
    first = ("TOTAL", "RESOURCE", *_from(report, "FROM"))
    return Table((*first, "ALLOCATABLE", "ALLOCATED", "AVAILABLE", "ASKED FOR"), rows, len(first))


def _from(report: Report, source: str) -> Row:
    """The column that says where a resource comes from; there is none where all comes from device plugins."""
    return (source.replace("dra", "DRA") or "-",) if report.with_dra else ()


def _percent(usage: Usage) -> str:
    if not usage.allocatable:
        return "-"
    return f"{round(100 * usage.allocated.value / usage.allocatable.value)}%"


def _values(one: Usage | Share | Room, names: Row, text: Callable[[Any], str]) -> Iterator[str]:
    return (text(getattr(one, name)) for name in names)


def _namespace_rows(
    namespaces: Mapping[str, Mapping[str, Share]],
    text: Callable[[Quantity], str],
    called: Callable[[str], str] = str,
) -> Iterator[Row]:
    for namespace, shares in namespaces.items():
        for resource, share in shares.items():
            yield (namespace, called(resource), *_values(share, _SHARE, text))


def _pod_rows(
    uses: Sequence[PodUse],
    text: Callable[[Quantity], str],
    no_node: str,
    called: Callable[[str], str] = str,
) -> Iterator[Row]:
    for use in uses:
        for resource, one in in_order(use.amounts).items():
            yield (use.namespace, use.name, use.node or no_node, called(resource), text(one), pod_state(use))


def _csv_lines(report: Report, *, headers: bool) -> list[str]:
    """A line for each node and resource, or for each pod and resource; amounts are plain numbers."""
    if report.namespaces is not None:
        heading: Row = ("namespace", "resource", *_SHARE)
        rows = _namespace_rows(report.namespaces, _plain)
    elif report.pods is not None:
        heading = ("namespace", "pod", "node", "resource", "amount", "state")
        rows = _pod_rows(report.pods, _plain, "")
    else:
        heading = ("node", "product", "resource", *_USAGE, "asked", *(["from"] if report.with_dra else []))
        rows = _csv_nodes(report)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([heading, *rows] if headers else rows)
    return text.getvalue().splitlines()


def _csv_nodes(report: Report) -> Iterator[Row]:
    for one in report.nodes:
        for resource, usage in one.resources.items():
            source = (one.source(resource),) if report.with_dra else ()
            yield (one.node.name, one.product, resource, *_values(usage, _USAGE, _plain), "", *source)
    for resource, asked in report.asked.items():  # by pods that no node has
        yield ("", "", resource, "", "", "", _plain(asked), *([""] if report.with_dra else []))


def _plain(quantity: Quantity) -> str:
    """A decimal number: quantities have at most nine digits behind the point."""
    value = quantity.value
    if value.denominator == 1:
        return str(value.numerator)
    digits = f"{abs(value.numerator) * 10**9 // value.denominator:010d}"
    return ("-" if value < 0 else "") + f"{digits[:-9]}.{digits[-9:]}".rstrip("0")


def document(report: Report) -> dict[str, Any]:
    """Everything, for programs; amounts are Kubernetes quantities, exact."""
    whole: dict[str, Any] = {
        "nodes": [
            {
                "name": one.node.name,
                "product": one.product,
                "state": state_of(one.node),
                "layoutState": one.node.labels.get(CONFIG_STATE, ""),
                **_layout_fields(report.layouts.get(one.node.name)),
                "resources": {
                    resource: {
                        **_named(usage, _USAGE),
                        **({"from": "dra"} if one.source(resource) == "dra" else {}),
                    }
                    for resource, usage in one.resources.items()
                },
            }
            for one in report.nodes
        ],
        "products": [
            {
                "product": product,
                "nodes": number,
                "resources": {resource: _named(usage, _USAGE) for resource, usage in usages.items()},
            }
            for product, (number, usages) in report.products.items()
        ],
        "total": {
            resource: {
                **_named(report.total.get(resource, Usage()), _USAGE),
                "asked": amount(report.asked.get(resource, ZERO)),
            }
            for resource in in_order({**report.total, **report.asked})
        },
    }
    if report.rooms:
        whole["room"] = {
            str(profile): {name: getattr(room, name, None) for name in _ROOM}
            for profile, room in report.rooms.items()
        }
    if report.namespaces is not None:
        whole["namespaces"] = {
            namespace: {resource: _named(share, _SHARE) for resource, share in shares.items()}
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


def _layout_fields(known: KnownLayout | UnknownLayout | None) -> dict[str, str]:
    match known:
        case KnownLayout():
            return {"layoutFrom": str(known.source)}
        case UnknownLayout():
            return {"layoutFrom": "", "layoutUnknown": str(known)}
    return {}


def _named(one: Usage | Share, names: Row) -> dict[str, str]:
    return dict(zip(names, _values(one, names, amount), strict=True))


def _natural(text: str) -> list[tuple[int, str]]:
    """So that gpu-2 comes before gpu-10."""
    return [(int(digits or 0), letters) for digits, letters in re.findall(r"(\d+)|(\D+)", text)]


def _largest_first(amounts: Iterable[Quantity]) -> Fraction:
    return -sum((one.value for one in amounts), Fraction())


_NODES: Final[dict[str, Callable[[NodeUse], Any]]] = {
    "name": lambda one: _natural(one.node.name),
    "product": lambda one: _natural(one.product),
    "state": lambda one: state_of(one.node),
    "allocatable": lambda one: _largest_first(usage.allocatable for usage in one.resources.values()),
    "allocated": lambda one: _largest_first(usage.allocated for usage in one.resources.values()),
    "available": lambda one: _largest_first(usage.available for usage in one.resources.values()),
}
_PODS: Final[dict[str, Callable[[PodUse], Any]]] = {
    "name": lambda use: _natural(use.name),
    "namespace": lambda use: _natural(use.namespace),
    "node": lambda use: _natural(use.node),
    "state": pod_state,
    "amount": lambda use: _largest_first(use.amounts.values()),
}
FIELDS: Final = tuple(dict.fromkeys([*_NODES, *_PODS]))
AMOUNTS: Final = (*_USAGE, "amount")  # of all resources that are shown together


def in_order_of(field: str | None, report: Report) -> Report:
    """The same report; nodes and pods that have this field are in its order, as they were among equals.

    Without a field nodes are sorted by name, and pods by namespace and name, as with kubectl.
    """
    if field is None:
        return in_order_of("namespace", in_order_of("name", report))
    if field in _NODES:
        report = replace(report, nodes=sorted(report.nodes, key=_NODES[field]))
    if field in _PODS and report.pods is not None:
        report = replace(report, pods=sorted(report.pods, key=_PODS[field]))
    return report
