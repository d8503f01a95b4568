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
class SlicePlan:
    """Calls that make the API server have what is desired; in this order."""

    delete: tuple[str, ...] = ()
    update: tuple[Document, ...] = ()
    create: tuple[Document, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan(
    desired: Sequence[Document], current: Mapping[str, Document], owner: Document, generation: int
) -> SlicePlan:
    """What is to be written; `generation` is the highest that was ever seen. A change of one slice keeps the generation."""
    highest = max([_pool(one)["generation"] for one in current.values()], default=0)
    documents = _documents(desired, current, owner, highest)
    wrong = [name for name, one in documents.items() if name not in current or not _same(current[name], one)]
    extra = tuple(name for name in current if name not in documents)
    if not wrong and not extra:
        return SlicePlan()
    alone = wrong[0] if len(wrong) == 1 and not extra else ""
    if alone not in current or _pool(current[alone]) != _pool(documents[alone]):
        documents = _documents(desired, current, owner, max(highest, generation) + 1)
        wrong = list(documents)
    return SlicePlan(
        extra,
        tuple(documents[name] for name in wrong if name in current),
        tuple(documents[name] for name in wrong if name not in current),
    )


def slice_name(index: int, node: str) -> str:
    """The name of a node's slice; they sort by it. A node's name that is too long is cut, and a hash makes it unique."""
    name = f"{index:05}-{node}-{DRIVER}"
    if len(name) <= _MOST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{index:05}-{node[:200].rstrip('.-')}-{digest}-{DRIVER}"


def _documents(
    desired: Sequence[Document], current: Mapping[str, Document], owner: Document, generation: int
) -> dict[str, Document]:
    """The slices of one generation, by name."""
    found = {}
    for index, spec in enumerate(desired):
        name = slice_name(index, spec["nodeName"])
        metadata: Document = {"name": name, "ownerReferences": [owner]}
        if name in current:
            metadata["resourceVersion"] = current[name]["metadata"]["resourceVersion"]
            spec = _with_times(spec, current[name]["spec"])
        numbers = {"generation": generation, "resourceSliceCount": len(desired)}
        spec = spec | {"pool": {"name": spec["pool"]["name"], **numbers}}
        found[name] = {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    return found


def _same(one: Document, other: Document) -> bool:
    """Whether two slices say the same, in the same pool and for the same node."""
    return (
        _pool(one) == _pool(other)
        and essence(one["spec"]) == essence(other["spec"])
        and _owner(one) == _owner(other)
    )


def _pool(document: Document) -> Document:
    pool: Document = document["spec"]["pool"]
    return pool


def _owner(document: Document) -> str:
    return next((str(one.get("uid")) for one in document["metadata"].get("ownerReferences") or ()), "")


def _with_times(spec: Document, current: Document) -> Document:
    """The spec with the times at which its taints were added, as the API server knows them."""
    added = {
        (device["name"], taint["key"], taint["effect"]): {"timeAdded": taint["timeAdded"]}
        for device in current.get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }

    def timed(name: str, taint: Document) -> Document:
        return taint | added.get((name, taint["key"], taint["effect"]), {})

    devices = [
        device | {"taints": [timed(device["name"], taint) for taint in device["taints"]]}
        if "taints" in device
        else device
        for device in spec.get("devices") or ()
    ]
    return spec | {"devices": devices} if devices else spec


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
