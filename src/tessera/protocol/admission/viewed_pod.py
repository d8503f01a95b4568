"""Pods as the view of what is free sees them, read in the fewest steps: there may be a hundred thousand, and thousands of events a second.

What pods of one template have alike stays raw bytes, by which it is known again: it is read once, and kept once. The caches are bounded
in bytes, and raw bytes that are long are known by their digest. What is kept of a pod is bounded, too (`core.devices.followed`).
"""

import sys
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from tessera.core.admission.view.pods import (
    BoundPod,
    Origin,
    Shape,
    Usage,
    ViewedPod,
    WaitingPod,
    bounded,
    is_partial,
    usage_of,
    without_place,
)
from tessera.core.cache import ByteCache
from tessera.core.devices.followed import is_small_place, place_bytes
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import DEFAULT_SCHEDULERS, ENDED, Container, Pod
from tessera.core.resources import is_any_gpu
from tessera.protocol.kubernetes.lean_pod import ContainerIn, LeanSpec, container_of, owner_of
from tessera.protocol.kubernetes.objects import (
    ABSENT,
    Condition,
    InvalidObject,
    Part,
    amounts_of,
    decoder,
    reader,
    seconds,
)

_Containers = tuple[tuple[bytes, bool], ...]  # the resources of each, and whether it is a sidecar
_Stated = frozenset[str]  # the resources that nodes with GPUs state
_NOTHING_STATED: Final[_Stated] = frozenset()
_Key = tuple[object, ...]

_SHORT: Final = 2048  # bytes that are a key as they are
_LONGEST_UID: Final = 64  # characters; the API server's have 36, and an owner reference may say anything
# about the bytes of one entry, besides texts (tracemalloc); and of one resource or container among them
_OVERHEAD: Final = 600
_EACH: Final = 150
# Some 4,000 templates of the usual size. The caches are as large as that for good.
_usages: Final = ByteCache[_Key, Usage](4 * 2**20, 64 * 1024)
_alike: Final = ByteCache[Usage, Usage](2**20, 64 * 1024)
_shapes: Final = ByteCache[_Key, Shape](4 * 2**20, 128 * 1024)
_origins: Final = ByteCache[_Key, Origin](2 * 2**20, 64 * 1024)


def forget_templates() -> None:
    """Clear the caches after pods that had little in common; to be called now and then.

    Each value that is kept keeps a megabyte of the allocator, with what is free in it.
    """
    templates = (_usages, _alike, _shapes)
    if any(cache.is_overflowing for cache in templates):
        for cache in templates:
            cache.clear()
        _origins.clear()
    elif _origins.is_overflowing:
        _origins.clear()


class _MetadataIn(Part):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: msgspec.Raw = ABSENT


class _ContainerIn(Part):
    resources: msgspec.Raw = ABSENT
    restart_policy: str | None = None


class _SpecIn(Part):
    init_containers: list[_ContainerIn] | None = None
    containers: list[_ContainerIn] | None = None
    node_selector: msgspec.Raw = ABSENT
    node_name: str = ""
    affinity: msgspec.Raw = ABSENT
    scheduler_name: str = ""
    tolerations: msgspec.Raw = ABSENT
    priority: int | None = None
    overhead: msgspec.Raw = ABSENT
    scheduling_gates: msgspec.Raw = ABSENT
    resources: msgspec.Raw = ABSENT


class _StatusIn(Part):
    phase: str = ""
    conditions: msgspec.Raw = ABSENT


class ViewedPodIn(Part):
    metadata: _MetadataIn = msgspec.field(default_factory=_MetadataIn)
    spec: _SpecIn = msgspec.field(default_factory=_SpecIn)
    status: _StatusIn = msgspec.field(default_factory=_StatusIn)


decode_viewed_pod: Final = decoder(ViewedPodIn)
_conditions_of = reader(list[Condition], [])


def read_viewed_pod(raw: bytes, stated: _Stated = _NOTHING_STATED) -> tuple[str, ViewedPod | None]:
    """A pod's namespace and name, and what counts of it; None: it is over, or waits for no GPU.

    Of a pod with more resources than are kept, those that are `stated` are.
    """
    return viewed_pod(decode_viewed_pod(raw), raw, stated)


def viewed_pod(
    one: ViewedPodIn, raw: bytes, stated: _Stated = _NOTHING_STATED
) -> tuple[str, ViewedPod | None]:
    """The same of a pod that is decoded; `raw` is all of it."""
    metadata = one.metadata
    try:
        return f"{metadata.namespace}/{metadata.name}", _viewed(one, raw, stated)
    except InvalidObject as error:
        raise InvalidObject(f"pod {metadata.namespace}/{metadata.name}: {error}") from error


