"""Nodes, namespaces and ResourceQuotas, read into core values."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from tessera.core.cache import cache_short
from tessera.core.kubernetes import quota
from tessera.core.kubernetes.node import Namespace, Node
from tessera.core.kubernetes.pod import NOTHING, Amounts
from tessera.core.kubernetes.quantity import InvalidQuantity, Number, Quantity
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.scheduling import CORDONED, Requirement, Taint
from tessera.core.resources import is_extended
from tessera.protocol.kubernetes.objects import (
    AmountsIn,
    AnyObject,
    Condition,
    Metadata,
    Part,
    Texts,
    amounts_of,
    decoded_once,
    decoder,
)

T = TypeVar("T")


class _NodeSpecIn(Part):
    taints: list[Taint] | None = None
    unschedulable: bool | None = None


class _NodeStatusIn(Part):
    allocatable: AmountsIn = None
    capacity: AmountsIn = None
    conditions: list[Condition] | None = None

    @property
    def ready(self) -> bool:
        """Whether the kubelet reports; so does one of a node without the condition."""
        return all(one.status == "True" for one in self.conditions or () if one.type == "Ready")


class NodeIn(Part):
    metadata: Metadata
    spec: _NodeSpecIn = msgspec.field(default_factory=_NodeSpecIn)
    status: _NodeStatusIn = msgspec.field(default_factory=_NodeStatusIn)


class _ScopeIn(Part):
    scope_name: str = ""
    operator: str = "Exists"
    values: tuple[str, ...] = ()


class _ScopeSelectorIn(Part):
    match_expressions: list[_ScopeIn] | None = None


class _QuotaSpecIn(Part):
    hard: AmountsIn = None
    scopes: list[str] | None = None
    scope_selector: _ScopeSelectorIn = msgspec.field(default_factory=_ScopeSelectorIn)


class _QuotaStatusIn(Part):
    hard: AmountsIn = None
    used: AmountsIn = None


class QuotaIn(Part):
    metadata: Metadata
    spec: _QuotaSpecIn = msgspec.field(default_factory=_QuotaSpecIn)
    status: _QuotaStatusIn = msgspec.field(default_factory=_QuotaStatusIn)


def kept_small(one: NodeIn) -> NodeIn:
    """The same node, to be kept: what thousands of nodes say is kept once, and of its conditions only whether it is ready."""
    metadata, status = one.metadata, one.status
    ready = [Condition("Ready", each.status) for each in status.conditions or () if each.type == "Ready"]
    return structs.replace(
        one,
        metadata=structs.replace(
            metadata, labels=_interned(metadata.labels), annotations=_with_shared_names(metadata.annotations)
        ),
        status=structs.replace(
            status,
            allocatable=_interned(status.allocatable),
            capacity=_interned(status.capacity),
            conditions=ready,
        ),
    )


def _with_shared_names(texts: Texts) -> Texts:
    return None if texts is None else {sys.intern(name): text for name, text in texts.items()}


def _interned(texts: Mapping[str, T] | None) -> dict[str, T] | None:
    """The same texts, each of them kept once in this process."""
    return None if texts is None else {sys.intern(key): _shared(text) for key, text in texts.items()}


@lru_cache(maxsize=4096, typed=True)
def _shared(text: T) -> T:
    return text


def node_of(one: NodeIn, keep: Callable[[str], bool] | None = None) -> Node:
    """A node; `keep` says which of its resources matter (all by default).

    What thousands of nodes share is kept once.
    """
    intern = sys.intern
    labels = one.metadata.labels or {}
    spec, status = one.spec, one.status
    allocatable, where = status.allocatable or {}, f"node {one.metadata.name}, status"
    if keep is not None:
        allocatable = {resource: amount for resource, amount in allocatable.items() if keep(resource)}
    taints = tuple(map(_same, spec.taints or ()))
    if spec.unschedulable and CORDONED not in taints:  # its controller adds it a moment later
        taints = (*taints, CORDONED)
    amounts = _kept_once(allocatable, where + ".allocatable")
    node = Node(
        name=intern(one.metadata.name),  # a label says it again
        labels={intern(key): intern(value) for key, value in labels.items()},
        taints=taints,
        allocatable=amounts,
        unavailable=_unavailable(amounts, status.capacity or {}, keep, where + ".capacity"),
        ready=status.ready,
    )
    if any(map(node.is_stale, node.unavailable)):
        lasting = {name: amount for name, amount in node.unavailable.items() if not node.is_stale(name)}
        return replace(node, unavailable=lasting)
    return node


def _unavailable(
    allocatable: Amounts, capacity: Mapping[str, str | float], keep: Callable[[str], bool] | None, where: str
) -> Amounts:
    """What a node has and cannot give now: devices whose plugin does not run. Cpu and memory are never among it."""
    none_left = {
        resource: amount
        for resource, amount in capacity.items()
        if amount not in ("0", 0)
        and is_extended(resource)
        and (keep is None or keep(resource))
        and not allocatable.get(resource)
    }
    found = _kept_once(none_left, where)
    return (
        found if all(found.values()) else {resource: amount for resource, amount in found.items() if amount}
    )


def _kept_once(amounts: Mapping[str, str | float], where: str) -> Amounts:
    """Amounts that thousands of nodes have alike, as one map."""
    if not amounts:
        return NOTHING
    try:
        return _parsed_amounts(tuple(amounts.items()))
    except InvalidQuantity:
        return amounts_of(dict(amounts), where)  # which says where


@cache_short(1024, 64, len)  # nodes of one kind have the same, but for a little memory here and there
def _parsed_amounts(items: tuple[tuple[str, str | float], ...]) -> Amounts:
    return {sys.intern(resource): Quantity.parse(text) for resource, text in items}


@lru_cache(maxsize=1024)
def _same(taint: Taint) -> Taint:
    return taint


def namespace_of(one: AnyObject) -> Namespace:
    """A namespace; with only those of its annotations that are read here."""
    annotations = one.metadata.annotations or {}
    return Namespace(
        name=one.metadata.name,
        labels=one.metadata.labels or {},
        annotations={
            key: value for key, value in annotations.items() if key.startswith("gpu-webhook.k8s.io/")
        },
    )


def quota_of(one: QuotaIn, namespace: str = "") -> Quota:
    """A ResourceQuota; of its resources only those of GPUs. `namespace` is that of one that names none.

    The API server holds pods against the status, which follows the spec within moments.
    """
    spec, status, name = one.spec, one.status, one.metadata.name
    return Quota(
        namespace=one.metadata.namespace or namespace,
        name=name,
        hard=_counted(status.hard or spec.hard, f"resource quota {name}, hard"),
        used=_counted(status.used, f"resource quota {name}, status.used"),
        scopes=(
            *(Requirement(scope, "Exists") for scope in spec.scopes or ()),
            *(
                Requirement(scope.scope_name, scope.operator, scope.values)
                for scope in spec.scope_selector.match_expressions or ()
            ),
        ),
    )


def _counted(amounts: AmountsIn, where: str) -> Mapping[str, Number]:
    gpus = {name: amount for key, amount in (amounts or {}).items() if (name := quota.of_containers(key))}
    if not gpus:
        return _NO_COUNTS
    return {sys.intern(name): amount.number for name, amount in amounts_of(gpus, where).items()}


_NO_COUNTS: Final[Mapping[str, Number]] = MappingProxyType({})

decode_node: Final = decoded_once(decoder(NodeIn))
decode_quota: Final = decoder(QuotaIn)
