"""Several collections of a cluster, followed together.

async with Follower(client, table).following() as follower:
    ...  # the table is complete; `follower.stale()` says what has not been heard of for too long

Several tables may share a follower: each collection is watched once, whoever has an entry for it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from tessera.kube.rest.client import Client
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.table import Resource, Table, TableEntry

STALE: Final = 90.0  # seconds without an event; bookmarks come about every minute


class Follower:
    """Keeps tables equal to collections of an API server. What concerns one table alone takes that table as `only`."""

    def __init__(self, client: Client, *tables: Table) -> None:
        self._client = client
        self._changed = asyncio.Event()  # set when there are other reflectors
        self.reflectors: list[Reflector] = []
        for table in tables:
            self.add(table)

    def add(self, table: Table) -> None:
        """Follow one more table."""
        for resource, entry in table.items():
            shared = next((reflector for reflector in self.reflectors if reflector.follows(resource)), None)
            if shared is None:
                self.reflectors.append(Reflector(self._client, resource, entry))
            else:
                shared.add(entry, optional=resource.optional)
        self._changed.set()

    def drop(self, table: Table) -> None:
        """Follow a table no longer."""
        for reflector, entries in self._entries(table):
            for entry in entries:
                reflector.entries.drop(entry)
        self.reflectors = [reflector for reflector in self.reflectors if reflector.entries]
        self._changed.set()

    def _entries(self, only: Table | None) -> list[tuple[Reflector, list[TableEntry[Any]]]]:
        """The entries of a table, or of all, by what keeps them."""
        wanted = None if only is None else {*only.values()}
        kept = [
            (reflector, [entry for entry in reflector.entries if wanted is None or entry in wanted])
            for reflector in self.reflectors
        ]
        return [(reflector, entries) for reflector, entries in kept if entries]

    @asynccontextmanager
    async def following(self, *, complete: bool = True) -> AsyncIterator[Self]:
        """Follow: complete when this begins, and right until it ends.

        With `complete=False` it begins at once, for a caller that waits for its table with a limit of its own.
        """
        if complete:
            await check_readable(
                self._client,
                [reflector.resource for reflector in self.reflectors if not reflector.is_optional],
            )
        async with while_running(self.run()):
            if complete:
                await self.synced()
            yield self

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            running: dict[Reflector, asyncio.Task[None]] = {}
            while True:
                self._changed.clear()
                for gone in running.keys() - {*self.reflectors}:
                    running.pop(gone).cancel()
                for reflector in self.reflectors:
                    if reflector not in running:
                        running[reflector] = tasks.create_task(reflector.run())
                await self._changed.wait()

    async def synced(self, only: Table | None = None) -> None:
        """Wait until everything has been listed once."""
        for reflector, entries in self._entries(only):
            await reflector.synced(*entries)

    def relist(self, resource: Resource, only: Table | None = None) -> None:
        """Read a collection again, since its objects are to be read in another way; for one table, or for all."""
        for reflector, entries in self._entries(only):
            if reflector.follows(resource):
                reflector.relist(*entries)

    def missing(self, only: Table | None = None) -> str | None:
        """What keeps the tables from being complete, in a few words; None once they are."""
        waiting = [
            f"{reflector.resource.name} not listed yet"
            + (f" ({reflector.health.last_error})" if reflector.health.last_error else "")
            for reflector, entries in self._entries(only)
            if not reflector.entries.listed.issuperset(entries)
        ]
        return "; ".join(waiting) or None

    def absent(self, *only: Resource) -> str:
        """The collections that the server does not have, or not for us, with its messages; empty: all are there."""
        return "; ".join(
            f"{reflector.resource.name}: {reflector.health.last_error}"
            for reflector in self.reflectors
            if reflector.health.absent and (not only or any(map(reflector.follows, only)))
        )

    def forbidden(self, only: Table | None = None) -> str:
        """What counts as empty since we may not read it, and the server's words: it need not be empty."""
        return "; ".join(
            f"{reflector.resource.name}: {reflector.health.last_error}"
            for reflector, _ in self._entries(only)
            if reflector.health.forbidden
        )

    def stale(self, only: Table | None = None) -> str:
        """Why the tables may no longer be how things are; empty while they are."""
        return "; ".join(
            f"{reflector.resource.name}: nothing received for more than {STALE:.0f} s: {reflector.health.last_error}"
            for reflector, _ in self._entries(only)
            if reflector.age is not None and reflector.age > STALE
        )


async def check_readable(client: Client, resources: Iterable[Resource]) -> None:
    """Raise the error where a collection cannot be listed: a reflector would try for ever."""
    for resource in resources:
        await client.get(resource.path, {**resource.query, "limit": 1})


@asynccontextmanager
async def while_running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have something run meanwhile; when it fails, what goes on meanwhile ends with its error."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(work)
            try:
                yield
            finally:
                running.cancel()
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(error: BaseException) -> BaseException:
    """The one error in a group, so that callers meet what was raised; a group of several as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