def _viewed(one: ViewedPodIn, raw: bytes, stated: _Stated) -> ViewedPod | None:
    spec, status = one.spec, one.status
    if status.phase in ENDED:
        return None
    conditions = bytes(status.conditions)
    if b'"PodResize' in conditions:  # on its way from one size to another, which few pods ever are
        usage = bounded(usage_of(_resized(raw)), stated)
    else:
        usage = _usage(
            _containers(spec.init_containers),
            _containers(spec.containers),
            bytes(spec.overhead),
            bytes(spec.resources),
            stated,
        )
    gpus = is_any_gpu(usage[0][0])  # which come first
    if spec.node_name:
        return BoundPod(sys.intern(spec.node_name), usage, _origin(one.metadata) if gpus else None)
    if not gpus or one.metadata.deletion_timestamp:  # one that is deleted now gets no node any more
        return None
    shape = _shape(bytes(spec.node_selector), bytes(spec.affinity), bytes(spec.tolerations), usage)
    verdict, judged = _verdict(status.conditions) if b"PodScheduled" in conditions else ("", None)
    return WaitingPod(
        shape,
        _origin(one.metadata),
        spec.priority or 0,
        seconds(one.metadata.creation_timestamp) or 0.0,
        verdict,
        judged=judged,
        held=bytes(spec.scheduling_gates) not in (b"", b"null", b"[]")
        or spec.scheduler_name not in DEFAULT_SCHEDULERS
        or is_partial(shape.usage),
    )


def _resized(raw: bytes) -> Pod:
    from tessera.protocol.kubernetes.pod import decode_pod, pod_in_effect  # large, and seldom needed

    return pod_in_effect(decode_pod(raw))


def _containers(given: list[_ContainerIn] | None) -> _Containers:
    return tuple([(bytes(one.resources), one.restart_policy == "Always") for one in given or ()])


def _usage(init: _Containers, regular: _Containers, overhead: bytes, whole: bytes, stated: _Stated) -> Usage:
    key: _Key = (init, regular, overhead, whole, stated)
    usage = _usages.get(key)
    if usage is not None:
        return usage
    parts = [overhead, whole]
    for resources, is_sidecar in (*init, *regular):
        parts += (b"s" if is_sidecar else b"", resources)
    size = sum(map(len, parts))
    if size > _SHORT:
        key, size = (len(init), _digest(parts), stated), 0
        usage = _usages.get(key)
        if usage is not None:
            return usage
    usage = _shared(bounded(_read_usage(init, regular, overhead, whole), stated))
    _usages.put(key, usage, _OVERHEAD + size + _EACH * len(parts) + _usage_bytes(usage))
    return usage


def _digest(parts: Iterable[bytes]) -> bytes:
    """What parts are known by that are too long to be kept."""
    digest = blake2b(digest_size=32)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _read_usage(init: _Containers, regular: _Containers, overhead: bytes, whole: bytes) -> Usage:
    spec = LeanSpec(overhead=_raw(overhead), resources=_raw(whole))
    pod = Pod(
        init_containers=_read(init, "spec.initContainers"),
        containers=_read(regular, "spec.containers"),
        overhead=spec.read_overhead(),
        pod_requests=amounts_of(spec.read_resources().requests, "spec.resources.requests"),
    )
    return usage_of(pod)


def _read(given: _Containers, where: str) -> tuple[Container, ...]:
    return tuple(
        container_of(
            ContainerIn(resources=_raw(resources), restart_policy="Always" if restartable else None),
            f"{where}[{number}]",
        )
        for number, (resources, restartable) in enumerate(given)
    )


def _shared(usage: Usage) -> Usage:
    """The same object for pods that take the same, however they write it."""
    known = _alike.get(usage)
    if known is None:
        known = tuple([(sys.intern(name), amount) for name, amount in usage])
        _alike.put(known, known, _OVERHEAD + _usage_bytes(known))
    return known


def _usage_bytes(usage: Usage) -> int:
    return sum([_EACH + len(name) for name, _ in usage])


def _shape(selector: bytes, affinity: bytes, tolerations: bytes, usage: Usage) -> Shape:
    key: _Key = (selector, affinity, tolerations, usage)
    shape = _shapes.get(key)
    if shape is not None:
        return shape
    parts = (selector, affinity, tolerations)
    size = sum(map(len, parts))
    if size > _SHORT:
        key, size = (_digest(parts), usage), 0
        shape = _shapes.get(key)
        if shape is not None:
            return shape
    spec = LeanSpec(node_selector=_raw(selector), affinity=_raw(affinity), tolerations=_raw(tolerations))
    place = spec.placement()
    shape = Shape(place, usage) if is_small_place(place) else Shape(Pod(), without_place(usage))
    size += _OVERHEAD + place_bytes(shape.placement) + _usage_bytes(shape.usage)
    _shapes.put(key, shape, size)
    return shape


def _verdict(conditions: msgspec.Raw) -> tuple[str, float | None]:
    """The scheduler's words about a pod for which it finds no place, and since when; empty and None where it says nothing."""
    for condition in _conditions_of(conditions, "status.conditions"):
        if condition.is_refused:
            return condition.message or condition.reason or condition.type, condition.since or 0.0
    return "", None


def _origin(metadata: _MetadataIn) -> Origin:
    return origin_of(
        metadata.namespace, bytes(metadata.owner_references), metadata.generate_name or metadata.name
    )


def origin_of(namespace: str, owners: bytes, name: str) -> Origin:
    """By what a pod is known, from its owner references and its generateName, or else its name."""
    key: _Key = (namespace, owners, name)
    origin = _origins.get(key)
    if origin is not None:
        return origin
    try:
        owner = owner_of(_raw(owners))
    except InvalidInput:  # the API server took them, so another controller reads them
        owner = None
    origin = Origin(sys.intern(namespace), owner.uid[:_LONGEST_UID] if owner else "", name)
    _origins.put(key, origin, _OVERHEAD + 2 * len(name) + len(owners))
    return origin


def _raw(data: bytes) -> msgspec.Raw:
    return msgspec.Raw(data) if data else ABSENT
