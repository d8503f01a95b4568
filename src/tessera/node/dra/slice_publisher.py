"""What is to be written so that the API server has the slices that are desired.

A pool is what is consistent together: the scheduler uses it only when as many slices of its highest generation are there
as each of them says.

The node's ResourceSlices, kept: written when devices change, and again when the kubelet or another client removes them.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tessera.core.dra.slices import API_VERSION, DRIVER
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quantity import Quantity
from tessera.kube.clock import Backoff, Failures
from tessera.kube.errors import NOT_JSON, ApiError
from tessera.kube.rest.client import Client, path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.table import Key, Resource, TableEntry
from tessera.node.dra.exclusive import read_node
from tessera.node.dra.slice_documents import Document
from tessera.node.events import NodeEvents
from tessera.node.metrics import DraMetrics
from tessera.node.polling import reconciling

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


log = logging.getLogger(__name__)

_COLLECTION: Final = path_of(API_VERSION, "resourceslices")
_RETRY: Final = (0.5, 10.0)  # seconds, doubling from the first to the second


def _decode(raw: bytes) -> Document:
    try:
        document: Document = msgspec.json.decode(raw, type=dict[str, Any])
        document["metadata"]["name"], document["spec"]["pool"]["generation"]  # both are there
    except (*NOT_JSON, KeyError, TypeError) as error:
        raise InvalidInput(f"a ResourceSlice that cannot be read: {error!r}") from error
    return document


class Publisher:
    """Keeps what is desired in the API server, as long as `leads` says that it is ours to keep."""

    def __init__(
        self,
        client: Client,
        node: str,
        leads: Callable[[], bool],
        metrics: DraMetrics,
        events: NodeEvents,
        *,
        retry: tuple[float, float] = _RETRY,
    ) -> None:
        self._client = client
        self._node = node
        self._leads = leads
        self._metrics = metrics
        self._events = events
        self._retry = retry
        self._desired: Sequence[Document] | None = None  # None: nothing to say yet
        self.current: dict[str, Document] = {}  # the slices of this node in the API server
        self._generation = 0  # the highest ever seen
        self._kept: dict[str, tuple[Document, object]] = {}  # by name: what was sent, and what was kept of it
        self._failures = Failures(log, metrics.failed)
        self._dropped: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        resource = Resource(
            "resourceslices", _COLLECTION, fields=f"spec.nodeName={node},spec.driver={DRIVER}"
        )
        entry = TableEntry(_decode, self.upsert, self.delete, begin=self.begin)
        self._reflector = Reflector(client, resource, entry)
        self.published = False  # whether the API server has what is desired

    def want(self, desired: Sequence[Document]) -> None:
        """From now on these specs ought to be there; none: no slice at all."""
        if self._desired is None or list(desired) != list(self._desired):
            self._desired = tuple(desired)
            self._changed.set()

    def retry(self) -> None:
        """Try again where it is not published: another process may have ended."""
        if not self.published:
            self._changed.set()

    @property
    def synced(self) -> bool:
        """Whether it is known what is there."""
        return self._reflector.health.synced

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._keeping())

    # what the reflector calls

    def begin(self) -> None:
        self.current.clear()
        self._changed.set()

    def upsert(self, one: Document) -> None:
        self._put(one)
        self._changed.set()

    def delete(self, key: Key) -> None:
        self.current.pop(key.name, None)
        self._changed.set()

    # keeping

    async def _keeping(self) -> None:
        await self._reflector.synced()
        backoff = Backoff(*self._retry)
        await reconciling(self._changed, self._reconcile, self._failed, backoff, self._client.clock)

    def _failed(self, error: Exception) -> None:
        self._failures.add("publish", "ResourceSlices cannot be written, will try again: %s", error)
        self._failures.round_over()

    async def _reconcile(self) -> None:
        desired = self._desired
        if desired is None:
            return
        if not self._leads():
            self.published = False
            return
        uid = (await read_node(self._client, self._node)).metadata.uid
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}
        todo = plan(desired, self._as_sent(), owner, self._generation)
        if todo:
            self.published = False
            await self._write(todo)
        self.published = True
        self._failures.round_over()

    async def _write(self, todo: SlicePlan) -> None:
        conflict: ApiError | None = None  # another process wrote first: the watch brings what
        for name in todo.delete:
            try:
                await self._client.delete(_path(name))
            except ApiError as error:
                if not error.is_not_found:
                    raise
            self.current.pop(name, None)
            self._metrics.slice_writes.add("delete")
        for document in todo.update:
            name = document["metadata"]["name"]
            try:
                self._took(document, await self._client.update(_path(name), document))
            except ApiError as error:
                if error.is_not_found:  # removed meanwhile: the watch will say so, or has
                    self.current.pop(name, None)
                    self._changed.set()
                elif not error.is_conflict:
                    raise
                else:
                    conflict = error
                continue
            self._metrics.slice_writes.add("update")
        for document in todo.create:
            try:
                self._took(document, await self._client.create(_COLLECTION, document))
            except ApiError as error:
                if not error.is_conflict:
                    raise
                conflict = error
                continue
            self._metrics.slice_writes.add("create")
        if conflict is not None:
            raise conflict
        log.info(
            "ResourceSlices written: %d new, %d changed, %d removed",
            len(todo.create), len(todo.update), len(todo.delete),
        )  # fmt: skip

    def _took(self, sent: Document, answer: bytes) -> None:
        received = _decode(answer)
        self._put(received)
        name = sent["metadata"]["name"]
        was, has = essence(sent["spec"]), essence(received["spec"])
        self._kept.pop(name, None)
        if was == has:
            return
        self._kept[name] = (sent["spec"], has)
        lost = dropped(sent, received)
        if lost != self._dropped:
            text = f"the API server dropped {' and '.join(lost) or 'fields'} of the devices: is the feature gate on?"
            log.error("%s (docs/dra.md)", text)
            self._events.warn("FieldsDropped", text)
            self._metrics.failed("dropped")
            self._dropped = lost

    def _put(self, document: Document) -> None:
        self.current[document["metadata"]["name"]] = document
        self._generation = max(self._generation, document["spec"]["pool"]["generation"])

    def _as_sent(self) -> dict[str, Document]:
        """What is there; where the API server does not keep all that was sent, as it was sent: writing it again is no use."""
        seen = {}
        for name, document in self.current.items():
            sent, kept = self._kept.get(name, ({}, None))
            same = kept is not None and essence(document["spec"]) == kept
            seen[name] = document | {"spec": {**sent, "pool": document["spec"]["pool"]}} if same else document
        return seen


def _path(name: str) -> str:
    return path_of(API_VERSION, "resourceslices", name=name)
