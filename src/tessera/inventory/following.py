"""An inventory that is kept right by list and watch."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tessera.core.devices.capacity import PodUse
from tessera.inventory.inventory import Inventory, InventoryNode
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.resource import NODES, RESOURCE_SLICES, UNFINISHED_PODS, Key, Resource, Sink


@asynccontextmanager
async def following(client: Client, inventory: Inventory) -> AsyncIterator["FollowedInventory"]:
    """Follow a cluster: the inventory is complete when this begins, and right until it ends."""
    followed = FollowedInventory(client, inventory)
    async with followed.follower.following():
        await inventory.read_mig_manager(client)
        yield followed


class FollowedInventory:
    """An inventory as it changes."""

    def __init__(self, client: Client, inventory: Inventory) -> None:
        self.changed = asyncio.Event()
        self._inventory = inventory
        self._dra_is_old = False
        self._pods: dict[Key, PodUse] = {}  # those that use something that is asked about
        self._later: list[Callable[[], object]] | None = None  # what waits while the inventory stands still
        sinks: dict[Resource, Sink[Any]] = {
            replace(NODES, labels=inventory.selector.text): Sink(
                inventory.decode_node, self._replace_nodes, self._put_node, self._remove_node
            ),
            UNFINISHED_PODS: Sink(inventory.decode_pod, self._replace_pods, self._put_pod, self._remove_pod),
            **inventory.dra.sinks(),
        }
        self.sinks = {resource: self._in_time(sink) for resource, sink in sinks.items()}
        self.follower = Follower(client, self.sinks)
        # when classes read more than the slices were read for, slices are read again
        inventory.dra.follow(self._dra_changed, partial(self.follower.relist, RESOURCE_SLICES))

    @property
    def error(self) -> str:
        """Why the inventory may be out of date; empty: it is not."""
        return self.follower.stale()

    def pause(self) -> None:
        """Let nothing change the inventory, for who reads it in another thread: what the watches bring waits until `catch_up`."""
        self._later = []

    def catch_up(self) -> None:
        """Take what the watches brought meanwhile. Where that raises, the inventory is not complete any more."""
        later, self._later = self._later or (), None
        for take in later:
            take()

    def _in_time(self, sink: Sink[Any]) -> Sink[Any]:
        """The same, which waits while the inventory is paused."""

        def taken(take: Callable[[Any], object]) -> Callable[[Any], object]:
            def when_it_may(given: Any) -> None:
                if self._later is None:
                    take(given)
                else:
                    self._later.append(partial(take, given))

            return when_it_may

        return Sink(sink.decode, taken(sink.replace), taken(sink.upsert), taken(sink.delete))

    def now(self) -> None:
        """Bring the inventory's list of pods, and what DRA serves, up to date; its sums always are."""
        if self._dra_is_old:
            self._dra_is_old = False
            self._inventory.refresh_dra()
        self._inventory.pods[:] = [one for one in self._pods.values() if self._inventory.holds(one)]

    def _dra_changed(self) -> None:
        self._dra_is_old = True  # it concerns many nodes: worked out when it is needed
        self.changed.set()

    def _replace_nodes(self, nodes: Iterable[InventoryNode]) -> None:
        self._inventory.begin_nodes()
        for one in nodes:
            self._inventory.put(one)
        self.changed.set()

    def _put_node(self, one: InventoryNode) -> None:
        self._inventory.put(one)
        self.changed.set()

    def _remove_node(self, key: Key) -> None:
        self._inventory.remove_node(key.name)
        self.changed.set()

    def _replace_pods(self, pods: Iterable[PodUse]) -> None:
        self._inventory.begin_pods()
        self._pods.clear()
        for one in pods:
            self._put_pod(one)
        self.changed.set()

    def _put_pod(self, one: PodUse) -> None:
        key = Key(one.namespace, one.name)
        if self._pods.get(key) == one:
            return
        self._remove_pod(key)
        if one.amounts:
            self._pods[key] = one
            self._inventory.capacity.add(one)
            self.changed.set()

    def _remove_pod(self, key: Key) -> None:
        if (known := self._pods.pop(key, None)) is not None:
            self._inventory.capacity.remove(known)
            self.changed.set()
