"""An inventory that is kept right by list and watch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tessera.core.devices.capacity import PodUse
from tessera.inventory.inventory import Inventory
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.resource import RESOURCE_SLICES, UNFINISHED_PODS, Key
from tessera.kube.watch.table import Table, TableEntry


@asynccontextmanager
async def following(client: Client, inventory: Inventory) -> AsyncIterator["FollowedInventory"]:
    """Follow a cluster: the inventory is complete when this begins, and right until it ends."""
    followed = FollowedInventory(client, inventory)
    async with followed.follower.following():
        await inventory.read_mig_manager(client)
        yield followed


class FollowedInventory:
    """An inventory as it changes."""

    def __init__(
        self,
        client: Client,
        inventory: Inventory,
        follower: Follower | None = None,
        wrap: Callable[[TableEntry[Any]], TableEntry[Any]] = lambda entry: entry,
    ) -> None:
        """Follow a cluster; `follower`, where others follow it, too; `wrap` puts something around each entry of the table."""
        self.changed = asyncio.Event()
        self.inventory = inventory
        self._dra_is_old = False
        self._pods: dict[Key, PodUse] = {}  # those that use something that is asked about
        self._later: list[Callable[[], object]] | None = None  # what waits while the inventory stands still
        self.table = {
            resource: wrap(entry.through(self._in_time)) for resource, entry in self._entries().items()
        }
        self.follower = Follower(client) if follower is None else follower
        self.follower.add(self.table)
        # when classes read more than the slices were read for, slices are read again
        inventory.dra.follow(self._dra_changed, partial(self.follower.relist, RESOURCE_SLICES, self.table))

    @property
    def error(self) -> str:
        """Why the inventory may be out of date; empty: it is not."""
        return self.follower.stale(self.table)

    def pause(self) -> None:
        """Let nothing change the inventory, for who reads it in another thread: what the watches bring waits until `catch_up`."""
        self._later = []

    def catch_up(self) -> None:
        """Take what the watches brought meanwhile. Where that raises, the inventory is not complete any more."""
        later, self._later = self._later or (), None
        for take in later:
            take()

    def _entries(self) -> Table:
        """The inventory's table, except that pods are kept by their names."""
        pods = TableEntry(self.inventory.decode_pod, self._put_pod, self._remove_pod, begin=self._begin_pods)
        inventory, dra = self.inventory.table(pods=False), self.inventory.dra.table()
        changing = {resource: entry.reporting(self.changed.set) for resource, entry in inventory.items()}
        return {**changing, UNFINISHED_PODS: pods, **dra}

    def _in_time(self, take: Callable[..., object]) -> Callable[..., object]:
        """The same, which waits while the inventory is paused."""

        def when_it_may(*given: Any) -> None:
            if self._later is None:
                take(*given)
            else:
                self._later.append(partial(take, *given))

        return when_it_may

    def now(self) -> None:
        """Bring the inventory's list of pods, and what DRA serves, up to date; its sums always are."""
        if self._dra_is_old:
            self._dra_is_old = False
            self.inventory.refresh_dra()
        self.inventory.pods[:] = [one for one in self._pods.values() if self.inventory.holds(one)]

    def _dra_changed(self) -> None:
        self._dra_is_old = True  # it concerns many nodes: worked out when it is needed
        self.changed.set()

    def _begin_pods(self) -> None:
        self.inventory.begin_pods()
        self._pods.clear()
        self.changed.set()

    def _put_pod(self, one: PodUse) -> None:
        key = Key(one.namespace, one.name)
        if self._pods.get(key) == one:
            return
        self._remove_pod(key)
        if one.amounts:
            self._pods[key] = one
            self.inventory.capacity.add(one)
            self.changed.set()

    def _remove_pod(self, key: Key) -> None:
        if (known := self._pods.pop(key, None)) is not None:
            self.inventory.capacity.remove(known)
            self.changed.set()
