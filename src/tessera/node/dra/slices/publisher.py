"""The node's ResourceSlices, kept: written when devices change, and again when the kubelet or another client removes them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tessera.core.dra.slices import API_VERSION, DRIVER
from tessera.core.errors import InvalidInput
from tessera.kube.errors import NOT_JSON, ApiError
from tessera.kube.failures import Backoff, Failures
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import Key, Resource
from tessera.kube.watch.table import TableEntry
from tessera.node.dra.exclusive import read_node
from tessera.node.dra.slices.documents import Document
from tessera.node.dra.slices.plan import SlicePlan, dropped, essence, plan
from tessera.node.events import NodeEvents
from tessera.node.metrics import DraMetrics
from tessera.node.polling import reconciling

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
