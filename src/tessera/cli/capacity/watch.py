"""An inventory that is kept right by list and watch."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from tessera.core.devices.capacity import Claim
from tessera.inventory.inventory import UNFINISHED, Inventory, InventoryNode
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import Key, Resource

STALE: Final = 90.0  # seconds without a word; bookmarks come about every minute


@dataclass(slots=True)
class Nodes:
    """Keeps a inventory's nodes right."""

    inventory: Inventory
    changed: asyncio.Event

    def replace(self, objects: Iterable[InventoryNode]) -> None:
        """These are all there are."""
        self.inventory.capacity.forget_nodes()
        self.inventory.gpus.clear()
        for one in objects:
            self.inventory.put(one)
        self.changed.set()

    def upsert(self, one: InventoryNode) -> None:
        """This one is new or changed."""
        self.inventory.put(one)
        self.changed.set()

    def delete(self, key: Key) -> None:
        """This one is gone."""
        self.inventory.capacity.remove_node(key.name)
        self.inventory.gpus.pop(key.name, None)
        self.changed.set()


@dataclass(slots=True)
class Pods:
    """Keeps a inventory's claims right; those that claim nothing of interest are not remembered."""

    inventory: Inventory
    changed: asyncio.Event
    claims: dict[Key, Claim] = field(default_factory=dict)

    def replace(self, objects: Iterable[Claim]) -> None:
        """These are all there are."""
        self.inventory.capacity.forget_claims()
        self.claims.clear()
        for one in objects:
            self.upsert(one)
        self.changed.set()

    def upsert(self, one: Claim) -> None:
        """This one is new or changed."""
        key = Key(one.namespace, one.name)
        before = self.claims.get(key)
        if before == one or (before is None and not one.amounts):
            return
        self.delete(key)
        if one.amounts:
            self.claims[key] = one
            self.inventory.capacity.add(one)
        self.changed.set()

    def delete(self, key: Key) -> None:
        """This one is gone."""
        claim = self.claims.pop(key, None)
        if claim is not None:
            self.inventory.capacity.remove(claim)
            self.changed.set()


@dataclass(frozen=True, slots=True)
class Following:
    """A inventory that is kept right."""

    inventory: Inventory
    pods: Pods
    changed: asyncio.Event
    reflectors: tuple["Reflector[InventoryNode]", "Reflector[Claim]"]

    def now(self) -> None:
        """Bring the inventory's list of claims up to date; its sums are."""
        self.inventory.claims[:] = [
            claim for claim in self.pods.claims.values() if self.inventory.holds(claim)
        ]

    @property
    def trouble(self) -> str:
        """Why this may not be how things are; empty when it is."""
        for one in self.reflectors:
            if one.age is not None and one.age > STALE:
                return f"{one.resource.name}: nothing heard for {one.age:.0f} s: {one.status.last_error}"
        return ""


@asynccontextmanager
async def following(client: Client, inventory: Inventory) -> AsyncIterator[Following]:
    """Follow a cluster: complete when this begins, and right until it ends."""
    nodes_path, pods_path = path_of("v1", "nodes"), path_of("v1", "pods")
    for path in (nodes_path, pods_path):  # a reflector would try for ever: a client that may not is told now
        await client.get(path, {"limit": 1})
    changed = asyncio.Event()
    pods = Pods(inventory, changed)
    chosen = {"labelSelector": inventory.selector.text} if inventory.selector.text else {}
    reflectors = (
        Reflector(
            client, Resource("nodes", nodes_path, inventory.decode_node, chosen), Nodes(inventory, changed)
        ),
        Reflector(
            client, Resource("pods", pods_path, inventory.decode_pod, {"fieldSelector": UNFINISHED}), pods
        ),
    )
    running = [asyncio.create_task(one.run()) for one in reflectors]
    try:
        for one in reflectors:
            await one.synced()
        yield Following(inventory, pods, changed, reflectors)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
