"""Kubernetes objects as JSON, read into core values.

Only the fields that decisions need are decoded; msgspec skips the rest without building it. Pods are in `pod`.
"""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes import quota
from tessera.core.kubernetes.node import Namespace, Node
from tessera.core.kubernetes.pod import NOTHING, Amounts
from tessera.core.kubernetes.quantity import InvalidQuantity, Number, Quantity
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.resources import is_extended
from tessera.core.kubernetes.scheduling import CORDONED, Requirement, Taint

_T = TypeVar("_T")
_Texts = dict[str, str] | None
ABSENT: Final = msgspec.Raw(b"")  # a raw field that is not there
AmountsIn = dict[str, str | int | float] | None

_UNREADABLE: Final = (RecursionError, msgspec.MsgspecError, UnicodeDecodeError)


class InvalidObject(InvalidInput):
    """An object that is not what Kubernetes would accept."""


class Part(msgspec.Struct, gc=False, rename="camel"):
    """An object, or a part of one; fields that are not named here are skipped."""


class ResourcesIn(Part):
    """`resources` of a container or of a pod."""

    requests: AmountsIn = None
    limits: AmountsIn = None


class MetaIn(Part):
    """Metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: _Texts = None
    annotations: _Texts = None
    resource_version: str = ""


class _TaintIn(Part):
    key: str = ""
    value: str | None = None
    effect: str | None = None


class _NodeSpecIn(Part):
    taints: list[_TaintIn] | None = None
    unschedulable: bool | None = None


class _ConditionIn(Part):
    type: str = ""
    status: str = ""


class _NodeStatusIn(Part):
    allocatable: AmountsIn = None
    capacity: AmountsIn = None
    conditions: list[_ConditionIn] | None = None

    @property
    def ready(self) -> bool:
        """Whether the kubelet reports; so does one of a node without the condition."""
        return all(one.status == "True" for one in self.conditions or () if one.type == "Ready")


class NodeIn(Part):
    """A node."""

    metadata: MetaIn
    spec: _NodeSpecIn | None = None
    status: _NodeStatusIn | None = None


class NamespaceIn(Part):
    """A namespace."""

    metadata: MetaIn


class _ScopeIn(Part):
    scope_name: str = ""
    operator: str = "Exists"
    values: list[str] | None = None


class _ScopeSelectorIn(Part):
    match_expressions: list[_ScopeIn] | None = None


class _QuotaSpecIn(Part):
    hard: AmountsIn = None
    scopes: list[str] | None = None
    scope_selector: _ScopeSelectorIn | None = None


class _QuotaStatusIn(Part):
    hard: AmountsIn = None
    used: AmountsIn = None


class QuotaIn(Part):
    """A ResourceQuota."""

    metadata: MetaIn
    spec: _QuotaSpecIn | None = None
    status: _QuotaStatusIn | None = None


def decoder(type_: type[_T]) -> Callable[[bytes | msgspec.Raw], _T]:
    """A decoder whose errors are `InvalidObject`s. A field that is null counts as absent, as it does for the API server."""
    decode = msgspec.json.Decoder(type_).decode

    def checked(data: bytes | msgspec.Raw) -> _T:
        try:
            return decode(data)
        except _UNREADABLE as error:
            if not isinstance(error, msgspec.ValidationError) or "got `null`" not in str(error):
                raise InvalidObject(_why_unreadable(error)) from error
        try:  # no API server writes it, people do
            return decode(msgspec.json.encode(_without_nulls(msgspec.json.decode(data))))
        except _UNREADABLE as error:
            raise InvalidObject(_why_unreadable(error)) from error

    return checked


def _without_nulls(value: object, depth: int = 8) -> object:
    """A document without its fields that are null, as deep as structs read; every object has metadata."""
    if isinstance(value, dict) and depth:
        return {
            key: _without_nulls(one, depth - 1)
            for key, one in value.items()
            if one is not None or key == "metadata"
        }
    if isinstance(value, list) and depth:
        return [_without_nulls(one, depth - 1) for one in value]
    return value


def reader(type_: type[_T], default: _T) -> Callable[[msgspec.Raw, str], _T]:
    """A decoder of a raw field, whose errors begin with its place; the default is for a field that is absent or null."""
    decode = msgspec.json.Decoder(type_).decode

    def read(raw: msgspec.Raw, where: str) -> _T:
        if raw is ABSENT:
            return default
        try:
            return decode(raw)
        except _UNREADABLE as error:
            if not present(raw):
                return default
            text = _why_unreadable(error)
            between = "" if text.startswith("[") else "." if _begins_with_path(text) else ": "
            raise InvalidObject(where + between + text) from error

    return read


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, msgspec.MsgspecError):
        return error_text(error)
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text (byte {error.start})"
    return "nested too deeply"


def error_text(error: msgspec.MsgspecError, root: str = "") -> str:
    """A decoder's error with the place in front: `spec.nodeName: expected str, got int`."""
    what, _, where = str(error).partition(" - at `")
    place = root + where.removesuffix("`").removeprefix("$").lstrip("." if not root else "")
    what = what[:1].lower() + what[1:].replace("`", "")
    return f"{place}: {what}" if place else what


