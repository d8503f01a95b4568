"""`--sort-by`: the order of nodes and pods in a report."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from tessera.core.devices.capacity import NodeUse, PodUse
from tessera.core.kubernetes.quantity import Quantity
from tessera.inventory.report import Report, pod_state, state_of


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
AMOUNTS: Final = (
    "allocatable",
    "allocated",
    "available",
    "amount",
)  # of all resources that are shown together


def in_order_of(field: str, report: Report) -> Report:
    """The same report; nodes and pods that have this field are in its order, as they were among equals."""
    if field in _NODES:
        report = replace(report, nodes=sorted(report.nodes, key=_NODES[field]))
    if field in _PODS and report.pods is not None:
        report = replace(report, pods=sorted(report.pods, key=_PODS[field]))
    return report
