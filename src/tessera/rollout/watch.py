"""One node, followed."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.resource import NODES, Key, Sink
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node
from tessera.rollout.progress import offered_by


@dataclass(slots=True)
class Watched:
    """One node, kept up to date."""

    name: str
    node: NodeIn | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def replace(self, objects: Iterable[NodeIn]) -> None:
        """The node, or none at all."""
        self.node = next((one for one in objects if one.metadata.name == self.name), None)
        self.changed.set()

    def upsert(self, one: NodeIn) -> None:
        """The node has changed."""
        self.node = one
        self.changed.set()

    def delete(self, key: Key) -> None:
        """The node is gone."""
        self.node = None
        self.changed.set()

    async def change(self, seconds: float | None) -> None:
        """Wait until it changes, no longer than so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.wait()

    async def offers(self, wanted: Mapping[str, int], seconds: float) -> bool:
        """Wait until it offers that; False when it does not in so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while self.node is None or offered_by(self.node) != wanted:
                    await self.changed.wait()
                    self.changed.clear()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def watched(client: Client, name: str) -> AsyncIterator[Watched]:
    """Follow one node."""
    node = Watched(name)
    sink = Sink(decode_node, node.replace, node.upsert, node.delete)
    async with Follower(client, {NODES.named(name): sink}).following(complete=False):
        yield node
