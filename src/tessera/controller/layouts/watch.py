"""One node, followed: whether it shows the layout that was written to it."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tessera.core.kubernetes.resources import is_whole_or_mig, short
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import follow
from tessera.kube.watch.resource import NODES, Key, Sink
from tessera.protocol.kubernetes.objects import NodeIn, decode_node, node_of
from tessera.protocol.mig.nodes import GpuNode


@dataclass(frozen=True, slots=True)
class Look:
    """A node at one moment, and whether that is what we want to see."""

    shown: bool
    refused: str = ""
    waits: str = ""
    reason: str = ""  # the node's own words about why it waits


def look_at(gpus: GpuNode, offered: Mapping[str, int], expected: Mapping[str, int] | None) -> Look:
    """Whether a node shows its layout: its state says so, and what it offers is what the layout makes."""
    if gpus.state == "failed":
        return Look(shown=False, refused=gpus.reason or "the node says failed, and not why")
    missing = [] if expected is None else _missing(offered, expected)
    if gpus.state == "success" and not missing:
        return Look(shown=True)
    told = f"state {gpus.state or 'not told yet'}"
    return Look(shown=False, waits=", ".join([told, *missing]), reason=gpus.reason)


def offered_by(node: NodeIn) -> dict[str, int]:
    """The GPUs and MIG devices that a node has; of those that it has none of, none."""
    amounts = node_of(node, is_whole_or_mig).allocatable
    return {resource: int(amount.value) for resource, amount in amounts.items() if amount.value >= 1}


def _missing(offered: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    names = sorted({*offered, *expected})
    return [
        f"{short(name)} {offered.get(name, 0)} of {expected.get(name, 0)}"
        for name in names
        if offered.get(name, 0) != expected.get(name, 0)
    ]


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
    async with follow(client, {NODES.named(name): sink}, complete=False):
        yield node
