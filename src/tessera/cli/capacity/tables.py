"""What `tessera capacity` says to people: tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tessera.cli.common.terminal import Style, table
from tessera.core.devices.capacity import PodUse, Usage, in_order
from tessera.core.kubernetes.quantity import ZERO
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import Room
from tessera.inventory.report import Report, Share, amount, pod_state, state_of
from tessera.protocol.mig.documents import CONFIG_STATE

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading; a row is known by its first columns, so that changes can be told."""

    heading: Row
    rows: Sequence[Row]
    keys: int


def tables(report: Report, *, wide: bool) -> list[Table]:
    """Nodes, their sum, pods if they are asked for, room for more if there are layouts; some may be empty."""
    if report.namespaces is not None:
        return [_namespace_table(report.namespaces), _total_table(report)]
    found = [_node_table(report, wide=wide), _total_table(report)]
    if report.pods is not None:
        found.append(_pod_table(report.pods))
    if wide and report.rooms:
        found.append(_room_table(report.rooms))
    return found


def _node_table(report: Report, *, wide: bool) -> Table:
    rows = []
    for one in report.nodes:
        for resource, usage in one.resources.items():
            if usage or wide:
                more = (
                    (_percent(usage), state_of(one.node), one.node.labels.get(CONFIG_STATE, "-"))
                    if wide
                    else ()
                )
                source = (_source(one.source(resource)),) if report.with_dra else ()
                numbers = _numbers(usage)
                rows.append((one.node.name, one.product or "-", resource, *source, *numbers, *more))
    more = ("USED", "STATE", "LAYOUT") if wide else ()
    first = ("NODE", "PRODUCT", "RESOURCE", *_from(report))
    return Table((*first, "ALLOCATABLE", "ALLOCATED", "AVAILABLE", *more), rows, len(first))


def _from(report: Report) -> Row:
    """The column that says where a resource comes from; there is none where all comes from device plugins."""
    return ("FROM",) if report.with_dra else ()


def _source(source: str) -> str:
    return source.replace("dra", "DRA") or "-"


def _total_table(report: Report) -> Table:
    rows: list[Row] = []
    if len(report.products) > 1:
        for product, (_, usages) in report.products.items():
            rows += [
                (product or "-", resource, *("" for _ in _from(report)), *_numbers(usage), "")
                for resource, usage in usages.items()
                if usage
            ]
    for resource in in_order({**report.total, **report.asked}):
        usage, asked = report.total.get(resource, Usage()), report.asked.get(resource, ZERO)
        if usage or asked:
            source = (_source(report.sources.get(resource, "")),) if report.with_dra else ()
            rows.append(("all", resource, *source, *_numbers(usage), amount(asked)))
    first = ("TOTAL", "RESOURCE", *_from(report))
    return Table((*first, "ALLOCATABLE", "ALLOCATED", "AVAILABLE", "ASKED FOR"), rows, keys=len(first))


def _namespace_table(namespaces: Mapping[str, Mapping[str, Share]]) -> Table:
    rows = [
        (namespace, resource, amount(one.asked), amount(one.holds), amount(one.waits))
        for namespace, shares in namespaces.items()
        for resource, one in shares.items()
    ]
    return Table(("NAMESPACE", "RESOURCE", "ASKED FOR", "HOLDS", "WAITS FOR"), rows, 2)


def _pod_table(uses: Sequence[PodUse]) -> Table:
    rows = [
        (use.namespace, use.name, use.node or "-", resource, amount(one), pod_state(use))
        for use in uses
        for resource, one in in_order(use.amounts).items()
    ]
    return Table(("NAMESPACE", "POD", "NODE", "RESOURCE", "AMOUNT", "STATE"), rows, 4)


def _room_table(found: Mapping[MigProfile, Room]) -> Table:
    rows = [
        (str(profile), str(room.free), str(room.beside), str(room.recut), str(room.lost))
        for profile, room in found.items()
    ]
    return Table(("ROOM FOR", "CUT AND FREE", "BESIDE", "RE-CUT", "LOST"), rows, 1)


def _numbers(usage: Usage) -> Row:
    return (amount(usage.allocatable), amount(usage.allocated), amount(usage.available))


def _percent(usage: Usage) -> str:
    if not usage.allocatable:
        return "-"
    return f"{round(100 * usage.allocated.value / usage.allocatable.value)}%"


def draw(
    report: Report, style: Style, *, wide: bool, nodes_last: bool = False, headers: bool = True
) -> list[str]:
    """The tables, one under the other; that of the nodes last, where not all of it may be seen."""
    lines: list[str] = []
    nodes, *others = tables(report, wide=wide)
    for one in (*others, nodes) if nodes_last else (nodes, *others):
        if one.rows:
            heading, *rows = table([one.heading, *one.rows])
            lines += [*([""] if lines else []), *([style.bold(heading)] if headers else []), *rows]
    return lines