def present(raw: msgspec.Raw) -> bool:
    """Whether a raw field is there and not null."""
    return raw is not ABSENT and bytes(raw) not in (b"", b"null")


def amounts_of(amounts: AmountsIn, where: str) -> Amounts:
    """A map of quantities, each parsed."""
    if not amounts:
        return NOTHING
    parsed = {}
    for resource, text in amounts.items():
        try:
            parsed[resource] = Quantity.parse(text)
        except InvalidQuantity as error:
            raise InvalidObject(f"{where}[{resource}]: {error}") from error
    return parsed


def node_of(one: NodeIn, keep: Callable[[str], bool] | None = None) -> Node:
    """A node; `keep` says which of its resources matter (all by default).

    What thousands of nodes share is kept once.
    """
    intern = sys.intern
    labels = one.metadata.labels or {}
    status = one.status or _NodeStatusIn()
    allocatable, where = status.allocatable or {}, f"node {one.metadata.name}, status"
    if keep is not None:
        allocatable = {resource: amount for resource, amount in allocatable.items() if keep(resource)}
    spec = one.spec or _NodeSpecIn()
    taints = tuple(_taint(t.key, t.value or "", t.effect or "") for t in spec.taints or ())
    if spec.unschedulable and CORDONED not in taints:  # its controller adds it a moment later
        taints = (*taints, CORDONED)
    amounts = _kept_once(allocatable, where + ".allocatable")
    return Node(
        name=intern(one.metadata.name),  # a label says it again
        labels={intern(key): intern(value) for key, value in labels.items()},
        taints=taints,
        allocatable=amounts,
        away=_away(amounts, status.capacity or {}, keep, where + ".capacity"),
        ready=status.ready,
    )


def _away(
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


@lru_cache(maxsize=1024)  # nodes of one kind have the same, but for a little memory here and there
def _parsed_amounts(items: tuple[tuple[str, str | float], ...]) -> Amounts:
    return {sys.intern(resource): Quantity.parse(text) for resource, text in items}


_taint: Final = lru_cache(maxsize=1024)(Taint)


def namespace_of(one: NamespaceIn) -> Namespace:
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
    spec, status = one.spec or _QuotaSpecIn(), one.status or _QuotaStatusIn()
    name = one.metadata.name
    return Quota(
        namespace=one.metadata.namespace or namespace,
        name=name,
        hard=_counted(status.hard or spec.hard, f"resource quota {name}, hard"),
        used=_counted(status.used, f"resource quota {name}, status.used"),
        scopes=(
            *(Requirement(scope, "Exists") for scope in spec.scopes or ()),
            *(
                Requirement(scope.scope_name, scope.operator, tuple(scope.values or ()))
                for scope in (spec.scope_selector and spec.scope_selector.match_expressions) or ()
            ),
        ),
    )


def _counted(amounts: AmountsIn, where: str) -> Mapping[str, Number]:
    gpus = {name: amount for key, amount in (amounts or {}).items() if (name := quota.of_containers(key))}
    if not gpus:
        return _NO_COUNTS
    return {sys.intern(name): amount.number for name, amount in amounts_of(gpus, where).items()}


_NO_COUNTS: Final[Mapping[str, Number]] = MappingProxyType({})

decode_node: Final = decoder(NodeIn)
decode_quota: Final = decoder(QuotaIn)
decode_namespace: Final = decoder(NamespaceIn)


def _begins_with_path(text: str) -> bool:
    head, colon, _ = text.partition(":")
    return bool(colon) and " " not in head
