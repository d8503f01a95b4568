"""What all nodes have together, kept by adding and taking away: a cluster has thousands of nodes, and few change at a time."""

from collections.abc import Mapping
from typing import Any

from tessera.core.devices.capacity import Usage, Usages, in_order
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.kubernetes.resources import is_whole_or_mig, short
from tessera.inventory.report import amount


class Totals:
    """The sums of what nodes have."""

    def __init__(self) -> None:
        self._nodes: dict[str, Usages] = {}
        self._sums: dict[str, Usage] = {}

    def put(self, node: str, usages: Usages | None) -> None:
        """Take a node's new numbers in place of those before; None: it is gone."""
        for resource, one in self._nodes.pop(node, {}).items():
            before = self._sums[resource]
            rest = Usage(before.allocatable - one.allocatable, before.allocated - one.allocated)
            if rest:
                self._sums[resource] = rest
            else:
                del self._sums[resource]
        if usages is None:
            return
        self._nodes[node] = {resource: one for resource, one in usages.items() if one}
        for resource, one in self._nodes[node].items():
            self._sums[resource] = self._sums.get(resource, Usage()) + one

    def of(self, node: str) -> Usages:
        """What one node has, without what it has none of."""
        return self._nodes.get(node, {})

    def numbers(self, asked: Mapping[str, Quantity]) -> dict[str, tuple[int, int, int]]:
        """Allocatable, allocated and asked for, by resource."""
        return {
            resource: (
                int(one.allocatable.value),
                int(one.allocated.value),
                int(asked.get(resource, ZERO).value),
            )
            for resource, one in {**dict.fromkeys(asked, Usage()), **self._sums}.items()
        }

    def rows(self, asked: Mapping[str, Quantity]) -> list[dict[str, Any]]:
        """The rows of a table, with what pods ask for that no node has yet."""
        return resource_rows(self._sums, asked)


def resource_rows(usages: Usages, asked: Mapping[str, Quantity]) -> list[dict[str, Any]]:
    """Rows of a table; a resource that no node has and no pod asks for is left out."""
    rows = []
    for resource in in_order({**usages, **asked}):
        usage, waiting = usages.get(resource, Usage()), asked.get(resource, ZERO)
        if usage or waiting:
            rows.append(
                {
                    "resource": resource,
                    "name": short_name(resource),
                    "allocatable": amount(usage.allocatable),
                    "allocated": amount(usage.allocated),
                    "available": amount(usage.available),
                    "asked": amount(waiting),
                    "share": float(usage.allocated.value / usage.allocatable.value)
                    if usage.allocatable
                    else 0.0,
                    "lacking": waiting > usage.available,
                }
            )
    return rows


def short_name(resource: str) -> str:
    """A resource as people call it."""
    return short(resource) if is_whole_or_mig(resource) else resource
