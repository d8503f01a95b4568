"""An inventory that is kept right by list and watch."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tessera.core.devices.capacity import PodUse
from tessera.inventory.inventory import Inventory, InventoryNode
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower, follow
from tessera.kube.watch.resource import NODES, UNFINISHED_PODS, Key, Resource, Sink


@dataclass(slots=True)
class _Nodes:
    """Keeps an inventory's nodes right."""

    inventory: Inventory
    changed: asyncio.Event

    def replace(self, found: Iterable[InventoryNode]) -> None:
        self.inventory.begin_nodes()
        for one in found:
            self.inventory.put(one)
        self.changed.set()

    def upsert(self, one: InventoryNode) -> None:
        self.inventory.put(one)
        self.changed.set()

    def delete(self, key: Key) -> None:
        self.inventory.remove_node(key.name)
        self.changed.set()


@dataclass(slots=True)
class _Pods:
    """Keeps an inventory's sums over pods right; pods that use nothing of interest are not remembered."""

    inventory: Inventory
    changed: asyncio.Event
    known: dict[Key, PodUse] = field(default_factory=dict)

    def replace(self, found: Iterable[PodUse]) -> None:
        self.inventory.begin_pods()
        self.known.clear()
        for one in found:
            self.upsert(one)
        self.changed.set()

    def upsert(self, one: PodUse) -> None:
        key = Key(one.namespace, one.name)
        before = self.known.get(key)
        if before == one or (before is None and not one.amounts):
            return
        self.delete(key)
        if one.amounts:
            self.known[key] = one
            self.inventory.capacity.add(one)
        self.changed.set()

    def delete(self, key: Key) -> None:
        gone = self.known.pop(key, None)
        if gone is not None:
            self.inventory.capacity.remove(gone)
            self.changed.set()


@dataclass(frozen=True, slots=True)
class Following:
    """An inventory that is kept right."""

    changed: asyncio.Event
    _pods: _Pods
    _follower: Follower

    def now(self) -> None:
        """Bring the inventory's list of pods up to date; its sums are."""
        inventory = self._pods.inventory
        inventory.pods[:] = [one for one in self._pods.known.values() if inventory.holds(one)]

    @property
    def trouble(self) -> str:
        """Why this may not be how things are; empty when it is."""
        return self._follower.trouble()


@asynccontextmanager
async def following(client: Client, inventory: Inventory) -> AsyncIterator[Following]:
    """Follow a cluster: complete when this begins, and right until it ends."""
    changed = asyncio.Event()
    nodes, pods = _Nodes(inventory, changed), _Pods(inventory, changed)
    sinks: dict[Resource, Sink[Any]] = {
        replace(NODES, labels=inventory.selector.text): Sink(
            inventory.decode_node, nodes.replace, nodes.upsert, nodes.delete
        ),
        UNFINISHED_PODS: Sink(inventory.decode_pod, pods.replace, pods.upsert, pods.delete),
    }
    async with follow(client, sinks) as follower:
        yield Following(changed, pods, follower)
