"""What is to be written so that the API server has the slices that are desired.

A pool is what is consistent together: the scheduler uses it only when as many slices of its highest generation are there
as each of them says.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tessera.core.dra.slices import API_VERSION, DRIVER
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.node.dra.slices.documents import Document

_MOST_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls that make the API server have what is desired; in this order."""

    delete: tuple[str, ...] = ()
    update: tuple[Document, ...] = ()
    create: tuple[Document, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan(
    desired: Sequence[Document], current: Mapping[str, Document], owner: Document, generation: int
) -> Plan:
    """What is to be written; `generation` is the highest that was ever seen. A change of one slice keeps the generation."""
    names = [slice_name(index, spec["nodeName"]) for index, spec in enumerate(desired)]
    top = max([_pool(one)["generation"] for one in current.values()], default=0)
    wrong = [
        name for name, spec in zip(names, desired, strict=True)
        if name not in current or not _is(current[name], spec, top, len(desired)) or _owner(current[name]) != owner["uid"]
    ]  # fmt: skip
    extra = tuple(name for name in current if name not in names)
    if not wrong and not extra:
        return Plan()
    alone = wrong[0] if len(wrong) == 1 and not extra else ""
    if (
        not alone
        or alone not in current
        or _pool(current[alone]) != _pool_document(desired[0], top, len(desired))
    ):
        wrong, top = names, max(top, generation) + 1
    documents = {
        name: _document(name, spec, owner, current.get(name), top, len(desired))
        for name, spec in zip(names, desired, strict=True)
        if name in wrong
    }
    return Plan(
        extra,
        tuple(document for name, document in documents.items() if name in current),
        tuple(document for name, document in documents.items() if name not in current),
    )


def slice_name(index: int, node: str) -> str:
    """The name of a node's slice; they sort by it. A node's name that is too long is cut, and told apart by a hash."""
    name = f"{index:05}-{node}-{DRIVER}"
    if len(name) <= _MOST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{index:05}-{node[:200].rstrip('.-')}-{digest}-{DRIVER}"


def _is(current: Document, spec: Document, generation: int, count: int) -> bool:
    return _pool(current) == _pool_document(spec, generation, count) and essence(current["spec"]) == essence(
        spec
    )


def _pool(document: Document) -> Document:
    pool: Document = document["spec"]["pool"]
    return pool


def _pool_document(spec: Document, generation: int, count: int) -> Document:
    return {"name": spec["pool"]["name"], "generation": generation, "resourceSliceCount": count}


def _owner(document: Document) -> str:
    return next((str(one.get("uid")) for one in document["metadata"].get("ownerReferences") or ()), "")


def _document(
    name: str, spec: Document, owner: Document, current: Document | None, generation: int, count: int
) -> Document:
    metadata: Document = {"name": name, "ownerReferences": [owner]}
    if current is not None:
        metadata["resourceVersion"] = current["metadata"]["resourceVersion"]
        spec = _with_times(spec, current["spec"])
    spec = spec | {"pool": _pool_document(spec, generation, count)}
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _with_times(spec: Document, current: Document) -> Document:
    """The spec with the times at which its taints were added, as the API server knows them."""
    times = {
        (device["name"], taint["key"], taint["effect"]): taint.get("timeAdded")
        for device in current.get("devices") or ()
        for taint in device.get("taints") or ()
    }

    def timed(device: Document) -> Document:
        if "taints" not in device:
            return device
        taints = [
            taint
            | (
                {"timeAdded": time}
                if (time := times.get((device["name"], taint["key"], taint["effect"])))
                else {}
            )
            for taint in device["taints"]
        ]
        return device | {"taints": taints}

    return spec | {"devices": [timed(device) for device in spec["devices"]]} if "devices" in spec else spec


def essence(spec: Document) -> object:
    """What a spec says: quantities by value, without what the API server adds and without the pool's numbers."""
    return _essence({key: value for key, value in spec.items() if key != "pool"})


def _essence(value: Any) -> object:
    if isinstance(value, list):
        return [_essence(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"value"}:  # a capacity or a counter
        try:
            return Quantity.parse(value["value"]).value
        except InvalidInput:
            return value
    return {
        key: _essence(one) for key, one in value.items() if key != "timeAdded" and one not in (None, [], {})
    }


def dropped(sent: Document, received: Document) -> tuple[str, ...]:
    """The fields of devices that the API server took without a word and did not keep."""
    kept = {device["name"]: device for device in received["spec"].get("devices") or ()}
    fields = {
        field
        for device in sent["spec"].get("devices") or ()
        for field in ("taints", "consumesCounters", "capacity", "attributes")
        if device.get(field) and not kept.get(device["name"], {}).get(field)
    }
    if sent["spec"].get("sharedCounters") and not received["spec"].get("sharedCounters"):
        fields.add("sharedCounters")
    return tuple(sorted(fields))
