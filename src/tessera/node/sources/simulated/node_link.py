"""Our node in the API server: the layout that it asks for, and what we answer.

The node is watched, and what it ought to say is compared with what it says; the difference is one merge patch. So a
label that a person removes comes back, and a patch that failed is sent again.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from tessera.core.errors import InvalidInput
from tessera.kube.errors import KubeError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import NODES, Key, Sink
from tessera.node.sources.simulated.layout import text_of
from tessera.node.sources.simulated.report import Report
from tessera.protocol.kubernetes.objects import Metadata
from tessera.protocol.mig.documents import RUNAI_CONFIG

log = logging.getLogger(__name__)

_RETRY: Final = (1.0, 30.0)  # seconds, doubling from the first to the second
# Without a word from the API server for that long, what was good in the last run is better than nothing
_SILENT_AFTER: Final = 15.0


class _Node(msgspec.Struct):
    metadata: Metadata


_decode: Final = msgspec.json.Decoder(_Node).decode


def _read(raw: bytes) -> Metadata:
    try:
        return _decode(raw).metadata
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"a node that cannot be read: {error}") from error


class NodeLink:
    """Follows one node, and keeps its labels and annotations as they ought to be."""

    def __init__(self, client: Client, name: str, changed: asyncio.Event | None = None) -> None:
        """`changed` is set whenever there is something new to read here."""
        self.heard = False  # whether the node was seen, so that `desired` is what it says
        self.desired: str | None = None  # the layout that its annotation asks for
        self.silent = False  # whether the API server has not answered for so long that waiting is no use
        self._client = client
        self._name = name
        self._changed = changed or asyncio.Event()
        self._seen: Metadata | None = None
        self._report: Report | None = None
        self._news = asyncio.Event()
        sink = Sink(_read, self.replace, self.upsert, self.delete)
        self._reflector = Reflector(client, NODES.named(name), sink)

    async def run(self) -> None:
        """Follow and answer until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._waiting())
            tasks.create_task(self._answering())

    def report(self, report: Report) -> None:
        """From now on the node should have these labels and annotations."""
        if report != self._report:
            self._report = report
            self._news.set()

    # what the reflector calls

    def replace(self, objects: Iterable[Metadata]) -> None:
        """The node, or none at all."""
        found = [one for one in objects if one.name == self._name]
        if found:
            self.upsert(found[0])
        else:
            self.delete(Key("", self._name))

    def upsert(self, one: Metadata) -> None:
        """The node has changed."""
        before, self._seen = (self.heard, self.desired), one
        self.heard, self.desired = True, (one.annotations or {}).get(RUNAI_CONFIG)
        if (self.heard, self.desired) != before:  # most changes are heartbeats, or what we wrote ourselves
            self._changed.set()
        self._news.set()

    def delete(self, key: Key) -> None:
        """There is no such node: wait for it; its devices stay as they are."""
        log.warning("the cluster has no node %s (yet); is --node-name right?", self._name)
        self._seen = None

    async def _waiting(self) -> None:
        try:
            async with asyncio.timeout(_SILENT_AFTER):
                await self._reflector.synced()
        except TimeoutError:
            self.silent = True
            self._changed.set()

    async def _answering(self) -> None:
        delay, longest = _RETRY
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._answer()
                delay = _RETRY[0]
            except (KubeError, InvalidInput) as error:
                log.warning(
                    "node %s: cannot write the state of its layout, will try again: %s", self._name, error
                )
                await asyncio.sleep(delay)
                delay = min(2 * delay, longest)
                self._news.set()

    async def _answer(self) -> None:
        seen, report = self._seen, self._report
        # a report about an earlier text is no answer to this one, which is about to be looked at
        if seen is None or report is None or report.desired != text_of(self.desired):
            return
        patch = report.patch(seen.labels or {}, seen.annotations or {})
        if not patch:
            return
        answer = _read(await self._client.patch(path_of("v1", "nodes", name=self._name), patch))
        log.info("node %s: state of its layout written: %s", self._name, ", ".join(sorted(_names(patch))))
        if self._seen is seen:  # else the watch has brought something newer meanwhile
            self._seen = answer


def _names(patch: dict[str, dict[str, dict[str, str | None]]]) -> Iterable[str]:
    return (name for changes in patch["metadata"].values() for name in changes)
