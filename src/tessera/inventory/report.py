"""What `tessera capacity` prints, added up."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from tessera.core.devices.capacity import NodeUse, PodUse, Usages, in_order, total
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import ZERO, Format, Quantity
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.fragmentation import CardUse, Room, packed, rooms
from tessera.core.requests.record import recorded
from tessera.inventory.inventory import Inventory
from tessera.kube.watch.table import Key

T = TypeVar("T")

_DOMAIN: Final = "node.kubernetes.io/"
# taints that Kubernetes sets → what an operator calls it; such a node takes no new pods
_STATES: Final = {
    _DOMAIN + "unreachable": "unreachable",
    _DOMAIN + "not-ready": "not ready",
    _DOMAIN + "unschedulable": "cordoned",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, ready to be printed."""

    nodes: Sequence[NodeUse]
    products: Mapping[str, tuple[int, Usages]]  # nodes with such GPUs, and what they have together
    total: Usages
    asked: Mapping[str, Quantity]
    rooms: Mapping[MigProfile, Room | None]  # None: how no card with this profile is cut is known
    layouts: Mapping[str, KnownLayout | UnknownLayout]  # of nodes with GPUs, where rooms are asked for
    pods: Sequence[PodUse] | None  # None: not asked for
    namespaces: Mapping[str, Mapping[str, "Share"]] | None  # None: not asked for
    sources: Mapping[str, str]  # by resource, on all nodes together: `plugin`, `dra`, both of them, or empty
    with_dra: bool  # whether DRA serves any of it: only then does it matter where a resource comes from


@dataclass(frozen=True, slots=True)
class Share:
    """What the pods of a namespace have to do with a resource now."""

    holds: Quantity = ZERO
    waits: Quantity = ZERO  # for a node

    @property
    def asked(self) -> Quantity:
        """Both together, as it was admitted."""
        return self.holds + self.waits


def report_of(
    inventory: Inventory,
    shown: Callable[[str], bool],
    *,
    with_pods: bool,
    with_rooms: bool,
    with_namespaces: bool = False,
) -> Report:
    """Add everything up; more may have been counted than is to be shown."""
    nodes = [
        NodeUse(one.node, resources)
        for one in inventory.capacity.nodes()
        if (resources := _some(one.resources, shown))
    ]
    grouped: dict[str, list[Usages]] = {}
    for one in nodes:
        grouped.setdefault(one.product, []).append(one.resources)
    products = {product: (len(usages), total(usages)) for product, usages in grouped.items()}
    layouts = {name: inventory.known(name) for name in inventory.gpus} if with_rooms else {}
    return Report(
        nodes,
        products,
        total(usages for _, usages in products.values()),
        _some(inventory.capacity.asked, shown),
        _rooms(inventory, layouts) if with_rooms else {},
        layouts,
        _pods(inventory, shown) if with_pods else None,
        _namespaces(_pods(inventory, shown)) if with_namespaces else None,
        _sources(nodes),
        any(one.source(resource) == "dra" for one in nodes for resource in one.resources),
    )


def _sources(nodes: Iterable[NodeUse]) -> dict[str, str]:
    """Where each resource comes from on the nodes that have any of it."""
    found: dict[str, set[str]] = {}
    for one in nodes:
        for resource, usage in one.resources.items():
            if usage:
                found.setdefault(resource, set()).add(one.source(resource))
    return {resource: ",".join(sorted(some - {""}, reverse=True)) for resource, some in found.items()}


def _namespaces(uses: Iterable[PodUse]) -> dict[str, dict[str, Share]]:
    found: dict[str, dict[str, Share]] = {}
    for use in sorted(uses, key=lambda one: one.namespace):
        of = found.setdefault(use.namespace, {})
        for resource, one in use.amounts.items():
            share = of.get(resource, Share())
            of[resource] = (
                Share(share.holds + one, share.waits) if use.node else Share(share.holds, share.waits + one)
            )
    return {namespace: in_order(of) for namespace, of in found.items()}


def _some(resources: Mapping[str, T], shown: Callable[[str], bool]) -> dict[str, T]:
    return {resource: one for resource, one in resources.items() if shown(resource)}


def _pods(inventory: Inventory, shown: Callable[[str], bool]) -> list[PodUse]:
    """Which pods hold something on these nodes, and which wait."""
    by_claims = inventory.dra.held_by_pods() if any(use.claim and use.node for use in inventory.pods) else {}
    found = (
        replace(use, amounts=_some(held_amounts(use, by_claims.get(Key(use.namespace, use.name))), shown))
        for use in inventory.pods
        if not use.node or use.node in inventory.capacity
    )
    return sorted(
        (use for use in found if use.amounts),
        key=lambda use: (use.node, use.namespace, use.name),
    )


def held_amounts(use: PodUse, devices: Mapping[str, int] | None) -> Mapping[str, Quantity]:
    """What a pod takes. For a converted pod with a node, the devices that its claim holds count, not its annotations."""
    if use.alternatives is None or not use.node or not devices:
        return use.amounts
    recorded_devices = use.alternatives.devices(dict(recorded(use.record)))
    amounts = {
        resource: amount for resource, amount in use.amounts.items() if resource not in recorded_devices
    }
    return {**amounts, **{resource: Quantity(number) for resource, number in devices.items()}}


def _rooms(
    inventory: Inventory, layouts: Mapping[str, KnownLayout | UnknownLayout]
) -> dict[MigProfile, Room | None]:
    """Room for more on cards whose layout is known; None for profiles that only other cards have."""
    every = {product for gpus in inventory.gpus.values() if (product := gpus.product) is not None}
    found: Mapping[MigProfile, Room] = rooms(_cards(inventory, layouts))
    return {profile: found.get(profile) for profile in sorted({p for one in every for p in one.profiles})}


def _cards(inventory: Inventory, layouts: Mapping[str, KnownLayout | UnknownLayout]) -> Iterator[CardUse]:
    """The cards whose layout is known, without nodes whose strategy does not allow it."""
    for name, known in layouts.items():
        if isinstance(known, KnownLayout):
            with suppress(InvalidInput):
                yield from packed(known.layout, inventory.used(name), inventory.gpus[name].strategy)


def not_counted(report: Report, inventory: Inventory) -> dict[str, list[str]]:
    """The nodes whose room for more is not known though their product can be cut, by the reason."""
    found: dict[str, list[str]] = {}
    for name, known in report.layouts.items():
        if isinstance(known, UnknownLayout) and inventory.gpus[name].product is not None:
            found.setdefault(known.reason, []).append(name)
    return found


def state_of(node: Node) -> str:
    """Whether a node takes pods, by the taints that Kubernetes sets."""
    keys = {taint.key for taint in node.taints}
    return next((word for key, word in _STATES.items() if key in keys), "ready")


def pod_state(use: PodUse) -> str:
    return "ending" if use.ending else "holds" if use.node else "waits"


def amount(quantity: Quantity) -> str:
    """A quantity as Kubernetes writes it, but 20000 devices are not 20k."""
    plain = quantity.format is Format.DECIMAL_SI and quantity.is_whole
    return str(quantity.value.numerator) if plain else str(quantity)
